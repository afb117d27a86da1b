package grant_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore/longshore/internal/grant"
)

func leaf(g grant.Grant) grant.Value { return grant.Value{Form: grant.Granted, Grant: &g} }

func text(s string) grant.Value { return grant.Value{Form: grant.String, Text: s} }

func mapping(entries ...any) grant.Value {
	v := grant.Value{Form: grant.Mapping}
	for i := 0; i < len(entries); i += 2 {
		v.Fields = append(v.Fields, grant.Field{Name: entries[i].(string), Value: entries[i+1].(grant.Value)})
	}
	return v
}

func sequence(items ...grant.Value) grant.Value {
	return grant.Value{Form: grant.Sequence, Items: items}
}

var request = grant.Request{
	Mounts:   map[string]grant.Rights{"/data": grant.Read | grant.Write, "/etc/site": grant.Read, "/opt": grant.AllRights},
	Secrets:  []string{"token"},
	Env:      []string{"A=1", "B=x=y", "A=2"},
	Identity: map[grant.Kind]map[string]string{grant.Server: {"server_kubernetes_pod_name": "web"}},
}

func TestResolvedDescriptorsAreNumberedInTheOrderOfTheDocument(t *testing.T) {
	doc := grant.Document{Root: mapping(
		"z", leaf(grant.Grant{Kind: grant.Log}),
		"mounts", mapping("data dir", leaf(grant.Grant{Kind: grant.Mount, Name: "/data", Rights: grant.Read | grant.Write, AtMost: true}), "site", leaf(grant.Grant{Kind: grant.Mount, Name: "/etc/site", Rights: grant.Read | grant.Write, AtMost: true})),
		"listen", sequence(leaf(grant.Grant{Kind: grant.Listen, Protocol: grant.TCP, Port: 80})),
		"board", leaf(grant.Grant{Kind: grant.Server, Labels: map[string]string{"app": "db"}}),
		"name", text("\"q\"\n\u2028\x01é"),
		"a", leaf(grant.Grant{Kind: grant.Env, Name: "A"}),
		"n", grant.Value{Form: grant.Int, Text: "18446744073709551615"},
		"none", grant.Value{},
	)}
	got, err := grant.Resolve(&doc, request)
	if err != nil {
		t.Fatal(err)
	}
	want := &grant.Resolved{
		Descriptors: []grant.Descriptor{
			{Number: 4, Name: "z", Grant: grant.Grant{Kind: grant.Log}},
			{Number: 5, Name: "mounts.data_dir", Grant: grant.Grant{Kind: grant.Mount, Name: "/data", Rights: grant.Read | grant.Write}},
			{Number: 6, Name: "mounts.site", Grant: grant.Grant{Kind: grant.Mount, Name: "/etc/site", Rights: grant.Read}},
			{Number: 7, Name: "listen[0]", Grant: grant.Grant{Kind: grant.Listen, Protocol: grant.TCP, Port: 80}},
			{Number: 8, Name: "board", Grant: grant.Grant{Kind: grant.Server, Labels: map[string]string{"app": "db", "server_kubernetes_pod_name": "web"}}},
		},
		Argdata: []byte(`{"a":"2","board":{"fd":8},"listen":[{"fd":7}],"mounts":{"data dir":{"fd":5},"site":{"fd":6}},` +
			`"n":18446744073709551615,"name":"\"q\"\n` + "\u2028" + `\u0001é","none":null,"z":{"fd":4}}`),
		Environment: []string{"A=2"},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("want -, got +:\n%s\nargdata: %s", diff, got.Argdata)
	}
	if doc.Root.Fields[5].Value.Grant == nil {
		t.Error("the document itself was changed")
	}
	if got, err = grant.ResolveWasm(&doc, request); err != nil || !strings.Contains(string(got.Argdata), `"site":{"path":"/etc/site"}},`) || !strings.Contains(string(got.Argdata), `{"path":"/fd/7"}`) {
		t.Errorf("for wasm: %v, %s", err, got.Argdata)
	}
}

func TestAllVariablesAreAMappingOfValues(t *testing.T) {
	doc := grant.Document{Root: leaf(grant.Grant{Kind: grant.Env})}
	got, err := grant.Resolve(&doc, request)
	if err != nil || string(got.Argdata) != `{"A":"2","B":"x=y"}` || len(got.Descriptors) != 0 || !cmp.Equal(got.Environment, []string{"A=2", "B=x=y"}) {
		t.Errorf("got %+v, %v", got, err)
	}
}

func TestResolveRefusesWhatTheRequestDoesNotHave(t *testing.T) {
	at := func(g grant.Grant) grant.Value {
		v := leaf(g)
		v.Pos = grant.Pos{Line: 3, Column: 7}
		return v
	}
	many := sequence()
	for range grant.MaxDescriptors + 1 {
		many.Items = append(many.Items, at(grant.Grant{Kind: grant.Log}))
	}
	for _, c := range []struct {
		root grant.Value
		want string
	}{
		{at(grant.Grant{Kind: grant.Mount, Name: "/var/lib/kubelet/pods/x"}), "line 3, column 7: Unknown volume mount \"/var/lib/kubelet/pods/x\": the request mounts /data, /etc/site, /opt"},
		{at(grant.Grant{Kind: grant.Mount, Name: "/data/../etc"}), "line 3, column 7: mount \"/data/../etc\": a mount is named by its path"},
		{at(grant.Grant{Kind: grant.Mount, Name: "../data"}), "line 3, column 7: mount \"../data\": a mount is named by its path"},
		{at(grant.Grant{Kind: grant.Mount, Name: "/data\x00"}), "is no path"},
		{at(grant.Grant{Kind: grant.Mount}), "a mount needs a name"},
		{at(grant.Grant{Kind: grant.Mount, Name: "/etc/site", Rights: grant.Read | grant.Write}), "volume mount \"/etc/site\" gives read, the document asks for read,write"},
		{at(grant.Grant{Kind: grant.Mount, Name: "/data", Rights: grant.Execute}), "gives read,write, the document asks for execute"},
		{at(grant.Grant{Kind: grant.Mount, Name: "/etc/site", Rights: grant.Write, AtMost: true}), "volume mount \"/etc/site\" gives nothing of write"},
		{at(grant.Grant{Kind: grant.Secret, Name: "other"}), "line 3, column 7: unknown secret \"other\""},
		{at(grant.Grant{Kind: grant.Env, Name: "C"}), "line 3, column 7: unknown environment variable \"C\""},
		{at(grant.Grant{Kind: grant.Server, Labels: map[string]string{"server_kubernetes_pod_name": "x"}}), "line 3, column 7: Attempted to override predefined label \"server_kubernetes_pod_name\""},
		{mapping("fd", grant.Value{Form: grant.Int, Text: "0"}), "would read as a reference"},
		{many, "more than 128 grants"},
		{text(strings.Repeat("x", grant.MaxArgdata)), "longer than"},
	} {
		_, err := grant.Resolve(&grant.Document{Root: c.root}, request)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
}

func TestNamesOfDescriptorsFitIntoAnEnvironmentVariable(t *testing.T) {
	doc := grant.Document{Root: mapping("a:b\n\x7fö", mapping(strings.Repeat("long", 100), leaf(grant.Grant{Kind: grant.Clock})))}
	got, err := grant.Resolve(&doc, request)
	if err != nil {
		t.Fatal(err)
	}
	if name := got.Descriptors[0].Name; name != ("a_b___." + strings.Repeat("long", 100))[:255] {
		t.Errorf("name %q", name)
	}
	doc = grant.Document{Root: leaf(grant.Grant{Kind: grant.Clock})}
	if got, err = grant.Resolve(&doc, request); err != nil || got.Descriptors[0].Name != "clock-4" {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestAGrantIsWrittenAsItIsAskedFor(t *testing.T) {
	for want, g := range map[string]grant.Grant{
		"!container_log": {Kind: grant.Log},
		"!mount /data":   {Kind: grant.Mount, Name: "/data", Rights: grant.Read | grant.Write, AtMost: true},
		"!mount {path: /data, rights: [read, execute]}": {Kind: grant.Mount, Name: "/data", Rights: grant.Read | grant.Execute},
		"!listen {udp: 53}":                             {Kind: grant.Listen, Protocol: grant.UDP, Port: 53},
		"!client {a: 1, app: db}":                       {Kind: grant.Client, Labels: map[string]string{"app": "db", "a": "1"}},
		"!secret token":                                 {Kind: grant.Secret, Name: "token"},
	} {
		if got := fmt.Sprint(g); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

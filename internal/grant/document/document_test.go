package document_test

import (
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/grant/document"
)

var request = grant.Request{
	Mounts:  map[string]grant.Rights{"/data": grant.Read | grant.Write, "/etc/site": grant.Read},
	Secrets: []string{"token"},
	Env:     []string{"HOME=/"},
}

func TestADocumentBecomesAnArgument(t *testing.T) {
	for _, c := range []struct{ name, text, argdata, grants string }{
		{
			"Scuba's own form", "%TAG ! tag:nuxi.nl,2015:cloudabi/kubernetes/\n---\nlog: !container_log stderr\nroot: !mount /data\nserve: !server\n  app: db\n",
			`{"log":{"fd":4},"root":{"fd":5},"serve":{"fd":6}}`, "!container_log, !mount {path: /data, rights: [read, write]}, !server {app: db}",
		},
		{"with a handle of its own", "%YAML 1.2\n%TAG !k! tag:nuxi.nl,2015:cloudabi/kubernetes/\n---\n!k!container_log\n", `{"fd":4}`, "!container_log"},
		{"the long form", "log: !<tag:nuxi.nl,2015:cloudabi/kubernetes/container_log> x\n", `{"log":{"fd":4}}`, "!container_log"},
		{
			"every tag", `
log: !container_log
data: !mount {path: /data, rights: read}
site: !mount /etc/site
ports: [!listen {tcp: 80}, !listen {udp: 53}]
server: !server {app: db}
client: !client {}
anybody: !client
home: !env HOME
env: !env
random: !random
clock: !clock
token: !secret token
stop: !shutdown
`, `{"anybody":{"fd":11},"client":{"fd":10},"clock":{"fd":13},"data":{"fd":5},"env":{"HOME":"/"},"home":"/","log":{"fd":4},"ports":[{"fd":7},{"fd":8}],` +
				`"random":{"fd":12},"server":{"fd":9},"site":{"fd":6},"stop":{"fd":15},"token":{"fd":14}}`,
			"!container_log, !mount {path: /data, rights: [read]}, !mount {path: /etc/site, rights: [read, write]}, !listen {tcp: 80}, !listen {udp: 53}, !server {app: db}, !client {}, !env *, !random, !clock, !secret token, !shutdown",
		},
		{
			"the core schema of YAML 1.2", "[yes, no, on, ~, null, '', true, FALSE, 0o17, 0x1F, -0, +12, 012, 1_000, 2001-12-14, 1.5, 1e3, .5, -1.0, 1e300, 1e-7, 0.000001, !!str 1, !!float 1, \"1\", !!binary 'aGk=', 18446744073709551615, '2']",
			`["yes","no","on",null,null,"",true,false,15,31,0,12,12,"1_000","2001-12-14",1.5,1000,0.5,-1,1e+300,1e-7,0.000001,"1",1,"1","aGk=",18446744073709551615,"2"]`, "nothing",
		},
		{"keys are text", "{1: a, true: b, ~: c, 0x10: d}", `{"1":"a","16":"d","null":"c","true":"b"}`, "nothing"},
		{"aliases", "a: &x {l: !container_log , v: [1]}\nb: *x\nc: !server {k: &s v, l: *s}\n", `{"a":{"l":{"fd":4},"v":[1]},"b":{"l":{"fd":5},"v":[1]},"c":{"fd":6}}`, "!container_log, !server {k: v, l: v}"},
		{"no value at all", "---\n", "null", "nothing"},
		{"a text", "|\n a\n b\n", `"a\nb\n"`, "nothing"},
		{"a mapping named path", "path: /x", `{"path":"/x"}`, "nothing"},
	} {
		doc, err := document.Parse([]byte(c.text))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		r, err := grant.Resolve(doc, request)
		if err != nil || string(r.Argdata) != c.argdata {
			t.Errorf("%s: %v\n got %s\nwant %s", c.name, err, r.Argdata, c.argdata)
		}
		if got := grant.Of(doc).String(); got != c.grants {
			t.Errorf("%s: %s", c.name, got)
		}
	}
}

func TestWhatIsWrongIsToldWithItsPlace(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "line 1, column 1: the document is empty"},
		{"# nothing\n", "line 1, column 1: the document is empty"},
		{"a: 1\nb: !foo x\n", "line 2, column 4: unknown tag !foo; there are !container_log, !mount"},
		{"a: !<tag:nuxi.nl,2015:cloudabi/kubernetes/foo> x\n", "line 1, column 4: unknown tag tag:nuxi.nl,2015:cloudabi/kubernetes/foo"},
		{"a: !<tag:example.org,2015:mount> x\n", "line 1, column 4: unknown tag"},
		{"a: !!set {x}\n", "line 1, column 4: unknown tag !!set"},
		{"a: !!timestamp 2001-01-01\n", "line 1, column 4: unknown tag !!timestamp"},
		{"a: !!int x\n", `line 1, column 4: "x" is no !!int`},
		{"a: !!seq {}\n", "line 1, column 4: tag !!seq does not fit here"},
		{"a: !!map x\n", "line 1, column 4: tag !!map does not fit here"},
		{"a: 1\nb:\n  c: 1\n  \"c\": 2\n", `line 4, column 3: key "c" is already there, at line 3, column 3`},
		{"1: a\n\"1\": b\n", `line 2, column 1: key "1" is already there, at line 1, column 1`},
		{"{[a]: b}", "line 1, column 2: a key must be a scalar"},
		{"!mount /x: b", "line 1, column 1: !mount cannot be a key"},
		{"a: &b {}\nc:\n  <<: *b\n", "line 3, column 3: YAML 1.2 has no merge keys"},
		{"a: *b\n", "line 1, column 1: unknown anchor 'b' referenced"},
		{"a: .inf", "line 1, column 4: JSON has no number for .inf"},
		{"a: 1e999", "line 1, column 4: number 1e999 does not fit into 64 bits"},
		{"a: 18446744073709551616", "line 1, column 4: integer 18446744073709551616 does not fit"},
		{"a: !!binary '*'", "line 1, column 4: !!binary: this is no base64"},
		{"a: 1\n---\nb: 2\n", "line 2, column 1: a second document"},
		{"a: 1\n  b: 2\n", "line 2, column 3: mapping values are not allowed"},
		{"a: [1\n", "did not find expected"},
		{"a: \x01\n", "line 1, column 4: control character U+0001"},
		{"é: \xff\n", "line 1, column 4: the document is not UTF-8"},
		{"a: !mount\n", "line 1, column 4: a mount needs a name"},
		{"a: !mount ''\n", "line 1, column 4: a mount needs a name"},
		{"a: !mount [/x]\n", "line 1, column 4: !mount takes the path"},
		{"a: !mount {rights: read}\n", "line 1, column 4: !mount: path is missing"},
		{"a: !mount {path: [/x]}\n", "line 1, column 18: !mount takes the path"},
		{"a: !mount {path: /x, right: read}\n", `line 1, column 22: unknown key "right"; there are path, rights`},
		{"a: !mount {path: /x, rights: [read, fly]}\n", `line 1, column 37: unknown right "fly"`},
		{"a: !mount {path: /x, rights: [read, read]}\n", "line 1, column 37: right read is there twice"},
		{"a: !mount {path: /x, rights: []}\n", "line 1, column 30: a mount without rights"},
		{"a: !mount /data/../etc\n", "line 1, column 4: mount \"/data/../etc\": a mount is named by its path in the container"},
		{"a: !mount ..\n", "a mount is named by its path in the container"},
		{"a: !mount '*'\nb: !mount '*/..'\n", "line 2, column 4: mount"},
		{"a: !listen 80\n", "line 1, column 4: !listen takes {tcp: PORT} or {udp: PORT}"},
		{"a: !listen {tcp: 80, udp: 80}\n", "one of them"},
		{"a: !listen {}\n", "one of them"},
		{"a: !listen {tcp: 0}\n", `line 1, column 18: "0" is no port`},
		{"a: !listen {tcp: 65536}\n", `line 1, column 18: "65536" is no port`},
		{"a: !listen {tcp: 1-2}\n", `"1-2" is no port`},
		{"a: !listen {sctp: 80}\n", `line 1, column 13: unknown key "sctp"; there are tcp, udp`},
		{"a: !server {app: 1}\n", "line 1, column 18: Switchboard label keys and values must be strings"},
		{"a: !server {1: app}\n", "line 1, column 13: Switchboard label keys and values must be strings"},
		{"a: !server {app: [x]}\n", "line 1, column 18: Switchboard label keys and values must be strings"},
		{"a: !client {app: !env HOME}\n", "line 1, column 18: Switchboard label keys and values must be strings"},
		{"a: !server {app: x, app: y}\n", `line 1, column 21: key "app" is already there`},
		{"a: !server {'': x}\n", "line 1, column 13: a label has a key"},
		{"a: !server x\n", "line 1, column 4: !server and !client take a mapping of labels"},
		{"a: !secret\n", `line 1, column 4: !secret: "" is no name`},
		{"a: !secret {}\n", "line 1, column 4: !secret takes a name"},
		{"a: !env A=B\n", `line 1, column 4: !env: "A=B" is no name`},
		{"a: !env '*'\n", `line 1, column 4: !env: "*" is no name`},
		{"a: !random 5\n", "line 1, column 4: !random takes no value"},
		{"a: !container_log {}\n", "line 1, column 4: !container_log takes no value"},
	} {
		_, err := document.Parse([]byte(c.text))
		var at *grant.Error
		if !errors.As(err, &at) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: got %v, want %s", c.text, err, c.want)
		} else if at.Pos.Line == 0 || at.Pos.Column == 0 {
			t.Errorf("%q: an error without its place: %v", c.text, err)
		}
	}
}

// bombs are documents that are small, or are refused, but would become large if they were read without bounds.
func bombs() map[string]string {
	laughs := "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
	for i := 1; i < 30; i++ {
		n := string(rune('a' + i))
		prev := "a0"
		if i > 1 {
			prev = string(rune('a' + i - 1))
		}
		laughs += n + ": &" + n + " [" + strings.Repeat("*"+prev+", ", 9) + "*" + prev + "]\n"
		if i == 25 {
			break
		}
	}
	full := func(unit string) string { return strings.Repeat(unit, grant.MaxDocument/len(unit)) }
	return map[string]string{
		"aliases of aliases":             laughs,
		"an alias of itself":             "a: &a [*a, *a, *a]\n",
		"a mapping of itself":            "&a {k: *a, l: *a}\n",
		"ten megabytes":                  "a: " + strings.Repeat("x", 10<<20),
		"brackets":                       full("["),
		"braces":                         full("{a: "),
		"dashes":                         full("- "),
		"keys of keys":                   full("? "),
		"many items":                     full("- a\n"),
		"many empty items":               full("-\n"),
		"many anchors":                   full("- &a b\n"),
		"comments":                       "a: b\n" + full("- #c\n"),
		"tags of a long prefix":          "%TAG ! " + strings.Repeat("p", 100_000) + "\n---\n" + strings.Repeat("- !a\n", 30_000),
		"tags of a prefix in a new line": "%TAG ! " + strings.Repeat("p", 200) + "\n---\n" + full("- !a\n")[:200_000],
		"many directives":                full("%TAG !a! b\n"),
		"many grants":                    full("- !clock\n"),
		"numbers":                        "a: " + strings.Repeat("9", 200_000),
	}
}

func TestBombsAreRefusedWithinBounds(t *testing.T) {
	for name, text := range bombs() {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := document.Parse([]byte(text))
		runtime.ReadMemStats(&after)
		var at *grant.Error
		if !errors.As(err, &at) {
			t.Errorf("%s: %v", name, err)
		}
		if len(err.Error()) > 1000 {
			t.Errorf("%s: an error of %d bytes", name, len(err.Error()))
		}
		// The sum of all allocations bounds the work, too, on a machine under any load. The race
		// detector adds to it: sync.Pool then forgets most of its objects. Without bounds the
		// aliases alone would take all memory there is.
		if used := after.TotalAlloc - before.TotalAlloc; used > 512<<20 {
			t.Errorf("%s: %d MiB were allocated", name, used>>20)
		} else {
			t.Logf("%s: %d KiB, %v", name, used>>10, err)
		}
	}
}

const policyText = `
rules:
- for: {owner: cri, namespace: web-*}
  allow:
  - !container_log
  - !mount {path: /data, rights: [read]}
  - !listen {tcp: 1024-2048}
  - !env
- for: {image: "registry.example/*/web:*"}
  allow: [!mount "*", !server {app: db}, !secret "*"]
- allow: [!clock ]
board:
- {client: {owner: cri, namespace: ops}, server: {namespace: web-*}}
`

func TestAPolicyAllowsWhatTheRulesForAProgramAllowTogether(t *testing.T) {
	p, err := document.ParsePolicy([]byte(policyText))
	if err != nil {
		t.Fatal(err)
	}
	const forAll, web = "!clock", "!container_log, !mount {path: /data, rights: [read]}, !listen {tcp: 1024-2048}, !env *, !clock"
	for _, c := range []struct {
		who  document.Subject
		want string
	}{
		{document.Subject{}, forAll},
		{document.Subject{Owner: "cri", Namespace: "web-1"}, web},
		{document.Subject{Owner: "nomad", Namespace: "web-1"}, forAll},
		{document.Subject{Owner: "cri", Namespace: "web"}, forAll},
		{document.Subject{Owner: "cri", Image: "registry.example/a/b/web:2"}, "!mount {path: *, rights: [read, write]}, !server {app: db}, !clock, !secret *"},
		{document.Subject{Owner: "cri", Image: "evil/registry.example/a/web:2"}, forAll},
	} {
		if got := p.For(c.who).String(); got != c.want {
			t.Errorf("%+v: %s", c.who, got)
		}
	}
}

func TestAPolicyOpensRealmsOfTheBoard(t *testing.T) {
	p, err := document.ParsePolicy([]byte(policyText))
	if err != nil {
		t.Fatal(err)
	}
	ops, web := board.Realm{Owner: "cri", Namespace: "ops"}, board.Realm{Owner: "nomad", Namespace: "web-1"}
	for _, c := range []struct {
		client, server board.Realm
		open           bool
	}{{ops, web, true}, {web, ops, false}, {ops, board.Realm{Owner: "cri", Namespace: "web"}, false}, {board.Realm{Owner: "cli", Namespace: "ops"}, web, false}} {
		if got := p.Board().Open(c.client, c.server); got != c.open {
			t.Errorf("%s to %s: %v", c.client, c.server, got)
		}
	}
}

func TestAWrongPolicyIsRefusedWithItsPlace(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"[]", "line 1, column 1: the policy must be a mapping of rules"},
		{"{}", "line 1, column 1: the policy needs a list of rules"},
		{"rules: {}", "the policy needs a list of rules"},
		{"rules: [a]", "line 1, column 9: a rule must be a mapping of for, allow"},
		{"rules: [{for: {owner: cri}}]", "line 1, column 9: a rule needs a list of allowed grants"},
		{"rules: [{for: {owner: 1}, allow: []}]", "line 1, column 23: owner must be a string"},
		{"rules: [{for: {node: a}, allow: []}]", `line 1, column 16: unknown key "node"`},
		{"rules: [{allow: [x]}]", "line 1, column 18: a rule allows grants"},
		{"rules: [{allow: [!listen {tcp: 5-4}]}]", `"5-4" is no port`},
		{"rules: [{allow: [!fly ]}]", "line 1, column 18: unknown tag !fly"},
		{"{rules: [], board: {}}", "line 1, column 20: board must be a list"},
		{"{rules: [], board: [{client: {}}]}", "line 1, column 21: a rule of the board needs client and server"},
		{"{rules: [], board: [{client: {}, server: {owner: 1}}]}", "line 1, column 50: owner must be a string"},
		{"{rules: [], board: [{client: {image: x}, server: {}}]}", `unknown key "image"`},
		{"rule: []", `unknown key "rule"`},
	} {
		if _, err := document.ParsePolicy([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", c.text, err, c.want)
		}
	}
}

func FuzzDocument(f *testing.F) {
	f.Add([]byte("%TAG ! tag:nuxi.nl,2015:cloudabi/kubernetes/\n---\nlog: !container_log stderr\nroot: !mount {path: /data, rights: [read]}\n"))
	f.Add([]byte("a: &x {l: !listen {tcp: 80}, v: [1, 0x1f, 1.5e3, !!binary aGk=]}\nb: *x\n? !env HOME\n"))
	f.Add([]byte(policyText))
	f.Fuzz(func(t *testing.T, data []byte) {
		_, _ = document.ParsePolicy(data)
		doc, err := document.Parse(data)
		if err != nil {
			var at *grant.Error
			if !errors.As(err, &at) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		none, denied := grant.Narrow(doc, grant.NewSet())
		if grant.Of(none).String() != "nothing" {
			t.Fatalf("nothing is allowed, but %v remains", grant.Of(none))
		}
		if all, kept := grant.Narrow(doc, grant.Everything()); len(kept) != 0 || grant.Of(all).String() != grant.Of(doc).String() {
			t.Fatalf("everything is allowed, but %v was taken away", kept)
		}
		if r, err := grant.Resolve(none, request); err == nil && len(r.Descriptors) != 0 {
			t.Fatalf("%d descriptors after %v were denied", len(r.Descriptors), denied)
		}
		if r, err := grant.Resolve(doc, request); err == nil {
			for i, d := range r.Descriptors {
				if d.Number != grant.FirstNumber+i || d.Grant.Rights&^request.Mounts[d.Grant.Name] != 0 {
					t.Fatalf("descriptor %+v", d)
				}
			}
		}
	})
}

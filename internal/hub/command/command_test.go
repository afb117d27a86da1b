package command_test

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/command"
	"github.com/longshore/longshore/internal/hub/hubtest"
	"github.com/longshore/longshore/internal/hub/store/etcd/etcdtest"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// run runs a command line, and returns its output and its exit code.
func run(t *testing.T, input string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	var out, err bytes.Buffer
	code = command.Main(hubtest.Within(t), command.Options{Args: args, Stdin: strings.NewReader(input), Stdout: &out, Stderr: &err})
	return out.String(), err.String(), code
}

// TestTheCommandLine: an operator's commands, at the hub's socket and from elsewhere.
func TestTheCommandLine(t *testing.T) {
	h := hubtest.New(t)
	n := h.Join()
	hubtest.MustOpen(t, n, "")
	t.Chdir(t.TempDir())
	must := func(input string, args ...string) string {
		t.Helper()
		out, told, code := run(t, input, append([]string{"--socket", h.Socket}, args...)...)
		if code != 0 {
			t.Fatalf("%s: %s", args, told)
		}
		return out
	}
	refused := func(want string, args ...string) {
		t.Helper()
		if out, told, code := run(t, "", args...); code != 1 || !strings.Contains(told, want) {
			t.Errorf("%s: %d %s%s, want %q", args, code, out, told, want)
		}
	}
	const file = "name: shop\nservices: {web: {image: busybox, secrets: [key]}}\nsecrets: {key: {file: ./key}}\n"
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("key", "planted-secret")
	write("shop.yaml", file)
	must("", "apply", "-f", "shop.yaml")
	id := strings.TrimSpace(must("planted-secret", "secrets", "create", "mine", "-"))
	must("conf", "configs", "create", "conf", "-")
	for _, c := range []struct {
		want string
		args []string
	}{
		{"mine", []string{"secrets", "ls"}},
		{"shop_web", []string{"secrets", "ls"}},
		{id, []string{"secrets", "inspect", "mine"}},
		{`"data": "Y29uZg=="`, []string{"configs", "inspect", "conf"}},
		{`"hostname": "edge"`, []string{"nodes", "inspect", n.NodeID}},
		{`"secretName": "shop_key"`, []string{"services", "inspect", "shop_web"}},
		{"edge", []string{"nodes"}},
		{`"name": "shop_web"`, []string{"services", "--json"}},
		{"BEGIN CERTIFICATE", []string{"ca"}},
		{`"rotating": false`, []string{"ca", "--json"}},
		{"applied the stack shop", []string{"events"}},
		{`"what":"created the config conf"`, []string{"events", "--json"}},
	} {
		if out := must("", c.args...); !strings.Contains(out, c.want) || strings.Contains(out, "planted") {
			t.Errorf("%s: %s, want %q", c.args, out, c.want)
		}
	}
	refused("is in use by the following services: shop_web", "--socket", h.Socket, "secrets", "rm", "shop_key")
	must("", "secrets", "rm", "mine")
	must("", "node", "label", n.NodeID, "site=shop")
	if out := must("", "rm", "shop"); !strings.Contains(out, "remove") {
		t.Errorf("removed: %s", out)
	}
	events := strings.Split(strings.TrimSpace(must("", "events")), "\n")
	cursor, _, _ := strings.Cut(events[len(events)-2], " ")
	if rest := must("", "events", "--after", cursor); strings.TrimSpace(rest) != events[len(events)-1] || !strings.Contains(rest, "applied the stack shop") {
		t.Errorf("after %s: %s", cursor, rest)
	}

	// From elsewhere.
	must("", "operator", "certificate", "anna", "--scope", "apply")
	if info, err := os.Stat("anna.key"); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info, err)
	}
	refused("file exists", "--socket", h.Socket, "operator", "certificate", "anna")
	write("token", must("", "operator", "token", "robot"))
	anna := []string{"--hub", h.Remote, "--ca", "ca.crt", "--cert", "anna.crt", "--key", "anna.key"}
	robot := []string{"--hub", h.Remote, "--ca", "ca.crt", "--token-file", "token"}
	for _, who := range [][]string{anna, robot} {
		if out, told, code := run(t, "", append(who, "nodes")...); code != 0 || !strings.Contains(out, "edge") {
			t.Errorf("%s: %s%s", who, out, told)
		}
	}
	if _, told, code := run(t, "", append(anna, "apply", "-f", "shop.yaml")...); code != 0 {
		t.Error(told)
	}
	refused(`has the scope "read"`, append(robot, "apply", "-f", "shop.yaml")...)
	refused(`has the scope "apply"`, append(anna, "token")...)
	if out := must("", "operator", "ls"); !strings.Contains(out, "anna   certificate  apply") || !strings.Contains(out, "robot  token        read") {
		t.Errorf("operators: %s", out)
	}
	if out := must("", "events"); !strings.Contains(out, "certificate anna: applied the stack shop") {
		t.Errorf("events: %s", out)
	}
	must("", "operator", "rm", "robot")
	refused("belongs to no operator", append(robot, "nodes")...)
	refused("--hub needs --ca", "--hub", h.Remote, "nodes")
	refused("https://HOST:PORT", "--hub", "http://hub", "--ca", "ca.crt", "--token-file", "token", "nodes")
	if err := os.Chmod("token", 0o644); err != nil {
		t.Fatal(err)
	}
	refused("give it mode 0600", append(robot, "nodes")...)
}

// TestRekey: a hub starts with the current wrapping of its key, not with an earlier one.
func TestRekey(t *testing.T) {
	dir := storetest.Dir(t)
	h := hubtest.New(t, func(o *hub.Options) { o.Store.Open = etcdtest.In(dir) })
	h.Join()
	before := h.CA.Authority.Token()
	h.Stop()
	t.Chdir(t.TempDir())
	for name, text := range map[string]string{"old": storetest.Passphrase, "new": "another one"} {
		if err := os.WriteFile(name, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		want string
		args []string
	}{
		{"--new-passphrase-file or --new-kms-command", []string{"--passphrase-file", "old"}},
		{"--passphrase-file or --kms-command", []string{"--new-passphrase-file", "old"}},
		{"the passphrase is wrong", []string{"--passphrase-file", "new", "--new-passphrase-file", "new"}},
		{"", []string{"--passphrase-file", "old", "--new-passphrase-file", "new"}},
		{"the passphrase is wrong", []string{"--passphrase-file", "old", "--new-passphrase-file", "new"}},
	} {
		out, told, code := run(t, "", append([]string{"rekey", "--dir", dir}, c.args...)...)
		if (code == 0) != (c.want == "") || !strings.Contains(told, c.want) || out != "" {
			t.Errorf("%s: %d %s%s, want %q", c.args, code, out, told, c.want)
		}
	}
	h.Restart(func(o *hub.Options) { o.Store.Passphrase = []byte("another one") })
	if h.CA.Authority.Token() != before {
		t.Error("the token is another one")
	}
}

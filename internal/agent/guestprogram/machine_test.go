package guestprogram

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestRoles(t *testing.T) {
	for _, tt := range []struct {
		args []string
		pid  int
		want role
	}{
		{[]string{"/init"}, 1, first},
		{[]string{"/sbin/init", "splash", "single"}, 1, first},
		{[]string{"/usr/bin/kata-agent"}, 1, first},
		{[]string{"/longshore-guest"}, 1, first},
		{nil, 1, first},
		{[]string{"/longshore-guest", "--listen", "unix:///x"}, 1, plain},
		{[]string{"longshore-guest"}, 7, plain},
		{[]string{"/usr/bin/kata-agent", "--config", "x"}, 7, service},
	} {
		if got := roleOf(tt.args, tt.pid); got != tt.want {
			t.Errorf("%q with pid %d: %d, want %d", tt.args, tt.pid, got, tt.want)
		}
	}
}

// TestWhichOptionOutranksWhich: the environment, the command line, the file.
func TestWhichOptionOutranksWhich(t *testing.T) {
	file := filepath.Join(t.TempDir(), "kata.toml")
	if err := os.WriteFile(file, []byte("server_addr = 'vsock://-1:1'\nlog_level = 'warn'\nlog_vport = 9\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	env := map[string]string{"KATA_AGENT_SERVER_ADDR": "vsock://-1:3"}
	o, err := read("agent.config_file="+file+" agent.server_addr=vsock://-1:2 agent.log=debug", "", func(name string) (string, bool) { v, ok := env[name]; return v, ok })
	if err != nil || o.Listen.Port != 3 || o.Log != slog.LevelDebug || o.LogPort != 9 {
		t.Errorf("%v, %+v", err, o)
	}
	none := func(string) (string, bool) { return "", false }
	if _, err := read("agent.config_file=/nowhere", "", none); err == nil || !strings.Contains(err.Error(), "/nowhere") {
		t.Errorf("a file that is not there: %v", err)
	}
	if err := os.WriteFile(file, []byte("log_level = 7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := read("", file, none); err == nil || !strings.Contains(err.Error(), file+": option file: line 1: log_level") {
		t.Errorf("a malformed file: %v", err)
	}
}

// TestFirstPolicy: the named path wins, then Kata's if it exists, even as a dangling link.
func TestFirstPolicy(t *testing.T) {
	usual := filepath.Join(t.TempDir(), "default-policy.rego")
	for _, tt := range []struct{ named, want string }{{"/p.rego", "/p.rego"}, {"", ""}} {
		if got, err := firstPolicy(tt.named, usual); err != nil || got != tt.want {
			t.Errorf("%q: %q, %v", tt.named, got, err)
		}
	}
	if err := os.Symlink("nowhere", usual); err != nil {
		t.Fatal(err)
	}
	if got, err := firstPolicy("", usual); err != nil || got != usual {
		t.Errorf("a link that leads nowhere: %q, %v", got, err)
	}
}

package driver

import (
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
)

// TestAuthorsNameServicesOfTheNetwork: files and sockets of the node are the operator's.
func TestAuthorsNameServicesOfTheNetwork(t *testing.T) {
	for _, tt := range []struct{ name, option, value, refusal string }{
		{"syslog", "", "", ""},
		{"syslog", "syslog-address", "tcp://logs:514", ""},
		{"syslog", "syslog-address", "tcp+tls://logs:514", ""},
		{"syslog", "syslog-address", "unixgram:///dev/log", ""},
		{"syslog", "syslog-address", "unix:///dev/../run/docker.sock", "log service /dev/../run/docker.sock: a socket of the node other than /dev/log belongs to the node's operator"},
		{"syslog", "syslog-address", "UNIX:///run/docker.sock", "belongs to the node's operator, who may name it in [logs]"},
		{"syslog", "syslog-tls-ca-cert", "/etc/shadow", "log option syslog-tls-ca-cert: a file of the node belongs to the node's operator"},
		{"syslog", "syslog-tls-cert", "/c", "log option syslog-tls-cert: a file"},
		{"syslog", "syslog-tls-key", "/k", "log option syslog-tls-key: a file"},
		{"journald", "", "", ""},
		{"fluentd", "", "", ""},
		{"fluentd", "fluentd-address", "tls://logs:24224", ""},
		{"fluentd", "fluentd-address", "unix:///run/longshore/control.sock", "log service /run/longshore/control.sock: a socket"},
		{"fluentd", "fluentd-address", "x", ""},
		{"json-file", "", "", ""},
		{"json-file", "tag", "x", "has no options here"},
		{"none", "", "", "the files of the log are needed"},
		{"gelf", "", "", "is not supported"},
	} {
		opts := map[string]string{}
		if tt.option != "" {
			opts[tt.option] = tt.value
		}
		d, err := Authored(tt.name, opts, nil, nil)
		if foreign := tt.name == "fluentd" || strings.Contains(tt.value, "logs:"); err == nil && d.Foreign != foreign {
			t.Errorf("%s %s=%s: foreign is %v", tt.name, tt.option, tt.value, d.Foreign)
		}
		if tt.refusal == "" && err != nil || tt.refusal != "" && (err == nil || !strings.Contains(err.Error(), tt.refusal)) {
			t.Errorf("%s %s=%s: %v", tt.name, tt.option, tt.value, err)
		}
	}
}

func TestLines(t *testing.T) {
	got, err := Lines("\n a=b=c \nd=\n")
	if err != nil || len(got) != 2 || got["a"] != "b=c" || got["d"] != "" {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{"a", "=b", "a=b\na=c"} {
		if _, err := Lines(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// TestTheNodesDriver: for containers that name none, and not for those with a log of another kind.
func TestTheNodesDriver(t *testing.T) {
	node := Config{Driver: "syslog", Options: map[string]string{"syslog-address": "unix:///run/log", "labels": "team", "cache-max-size": "1m", "cache-max-file": "5"}}
	if err := node.Validate(); err != nil {
		t.Fatal(err)
	}
	cri, raw := []core.Sink{{Format: core.FormatCRI, Stdout: true, Stderr: true}}, []core.Sink{{Format: core.FormatRaw, Stdout: true}, {Format: core.FormatRaw, Stderr: true}}
	for name, tt := range map[string]struct {
		own   *core.LogDriver
		sinks []core.Sink
		want  string
		more  int
	}{
		"none named":       {nil, cri, "syslog", 0},
		"no name":          {&core.LogDriver{Image: "busybox"}, cri, "syslog", 0},
		"FIFOs":            {nil, raw, "syslog", 1},
		"files alone":      {&core.LogDriver{Name: "json-file"}, cri, "", 0},
		"its own":          {&core.LogDriver{Name: "journald"}, raw, "journald", 1},
		"no log":           {nil, nil, "", 0},
		"no log, one asks": {&core.LogDriver{Name: "journald"}, nil, "error", 0},
	} {
		cfg := core.ContainerConfig{Labels: map[string]string{"team": "x"}, LogDriver: tt.own, IO: core.IO{Sinks: tt.sinks}}
		err := node.Complete(&cfg, len(tt.sinks) == 1, core.Sink{Format: core.FormatCRI, MaxBytes: 7, MaxFiles: 8})
		got := ""
		if cfg.LogDriver != nil {
			got = cfg.LogDriver.Name
		}
		if err != nil {
			got = "error"
		}
		if got != tt.want || len(cfg.IO.Sinks) != len(tt.sinks)+tt.more {
			t.Errorf("%s: %q with %d logs, %v", name, got, len(cfg.IO.Sinks), err)
		}
		if got == "syslog" && cfg.LogDriver.Attributes["team"] != "x" {
			t.Errorf("%s: attributes %v", name, cfg.LogDriver.Attributes)
		}
		if got == "syslog" && tt.more == 1 && (cfg.IO.Sinks[2].MaxBytes != 1<<20 || cfg.IO.Sinks[2].MaxFiles != 5) {
			t.Errorf("%s: %+v", name, cfg.IO.Sinks[2])
		}
	}
	for _, bad := range []Config{{Driver: "json-file"}, {Options: map[string]string{"tag": "x"}}, {Driver: "syslog", Options: map[string]string{"x": "y"}}} {
		if err := bad.Validate(); err == nil {
			t.Errorf("%+v is valid", bad)
		}
	}
	missing := Config{Driver: "syslog", Options: map[string]string{"syslog-address": "tcp+tls://a", "syslog-tls-ca-cert": "/missing"}}
	if err := missing.Validate(); err != nil {
		t.Error(err)
	}
	if err := missing.CheckFiles(); err == nil {
		t.Error("a missing file is no fault")
	}
}

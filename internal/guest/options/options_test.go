package options_test

import (
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/guest/options"
)

func TestCommandLine(t *testing.T) {
	for _, tt := range []struct {
		name, line string
		want       func(o *options.Options)
	}{
		{"nothing is said", "", func(*options.Options) {}},
		{"others' options", "quiet panic=1 agent agentlog=x systemd.unit=kata-containers.target -- -x", func(*options.Options) {}},
		{"levels", "agent.log=critical\n", func(o *options.Options) { o.Log = slog.LevelError }},
		{"the last one holds", "agent.log=warn agent.log=trace", func(o *options.Options) { o.Log = slog.LevelDebug }},
		{"an address of vsock", "agent.server_addr=vsock://3:2048", func(o *options.Options) { o.Listen = options.Address{CID: 3, Port: 2048} }},
		{"an address of a socket", `agent.server_addr="unix:///run/a b.sock"`, func(o *options.Options) { o.Listen = options.Address{Path: "/run/a b.sock"} }},
		{"quotes around all of it", `"agent.server_addr=unix:///run/a b.sock"`, func(o *options.Options) { o.Listen = options.Address{Path: "/run/a b.sock"} }},
		{"the log's port", "agent.log_vport=1025", func(o *options.Options) { o.LogPort = 1025 }},
		{"a timeout", "agent.hotplug_timeout=20", func(o *options.Options) { o.HotplugTimeout = 20 * time.Second }},
		{"a timeout of nothing", "agent.hotplug_timeout=0", func(*options.Options) {}},
		{"CDI", "agent.cdi_timeout=5 agent.visible_cdi_devices", func(o *options.Options) { o.CDITimeout, o.VisibleCDI = 5*time.Second, true }},
		{"CDI as without", "agent.cdi_timeout=0 agent.visible_cdi_devices=false", func(*options.Options) {}},
		{"a timeout of ages", "agent.hotplug_timeout=9223372036854775807", func(o *options.Options) { o.HotplugTimeout = 24 * time.Hour }},
		{"cgroup v2", "systemd.unified_cgroup_hierarchy=1", func(o *options.Options) { o.Unified = true }},
		{"cgroup v1", "systemd.unified_cgroup_hierarchy=1 systemd.unified_cgroup_hierarchy=0", func(*options.Options) {}},
		{"no controller on v1", "cgroup_no_v1=all", func(o *options.Options) { o.Unified = true }},
		{"one controller not on v1", "cgroup_no_v1=memory", func(*options.Options) {}},
		{"a file", "agent.config_file=/etc/kata.toml", func(o *options.Options) { o.File = "/etc/kata.toml" }},
		{"options without effect", "agent.trace agent.debug_console agent.trace=false agent.mem_agent_psi_path=/x", func(o *options.Options) {
			o.Unserved = []string{"debug_console", "mem_agent_psi_path", "trace"}
		}},
		{"a policy, which the host does not choose", "agent.policy_file=/run/mine.rego", func(o *options.Options) { o.Unknown = []string{"policy_file"} }},
		{"the control API's port", "agent.control_vport=1026", func(o *options.Options) { o.ControlPort = 1026 }},
		{"paused containers", "agent.reclaim_paused", func(o *options.Options) { o.ReclaimPaused = true }},
		{"paused containers as without", "agent.reclaim_paused=0", func(*options.Options) {}},
		{"options that nobody has", "agent.b agent.a=1 agent.b=2", func(o *options.Options) { o.Unknown = []string{"a", "b"} }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, want := options.Default(), options.Default()
			tt.want(&want)
			if err := got.CommandLine(tt.line); err != nil || !reflect.DeepEqual(got, want) {
				t.Errorf("%q: %v, %+v, want %+v", tt.line, err, got, want)
			}
		})
	}
}

func TestMalformedOptionsAreNamed(t *testing.T) {
	for _, line := range []string{
		"agent.log", "agent.log=loud", "agent.server_addr=", "agent.server_addr=tcp://1.2.3.4:5", "agent.server_addr=unix://run/x", "agent.server_addr=vsock://x:1",
		"agent.server_addr=vsock://-1:0", "agent.server_addr=vsock://-2:1024", "agent.server_addr=vsock://3", "agent.server_addr=unix:///" + strings.Repeat("x", 200),
		"agent.log_vport=-1", "agent.log_vport=4294967295", "agent.hotplug_timeout=soon", "agent.cdi_timeout=soon", "agent.visible_cdi_devices=perhaps", "agent.hotplug_timeout=-1", "agent.config_file=relative",
		"agent.debug_console_vport=x", "agent.container_pipe_size=1k", "agent.guest_components_procs=most", "agent.trace=maybe", "systemd.unified_cgroup_hierarchy=yes",
	} {
		o := options.Default()
		err := o.CommandLine("quiet " + line + " agent.log=debug")
		name, _, _ := strings.Cut(line, "=")
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), name+": ") {
			t.Errorf("%s: %v", line, err)
		}
		if err != nil && len(err.Error()) > 300 {
			t.Errorf("%s: an error of %d bytes", line, len(err.Error()))
		}
	}
}

func TestOptionFile(t *testing.T) {
	got := options.Default()
	err := got.FileText(`# of the guest's image
server_addr = "vsock://-1:1027" # where
log_level='debug'
hotplug_timeout = 1_0
unified_cgroup_hierarchy = true
dev_mode = false
policy_file = '/etc/policy.rego'
other = "a \"quoted\" # text"
`)
	want := options.Default()
	want.Listen.Port, want.Log, want.HotplugTimeout, want.Unified = 1027, slog.LevelDebug, 10*time.Second, true
	want.Unserved, want.Unknown, want.PolicyFile = []string{"devmode"}, []string{"other"}, "/etc/policy.rego"
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %+v, want %+v", err, got, want)
	}
	for file, says := range map[string]string{
		"\n[endpoints]\n": "line 2: ", "log": "line 1: ", "= 1": "line 1: ", "a.b = 1": "line 1: ", "log_level = debug": "line 1: log_level: ", `log = "loud"`: "line 1: log: ",
		"log = 'info' 'x'": "line 1: log: ", "log = 'info": "line 1: log: ", `log = "\q"`: "line 1: log: ", "log = ": "line 1: log: ", "x = 1_": "line 1: x: ", "policy_file = 'p.rego'": "line 1: policy_file: ",
		"log = 'info'\nlog = 'warn'": "line 2: log: ", "\xff": "UTF-8",
	} {
		o := options.Default()
		if err := o.FileText(file); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", file, err, says)
		}
	}
}

func TestEnvironment(t *testing.T) {
	env := map[string]string{"KATA_AGENT_SERVER_ADDR": "unix:///run/x", "KATA_AGENT_LOG_LEVEL": "warn", "KATA_AGENT_TRACING": "", "KATA_AGENT_POLICY_FILE": "/run/p.rego"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	got, want := options.Default(), options.Default()
	want.Listen, want.Log, want.PolicyFile = options.Address{Path: "/run/x"}, slog.LevelWarn, "/run/p.rego"
	if err := got.Environment(lookup); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %+v, want %+v", err, got, want)
	}
	env["KATA_AGENT_LOG_LEVEL"] = "loud"
	if err := got.Environment(lookup); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "KATA_AGENT_LOG_LEVEL") {
		t.Errorf("%v", err)
	}
}

// FuzzCommandLine: no command line makes the agent panic, and an accepted one has a usable address
// and level.
func FuzzCommandLine(f *testing.F) {
	for _, s := range []string{
		"", "quiet agent.log=debug agent.server_addr=vsock://-1:1024", `"agent.log=info" agent.https_proxy="a b`, "agent.=1 agent.hotplug_timeout=0", "cgroup_no_v1=all",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, line string) {
		o := options.Default()
		if err := o.CommandLine(line); err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("class of %v", err)
			}
			return
		}
		usable(t, o)
	})
}

// FuzzOptionFile is FuzzCommandLine for files.
func FuzzOptionFile(f *testing.F) {
	for _, s := range []string{"", "log_level = \"info\"\n", "a = 'x' # y\n[b]\n", "server_addr = \"\\u0000\"", "x = 1_0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, file string) {
		o := options.Default()
		if err := o.FileText(file); err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("class of %v", err)
			}
			return
		}
		usable(t, o)
	})
}

func usable(t *testing.T, o options.Options) {
	t.Helper()
	if again, err := options.ParseAddress(o.Listen.String()); err != nil || again != o.Listen {
		t.Errorf("address %v: %v, %v", o.Listen, again, err)
	}
	if o.HotplugTimeout <= 0 || o.HotplugTimeout > 24*time.Hour {
		t.Errorf("timeout %v", o.HotplugTimeout)
	}
}

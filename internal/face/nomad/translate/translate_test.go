package translate_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/face/nomad/translate"
)

const alloc = "5f0f0c4e-8d5c-4f3d-9a5d-000000000001"

// bench makes tasks in a directory.
type bench struct {
	t       *testing.T
	dir     string
	session plugin.Session
}

func newBench(t *testing.T) *bench {
	t.Helper()
	b := &bench{t: t, dir: t.TempDir(), session: plugin.Session{Config: plugin.Default(), Name: "longshore"}}
	for _, d := range []string{"alloc/logs", "web/local", "web/secrets"} {
		if err := os.MkdirAll(filepath.Join(b.dir, alloc, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

func (b *bench) read(config map[string]any, change ...func(*nomaddriver.TaskConfig)) (translate.Task, error) {
	if config["image"] == nil && config["rootfs"] == nil && b.session.Name != plugin.ExecName {
		config["image"] = "redis:7"
	}
	t := nomadtest.Task(b.dir, alloc, "web", "aaaaaaaa", config)
	for _, f := range change {
		f(t)
	}
	return translate.Read(b.session, t)
}

// spec is the whole way to the OCI spec.
func (b *bench) spec(config map[string]any, change ...func(*nomaddriver.TaskConfig)) *specs.Spec {
	b.t.Helper()
	task, err := b.read(config, change...)
	if err != nil {
		b.t.Fatal(err)
	}
	c, err := task.Container("sandbox", translate.Images{Root: core.Image{ID: "sha256:00"}})
	if err != nil {
		b.t.Fatal(err)
	}
	dir := b.t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "etc"), 0o755); err != nil {
		b.t.Fatal(err)
	}
	for name, text := range map[string]string{"passwd": "web:x:33:44::/srv:/bin/sh\n", "group": "web:x:44:\nextra:x:55:web\n"} {
		if err := os.WriteFile(filepath.Join(dir, "etc", name), []byte(text), 0o600); err != nil {
			b.t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		b.t.Fatal(err)
	}
	defer root.Close()
	s, _, err := c.Spec(b.t.Context(), core.Rootfs{FS: root, Image: &imagespec.ImageConfig{Cmd: []string{"serve"}, User: "web", Env: []string{"FROM=image"}, WorkingDir: "/srv"}})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

func mountAt(s *specs.Spec, target string) specs.Mount {
	i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == target })
	if i < 0 {
		return specs.Mount{}
	}
	return s.Mounts[i]
}

func TestATaskIsTranslatedWhole(t *testing.T) {
	b := newBench(t)
	s := b.spec(map[string]any{
		"args": []string{"--x"}, "env": map[string]any{"NOMAD_TASK_NAME": "own", "B": "2"}, "group_add": []string{"55"}, "cap_drop": []string{"CHOWN"}, "ulimit": map[string]any{"nofile": "3:4"},
		"tmpfs": []string{"/t:size=1k"}, "volumes": []string{"local:/conf:ro"}, "shm_size": 4096, "oom_score_adj": 7, "pids_limit": 9,
	}, func(c *nomaddriver.TaskConfig) {
		c.Mounts = []*nomaddriver.Mount{{TaskPath: "/alloc/data/vol", HostPath: "/srv/vol", PropagationMode: "host-to-task", Readonly: true}}
		c.Resources.AllocatedResources.Memory.MemoryMaxMb = 128
	})
	p := s.Process
	if diff := cmp.Diff([]string{"--x"}, p.Args); diff != "" || p.Cwd != "/srv" || p.User.UID != 33 || p.User.GID != 44 || !slices.Contains(p.User.AdditionalGids, 55) {
		t.Errorf("process %+v %s", p, diff)
	}
	for _, e := range []string{"FROM=image", "NOMAD_ALLOC_ID=" + alloc, "NOMAD_TASK_NAME=own", "B=2"} {
		if !slices.Contains(p.Env, e) {
			t.Errorf("the environment lacks %s: %q", e, p.Env)
		}
	}
	if *p.OOMScoreAdj != 7 || len(p.Rlimits) != 1 || p.Rlimits[0].Soft != 3 || slices.Contains(p.Capabilities.Bounding, "CAP_NET_RAW") || slices.Contains(p.Capabilities.Bounding, "CAP_CHOWN") {
		t.Errorf("process %+v, capabilities %v", p, p.Capabilities)
	}
	r := s.Linux.Resources
	if *r.Memory.Limit != 128<<20 || *r.Memory.Reservation != 64<<20 || *r.CPU.Shares != 100 || *r.Pids.Limit != 9 || r.CPU.Quota != nil {
		t.Errorf("resources %+v %+v", r.Memory, r.CPU)
	}
	dir := filepath.Join(b.dir, alloc)
	for target, want := range map[string]struct{ source, option string }{
		"/alloc": {dir + "/alloc", "rbind"}, "/alloc/logs": {dir + "/alloc/logs", "ro"}, "/local": {dir + "/web/local", "rbind"}, "/secrets": {dir + "/web/secrets", "rbind"},
		"/alloc/data/vol": {"/srv/vol", "rslave"}, "/conf": {dir + "/web/local", "ro"}, "/t": {"tmpfs", "size=1024"}, "/dev/shm": {"tmpfs", "size=4096"},
	} {
		if m := mountAt(s, target); m.Source != want.source || !slices.Contains(m.Options, want.option) {
			t.Errorf("mount at %s: %+v", target, m)
		}
	}
	at := func(target string) int {
		return slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == target })
	}
	if at("/alloc") > at("/alloc/logs") || at("/alloc") > at("/alloc/data/vol") {
		t.Error("a mount hides what lies below it")
	}
	if s.Linux.Seccomp == nil {
		t.Error("no filter")
	}
}

func TestMemoryAndCPU(t *testing.T) {
	b := newBench(t)
	for _, tc := range []struct {
		mb, most   int64
		config     map[string]any
		hard, soft int64
	}{
		{64, 0, map[string]any{}, 64, 0}, {64, 128, map[string]any{}, 128, 64}, {64, -1, map[string]any{}, 0, 64}, {64, 0, map[string]any{"memory_hard_limit": 96}, 96, 64},
	} {
		r := b.spec(tc.config, func(c *nomaddriver.TaskConfig) {
			c.Resources.AllocatedResources.Memory = &nomaddriver.AllocatedMemoryResources{MemoryMb: tc.mb, MemoryMaxMb: tc.most}
		}).Linux.Resources
		value := func(p *int64) int64 {
			if p == nil {
				return 0
			}
			return *p >> 20
		}
		if value(r.Memory.Limit) != tc.hard || value(r.Memory.Reservation) != tc.soft {
			t.Errorf("%+v: limit %d, reservation %d", tc, value(r.Memory.Limit), value(r.Memory.Reservation))
		}
	}
	r := b.spec(map[string]any{"cpu_hard_limit": true, "cpu_cfs_period": 50000}, func(c *nomaddriver.TaskConfig) { c.Resources.LinuxResources.CpusetCpus = "1" }).Linux.Resources
	if *r.CPU.Period != 50000 || *r.CPU.Quota != int64(0.05*float64(runtime.NumCPU())*50000) || r.CPU.Cpus != "1" {
		t.Errorf("cpu %+v", r.CPU)
	}
}

func TestNetworks(t *testing.T) {
	b := newBench(t)
	group := func(c *nomaddriver.TaskConfig) {
		c.NetworkIsolationSpec = &nomaddriver.NetworkIsolationSpec{
			Mode: nomaddriver.NetworkIsolationSpec_GROUP, Path: "/var/run/netns/x", HostsConfig: &nomaddriver.HostsConfig{Hostname: "grp", Address: "192.0.2.9"},
		}
	}
	ports := func(c *nomaddriver.TaskConfig) {
		c.Resources.Ports = []*nomaddriver.PortMapping{{Label: "http", Value: 21000, To: 80, HostIp: "192.0.2.1"}, {Label: "raw", Value: 21001}}
	}
	for name, tc := range map[string]struct {
		config   map[string]any
		change   func(*nomaddriver.TaskConfig)
		net, uts core.Namespace
		hostname string
		ports    int
	}{
		"nothing said":        {map[string]any{}, nil, core.Namespace{Mode: core.Host}, core.Namespace{Mode: core.Host}, "", 0},
		"a name for itself":   {map[string]any{"hostname": "box"}, nil, core.Namespace{Mode: core.Host}, core.Namespace{Mode: core.Shared}, "box", 0},
		"the group's":         {map[string]any{}, group, core.Namespace{Mode: core.Adopted, Path: "/var/run/netns/x"}, core.Namespace{Mode: core.Shared}, "grp", 0},
		"host in a group":     {map[string]any{"network_mode": "host"}, group, core.Namespace{Mode: core.Host}, core.Namespace{Mode: core.Host}, "", 0},
		"none":                {map[string]any{"network_mode": "none"}, nil, core.Namespace{Mode: core.Shared}, core.Namespace{Mode: core.Shared}, "web", 0},
		"ports of our bridge": {map[string]any{"ports": []string{"http", "raw"}}, ports, core.Namespace{Mode: core.Shared}, core.Namespace{Mode: core.Shared}, "web", 4},
	} {
		if tc.change == nil {
			tc.change = func(*nomaddriver.TaskConfig) {}
		}
		task, err := b.read(tc.config, tc.change)
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := task.Sandbox()
		if err != nil || cfg.Namespaces.Net != tc.net || cfg.Namespaces.UTS != tc.uts || cfg.Hostname != tc.hostname || len(cfg.Network.Ports) != tc.ports {
			t.Errorf("%s: %+v, %v", name, cfg, err)
		}
	}
	task, err := b.read(map[string]any{"ports": []string{"http"}, "extra_hosts": []string{"db:192.0.2.2"}}, ports)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := task.Sandbox()
	if err != nil || cfg.Network.Ports[0].Host != 21000 || cfg.Network.Ports[0].Container != 80 || cfg.Network.Ports[0].HostIP.String() != "192.0.2.1" || cfg.Network.Hosts["192.0.2.2"][0] != "db" {
		t.Errorf("%+v, %v", cfg.Network, err)
	}
	for text, config := range map[string]map[string]any{
		"no port \"other\"": {"ports": []string{"other"}}, "publishes no ports": {"ports": []string{"http"}, "network_mode": "task:db"}, "extra_hosts": {"extra_hosts": []string{"db"}},
	} {
		task, err := b.read(config, ports)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := task.Sandbox(); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), text) {
			t.Errorf("%v: %v", config, err)
		}
	}
}

// TestPortMapPublishesThePortsOfTheTasksOwnNetwork: all of them, and those that it names to its own ports.
func TestPortMapPublishesThePortsOfTheTasksOwnNetwork(t *testing.T) {
	session := plugin.Session{Config: plugin.Default(), Name: plugin.DockerName}
	config := nomadtest.Task(t.TempDir(), alloc, "web", "aaaaaaaa", map[string]any{"image": "redis:7", "port_map": map[string]any{"http-in": "80"}})
	if _, err := translate.Read(session, config); err == nil || !strings.Contains(err.Error(), "use ports") {
		t.Errorf("without such a network: %v", err)
	}
	config.Resources.AllocatedResources.Networks = []*nomaddriver.NetworkResource{{
		Ip: "192.0.2.1", ReservedPorts: []*nomaddriver.NetworkPort{{Label: "http-in", Value: 21000}}, DynamicPorts: []*nomaddriver.NetworkPort{{Label: "raw", Value: 21001}},
	}}
	task, err := translate.Read(session, config)
	if err != nil {
		t.Fatal(err)
	}
	sb, err := task.Sandbox()
	ip := netip.MustParseAddr("192.0.2.1")
	want := []core.Port{
		{Proto: "tcp", HostIP: ip, Host: 21000, Container: 80},
		{Proto: "udp", HostIP: ip, Host: 21000, Container: 80},
		{Proto: "tcp", HostIP: ip, Host: 21001, Container: 21001},
		{Proto: "udp", HostIP: ip, Host: 21001, Container: 21001},
	}
	if err != nil || !slices.Equal(sb.Network.Ports, want) {
		t.Errorf("ports %v, %v", sb.Network.Ports, err)
	}
}

// TestAMissingSocketOfDockerIsNoDirectory: where it is missing there is no dockerd, and the error names the
// job's constraint.
func TestAMissingSocketOfDockerIsNoDirectory(t *testing.T) {
	dir := t.TempDir()
	session := plugin.Session{Config: plugin.Default(), Name: plugin.DockerName}
	session.Volumes = true
	for _, name := range []string{"docker.sock", "other.sock"} {
		source := filepath.Join(dir, name)
		task, err := translate.Read(session, nomadtest.Task(dir, alloc, "web", "aaaaaaaa", map[string]any{"image": "redis:7", "volumes": []string{source + ":/sock"}}))
		if err == nil {
			err = task.MakeSources()
		}
		_, missing := os.Stat(source)
		if refused := err != nil && strings.Contains(err.Error(), "driver.docker.runtime is_not_set"); refused != (name == "docker.sock") || refused != os.IsNotExist(missing) {
			t.Errorf("%s: %v, %v", name, err, missing)
		}
	}
}

func TestPortsOfATaskWithoutItsOwnNetworkAreDiscarded(t *testing.T) {
	b := newBench(t)
	for _, mode := range []string{"host", "none"} {
		task, err := b.read(map[string]any{"ports": []string{"http"}, "network_mode": mode})
		if err != nil {
			t.Fatal(err)
		}
		cfg, err := task.Sandbox()
		if err != nil || len(cfg.Network.Ports) > 0 || len(task.Conf.Warnings) != 1 || !strings.Contains(task.Conf.Warnings[0], "they are discarded") {
			t.Errorf("%s: %+v, %q, %v", mode, cfg.Network, task.Conf.Warnings, err)
		}
	}
}

func TestHostGateway(t *testing.T) {
	b := newBench(t)
	for mode, want := range map[string]string{"bridge": core.HostGateway, "host": "127.0.0.1"} {
		task, err := b.read(map[string]any{"extra_hosts": []string{"node:host-gateway"}, "network_mode": mode})
		if err != nil {
			t.Fatal(err)
		}
		if cfg, err := task.Sandbox(); err != nil || len(cfg.Network.Hosts[want]) != 1 || cfg.Network.Hosts[want][0] != "node" {
			t.Errorf("%s: %v, %v", mode, cfg.Network.Hosts, err)
		}
	}
}

func TestHostGatewayWithoutAnAddressIsWarnedOf(t *testing.T) {
	b := newBench(t)
	task, err := b.read(map[string]any{"extra_hosts": []string{"node:host-gateway"}, "network_mode": "none"})
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := task.Sandbox()
	if err != nil || len(cfg.Network.Hosts) > 0 || len(task.Conf.Warnings) != 1 || !strings.Contains(task.Conf.Warnings[0], "node:host-gateway") {
		t.Errorf("%v, %q, %v", cfg.Network.Hosts, task.Conf.Warnings, err)
	}
	task, err = b.read(map[string]any{"extra_hosts": []string{":host-gateway"}})
	if err == nil {
		_, err = task.Sandbox()
	}
	if !errdefs.IsInvalidArgument(err) {
		t.Errorf("a line without a name: %v", err)
	}
}

func TestMissingSourcesOfVolumesAreMade(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0o022)) // the agent's
	b := newBench(t)
	outside := filepath.Join(t.TempDir(), "a/b")
	task := filepath.Join(b.dir, alloc, "web")
	if err := os.Symlink(outside, filepath.Join(task, "local/link")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name     string
		config   map[string]any
		volumes  bool
		made     string
		complete bool
	}{
		{"of the task", map[string]any{"volumes": []string{"local/x/y:/x"}}, false, filepath.Join(task, "local/x/y"), true},
		{"of the node", map[string]any{"volumes": []string{outside + ":/x"}}, true, outside, true},
		{"by a link", map[string]any{"volumes": []string{"local/link/z:/x"}}, false, filepath.Join(outside, "z"), false},
		{"a bind mount", map[string]any{"mount": []any{map[string]any{"type": "bind", "source": "local/none", "target": "/x"}}}, false, filepath.Join(task, "local/none"), false},
	} {
		b.session.Volumes = c.volumes
		task, err := b.read(c.config)
		if err != nil {
			t.Fatal(err)
		}
		err = task.MakeSources()
		if err == nil {
			_, err = task.Container("sandbox", translate.Images{})
		}
		info, missing := os.Stat(c.made)
		if c.complete != (err == nil && missing == nil && info.IsDir()) {
			t.Errorf("%s: %v, %v", c.name, err, missing)
		}
		if c.complete && missing == nil && (info.Mode().Perm() != 0o755 || info.Sys().(*syscall.Stat_t).Uid != uint32(os.Geteuid())) {
			t.Errorf("%s: the source is %v of user %d; docker's is 0755 of its daemon's user", c.name, info.Mode(), info.Sys().(*syscall.Stat_t).Uid)
		}
	}
	b.session.Volumes = false
	if _, err := b.read(map[string]any{"volumes": []string{filepath.Join(t.TempDir(), "no") + ":/x"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("not permitted: %v", err)
	}
}

func TestModesThatTheOperatorAllows(t *testing.T) {
	b := newBench(t)
	b.session.AllowedModes = map[string][]string{"pid": {"host"}, "ipc": {"h*"}}
	for mode, ok := range map[string]bool{"pid_mode": true, "ipc_mode": true, "uts_mode": false} {
		if _, err := b.read(map[string]any{mode: "host"}); (err == nil) != ok {
			t.Errorf("%s: %v", mode, err)
		}
	}
}

func TestWhatTheOperatorPermits(t *testing.T) {
	b := newBench(t)
	asks := []map[string]any{
		{"privileged": true},
		{"pid_mode": "host"},
		{"ipc_mode": "host"},
		{"security_opt": []string{"seccomp=unconfined"}},
		{"security_opt": []string{"systempaths=unconfined"}},
		{"volumes": []string{"/etc:/etc2"}},
		{"rootfs": "/"},
		{"cap_add": []string{"NET_ADMIN"}},
		{"devices": []any{map[string]any{"host_path": "/dev/null"}}},
		{"runtime": "crun"},
	}
	try := func(config map[string]any) error {
		task, err := b.read(config)
		if err != nil {
			return err
		}
		_, err = task.Container("sandbox", translate.Images{})
		return err
	}
	b.session.AllowRuntimes = []string{"native"}
	for _, ask := range asks {
		if err := try(ask); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "of the plugin") {
			t.Errorf("%v: %v", ask, err)
		}
	}
	b.session.AllowPrivileged, b.session.Volumes, b.session.AllowCaps, b.session.AllowRuntimes = true, true, []string{"all"}, nil
	for _, ask := range asks {
		if err := try(ask); err != nil {
			t.Errorf("permitted %v: %v", ask, err)
		}
	}
	if l := b.spec(map[string]any{"security_opt": []string{"systempaths=unconfined"}}).Linux; len(l.MaskedPaths)+len(l.ReadonlyPaths) > 0 {
		t.Errorf("unconfined system paths are masked %v, read-only %v", l.MaskedPaths, l.ReadonlyPaths)
	}
	if l := b.spec(map[string]any{}).Linux; len(l.MaskedPaths) == 0 || len(l.ReadonlyPaths) == 0 {
		t.Error("a task's system paths are neither masked nor read-only")
	}
	for want, config := range map[string]map[string]any{
		"longshore-default": {}, "mine": {"security_opt": []string{"apparmor=mine"}}, "": {"security_opt": []string{"apparmor=unconfined"}},
	} {
		if got := b.spec(config).Process.ApparmorProfile; got != want {
			t.Errorf("%v: AppArmor profile %q, want %q", config, got, want)
		}
	}
	if got := b.spec(map[string]any{"privileged": true}).Process.ApparmorProfile; got != "" {
		t.Errorf("a privileged task has the AppArmor profile %q", got)
	}
	b.session.AllowCaps = []string{"CHOWN"}
	if caps := b.spec(map[string]any{}).Process.Capabilities.Bounding; len(caps) != 1 || caps[0] != "CAP_CHOWN" {
		t.Errorf("capabilities %v", caps)
	}
}

// TestLinksDoNotLeadOut: a task's last start may have left anything in its
// directory.
func TestLinksDoNotLeadOut(t *testing.T) {
	b := newBench(t)
	if err := os.Symlink("/etc", filepath.Join(b.dir, alloc, "web/local/out")); err != nil {
		t.Fatal(err)
	}
	for _, config := range []map[string]any{{"volumes": []string{"local/out:/x"}}, {"rootfs": "local/out"}, {"volumes": []string{"local/none:/x"}}} {
		task, err := b.read(config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := task.Container("sandbox", translate.Images{}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%v: %v", config, err)
		}
	}
}

func TestLogs(t *testing.T) {
	b := newBench(t)
	sinks := func(config map[string]any, change ...func(*nomaddriver.TaskConfig)) []core.Sink {
		t.Helper()
		task, err := b.read(config, change...)
		if err != nil {
			t.Fatal(err)
		}
		c, err := task.Container("sandbox", translate.Images{})
		if err != nil {
			t.Fatal(err)
		}
		return c.IO.Sinks
	}
	if s := sinks(map[string]any{"logging": map[string]any{"max_files": 2, "max_file_size": 1}}); len(s) != 2 || s[0].MaxFiles != 2 || s[0].MaxBytes != 1<<20 || !s[1].Numbered {
		t.Errorf("%+v", s)
	}
	if s := sinks(map[string]any{"logging": map[string]any{"driver": "none"}}); s != nil {
		t.Errorf("%+v", s)
	}
	if s := sinks(map[string]any{}, func(c *nomaddriver.TaskConfig) { c.StdoutPath, c.StderrPath = "/dev/null", "/dev/null" }); s != nil {
		t.Errorf("%+v", s)
	}
	b.session.Logs = plugin.LogFIFO
	if s := sinks(map[string]any{}); len(s) != 2 || !strings.HasSuffix(s[0].Path, ".web.stdout.fifo") || s[0].Numbered || s[0].MaxBytes != 0 {
		t.Errorf("%+v", s)
	}
}

// TestWhatATaskMayDoAsDockersDriver: where the operator allows every capability a
// task has docker's default ones, without asking.
func TestWhatATaskMayDoAsDockersDriver(t *testing.T) {
	b := newBench(t)
	for _, tc := range []struct {
		name    string
		allowed []string
		raw     bool
	}{{plugin.DriverName, nil, false}, {plugin.DriverName, []string{"all"}, false}, {plugin.DockerName, nil, false}, {plugin.DockerName, []string{"all"}, true}, {plugin.DockerName, []string{"chown"}, false}} {
		b.session.Name, b.session.AllowCaps = tc.name, tc.allowed
		if got := b.spec(map[string]any{}).Process.Capabilities.Bounding; slices.Contains(got, "CAP_NET_RAW") != tc.raw {
			t.Errorf("as %s with %q allowed: %q", tc.name, tc.allowed, got)
		}
	}
}

// TestOwnersAreMapped: files of a task in a user namespace have the owners that they have without,
// and the filesystems that the namespace may not mount are the node's.
func TestOwnersAreMapped(t *testing.T) {
	b := newBench(t)
	task, err := b.read(map[string]any{"userns_mode": "auto", "volumes": []string{"local:/conf"}}, func(c *nomaddriver.TaskConfig) {
		c.NetworkIsolationSpec = &nomaddriver.NetworkIsolationSpec{Path: "/run/netns/group"}
	})
	if err != nil {
		t.Fatal(err)
	}
	sb, err := task.Sandbox()
	if err != nil || !sb.Users.Own || sb.Users.First != 0x60000000 || sb.Users.Ranges != 1024 {
		t.Errorf("sandbox %+v, %v", sb, err)
	}
	c, err := task.Container("sandbox", translate.Images{Root: core.Image{ID: "sha256:00"}})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	s, _, err := c.Spec(t.Context(), core.Rootfs{FS: root, Image: &imagespec.ImageConfig{Cmd: []string{"serve"}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, target := range []string{"/alloc", "/alloc/logs", "/local", "/secrets", "/conf"} {
		if m := mountAt(s, target); m.Type != "bind" || len(m.UIDMappings) > 0 { // the engine maps their owners
			t.Errorf("%s: %+v", target, m)
		}
	}
	if m := mountAt(s, "/sys"); m.Type != "bind" || !slices.Contains(m.Options, "ro") {
		t.Errorf("/sys: %+v", m)
	}
}

// TestATaskOfExecs has no image: its root is its directory, its program the file that exec finds,
// and any user has the capabilities in force.
func TestATaskOfExecs(t *testing.T) {
	b := newBench(t)
	b.session.Name = plugin.ExecName
	dir := filepath.Join(b.dir, alloc, "web")
	if err := os.WriteFile(filepath.Join(dir, "local/serve"), []byte("#!/bin/sh\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	task, err := b.read(map[string]any{"command": "serve", "args": []string{"now"}})
	if err != nil {
		t.Fatal(err)
	}
	c, err := task.Container("sandbox", translate.Images{})
	if err != nil || c.Root.Dir != dir || c.Stop.Signal != "SIGINT" {
		t.Fatalf("container %+v, %v", c, err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	s, _, err := c.Spec(t.Context(), core.Rootfs{FS: root})
	if err != nil {
		t.Fatal(err)
	}
	p := s.Process
	if diff := cmp.Diff([]string{"/local/serve", "now"}, p.Args); diff != "" || p.User.UID != 65534 || !slices.Contains(p.Env, "USER=nobody") {
		t.Errorf("process %+v %s", p, diff)
	}
	if !slices.Contains(p.Capabilities.Ambient, "CAP_NET_BIND_SERVICE") || !slices.Contains(p.Capabilities.Effective, "CAP_NET_BIND_SERVICE") {
		t.Errorf("capabilities %+v", p.Capabilities)
	}
	if st, err := os.Stat(filepath.Join(dir, "local/serve")); err != nil || st.Mode()&0o555 != 0o555 {
		t.Errorf("the program is %v, %v", st.Mode(), err)
	}
	if _, err := b.read(map[string]any{"image": "redis:7"}); err != nil {
		t.Errorf("a task with an image: %v", err)
	}
}

// TestLimitsOfPodmansJobs: they are checked against the task's memory.
func TestLimitsOfPodmansJobs(t *testing.T) {
	b := newBench(t)
	for _, tc := range []struct {
		config map[string]any
		want   specs.LinuxMemory
		text   string
	}{
		{map[string]any{"memory_reservation": "16m"}, specs.LinuxMemory{Limit: new(int64(64 << 20)), Reservation: new(int64(16 << 20))}, ""},
		{map[string]any{"memory_swap": "128m", "memory_swappiness": 10}, specs.LinuxMemory{Limit: new(int64(64 << 20)), Swap: new(int64(128 << 20)), Swappiness: new(uint64(10))}, ""},
		{map[string]any{"memory_swap": "-1"}, specs.LinuxMemory{Limit: new(int64(64 << 20)), Swap: new(int64(-1))}, ""},
		{map[string]any{"memory_reservation": "65m"}, specs.LinuxMemory{}, "is above the task's limit"},
		{map[string]any{"memory_swap": "63m"}, specs.LinuxMemory{}, "must not be below"},
	} {
		if tc.text == "" {
			if diff := cmp.Diff(&tc.want, b.spec(tc.config).Linux.Resources.Memory); diff != "" {
				t.Errorf("%v: %s", tc.config, diff)
			}
			continue
		}
		task, err := b.read(tc.config)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := task.Container("sandbox", translate.Images{Root: core.Image{ID: "sha256:00"}}); err == nil || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%v: %v, want %s", tc.config, err, tc.text)
		}
	}
}

package ocispec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestParseMountOptions(t *testing.T) {
	got := ParseMountOptions([]string{"rbind", "ro", "rw", "nosuid", "rslave", "rro", "size=4k", "", "mode=755"})
	want := MountOptions{
		Flags: unix.MS_BIND | unix.MS_REC | unix.MS_NOSUID, Propagation: unix.MS_SLAVE | unix.MS_REC,
		RecursiveSet: unix.MOUNT_ATTR_RDONLY, Data: []string{"size=4k", "mode=755"},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	if got := ParseMountOptions([]string{"rro", "rrw"}); got.RecursiveSet != 0 || got.RecursiveClear != unix.MOUNT_ATTR_RDONLY {
		t.Errorf("the later option did not win: %+v", got)
	}
}

func TestBindMounts(t *testing.T) {
	for _, c := range []struct {
		b    Bind
		want []string
	}{
		{Bind{Source: "/a", Target: "/b"}, []string{"rbind", "rprivate", "rw"}},
		{Bind{Source: "/a", Target: "/b", ReadOnly: true, Propagation: "rslave"}, []string{"rbind", "rslave", "ro"}},
		{Bind{Source: "/a", Target: "/b", ReadOnly: true, RecursiveReadOnly: true}, []string{"rbind", "rprivate", "rro"}},
		{Bind{Source: "/a", Target: "/b", NonRecursive: true, Propagation: "rshared"}, []string{"bind", "rshared", "rw"}},
		{Bind{Source: "a", Target: "/b"}, nil},
		{Bind{Source: "/a", Target: "b"}, nil},
		{Bind{Source: "/a", Target: "/b", Propagation: "loud"}, nil},
		{Bind{Source: "/a", Target: "/b", RecursiveReadOnly: true}, nil},
		{Bind{Source: "/a", Target: "/b", ReadOnly: true, RecursiveReadOnly: true, Propagation: "rslave"}, nil},
	} {
		m, err := c.b.Mount()
		if c.want == nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%+v: %v", c.b, err)
			}
			continue
		}
		if err != nil || !slices.Equal(m.Options, c.want) {
			t.Errorf("%+v: %v, %v", c.b, m.Options, err)
		}
	}
	m := func(o ...string) specs.Mount { return specs.Mount{Options: o} }
	for want, mounts := range map[string][]specs.Mount{"": {m("ro")}, "rslave": {m("rslave"), m("private")}, "rshared": {m("rslave"), m("shared")}} {
		if got := RootPropagation(mounts); got != want {
			t.Errorf("root propagation %q, want %q", got, want)
		}
	}
}

func TestCapabilities(t *testing.T) {
	base := []string{"CAP_KILL", "CAP_CHOWN"}
	all := len(AllCapabilities())
	for _, c := range []struct {
		add, drop []string
		want      []string
		n         int
	}{
		{nil, nil, []string{"CAP_CHOWN", "CAP_KILL"}, 2},
		{[]string{"net_admin", "CAP_SYS_TIME"}, []string{"kill"}, []string{"CAP_CHOWN", "CAP_NET_ADMIN", "CAP_SYS_TIME"}, 3},
		{[]string{"ALL"}, nil, nil, all},
		{[]string{"ALL"}, []string{"SYS_ADMIN", "chown"}, nil, all - 2},
		{nil, []string{"all"}, []string{}, 0},
		{[]string{"NET_RAW"}, []string{"ALL"}, []string{"CAP_NET_RAW"}, 1},
		{[]string{"ALL"}, []string{"ALL"}, []string{}, 0},
		{[]string{"KILL"}, []string{"KILL"}, []string{"CAP_CHOWN"}, 1},
	} {
		got, err := Capabilities(base, c.add, c.drop)
		if err != nil || len(got) != c.n || c.want != nil && !slices.Equal(got, c.want) {
			t.Errorf("add %v drop %v: %v, %v", c.add, c.drop, got, err)
		}
	}
	for _, bad := range []string{"CAP_FLY", "", "CAP_"} {
		if _, err := Capabilities(base, []string{bad}, nil); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), `"`+bad+`"`) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	if AllCapabilities()[unix.CAP_LAST_CAP] != "CAP_CHECKPOINT_RESTORE" || AllCapabilities()[unix.CAP_SYS_RESOURCE] != "CAP_SYS_RESOURCE" {
		t.Error("the order is not the kernel's")
	}
}

func TestForUserKeepsTheBoundingSet(t *testing.T) {
	p := &specs.Process{User: specs.User{UID: 5}, Capabilities: CapabilitySets([]string{"CAP_KILL"})}
	p.Capabilities.Ambient = []string{"CAP_NET_RAW"}
	ForUser(p)
	want := &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL"}, Ambient: []string{"CAP_NET_RAW"}, Effective: []string{"CAP_NET_RAW"}, Permitted: []string{"CAP_NET_RAW"}}
	if d := cmp.Diff(want, p.Capabilities); d != "" {
		t.Error(d)
	}
}

func TestClampSaysWhatTheNodeCannotGive(t *testing.T) {
	n := Node{
		Capabilities: []string{"CAP_CHOWN", "CAP_KILL"}, OOMScoreAdj: 0, MaxFiles: 1 << 20,
		Rlimits: map[string]uint64{"RLIMIT_NOFILE": 1024, "RLIMIT_CORE": 0},
	}
	spec := func() *specs.Spec {
		low := -500
		s := New()
		s.Process.Capabilities = CapabilitySets([]string{"CAP_CHOWN", "CAP_SYS_RESOURCE"})
		s.Process.OOMScoreAdj = &low
		s.Process.Rlimits = []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Soft: 512, Hard: 4096}, {Type: "RLIMIT_CORE"}}
		s.Process.ApparmorProfile, s.Process.SelinuxLabel = "docker-default", "a:b:c:d"
		s.Linux.Seccomp = &specs.LinuxSeccomp{}
		return s
	}
	s := spec()
	if w := n.Clamp(s); len(w) != 6 {
		t.Errorf("warnings: %q", w)
	}
	p := s.Process
	if d := cmp.Diff(CapabilitySets([]string{"CAP_CHOWN"}), p.Capabilities); d != "" {
		t.Error(d)
	}
	if *p.OOMScoreAdj != 0 || p.Rlimits[0].Hard != 1024 || p.Rlimits[0].Soft != 512 || p.ApparmorProfile+p.SelinuxLabel != "" || s.Linux.Seccomp != nil {
		t.Errorf("clamped to %+v", p)
	}
	if w := n.Clamp(s); len(w) != 0 {
		t.Errorf("clamped twice: %q", w)
	}
	strong := n
	strong.MayRaise, strong.AppArmor, strong.SELinux, strong.Seccomp = true, true, true, true
	strong.Capabilities = AllCapabilities()
	s = spec()
	s.Process.Rlimits[0].Hard = 1 << 30
	if w := strong.Clamp(s); len(w) != 1 || s.Process.Rlimits[0].Hard != 1<<20 || *s.Process.OOMScoreAdj != -500 {
		t.Errorf("with every right: %q, %+v", w, s.Process)
	}
}

func TestReadNode(t *testing.T) {
	n, err := ReadNode()
	if err != nil || len(n.Rlimits) != 16 || n.MaxFiles == 0 || !n.Seccomp {
		t.Errorf("%+v, %v", n, err)
	}
}

const passwd = "root:x:0:0:root:/root:/bin/sh\nredis:x:999:998::/home/redis:/bin/sh\nbare:x:7:7:::\n"

const group = "root:x:0:\nredis:x:998:\naudio:x:29:other,redis\nvideo:x:44:redis\nlast:x:4294967295:redis\n"

func TestLookUp(t *testing.T) {
	f := UserFiles{Passwd: []byte(passwd), Group: []byte(group)}
	for spec, want := range map[string]User{
		"":            {User: specs.User{AdditionalGids: []uint32{0}}, Home: "/root", Name: "root"},
		"redis":       {User: specs.User{UID: 999, GID: 998, AdditionalGids: []uint32{998, 29, 44}}, Home: "/home/redis", Name: "redis"},
		"999":         {User: specs.User{UID: 999, GID: 998, AdditionalGids: []uint32{998, 29, 44}}, Home: "/home/redis", Name: "redis"},
		"redis:video": {User: specs.User{UID: 999, GID: 44, AdditionalGids: []uint32{44}}, Home: "/home/redis", Name: "redis"},
		"4242":        {User: specs.User{UID: 4242, AdditionalGids: []uint32{0}}, Home: "/"},
		"4242:17":     {User: specs.User{UID: 4242, GID: 17, AdditionalGids: []uint32{17}}, Home: "/"},
		"bare":        {User: specs.User{UID: 7, GID: 7, AdditionalGids: []uint32{7}}, Home: "/", Name: "bare"},
	} {
		got, err := f.LookUp(spec)
		if err != nil {
			t.Errorf("%q: %v", spec, err)
		} else if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%q: %s", spec, d)
		}
	}
	for _, spec := range []string{"nobody", "redis:nobody", "-1", "4294967295", "0:4294967295", "99999999999"} {
		if _, err := f.LookUp(spec); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "range") && !strings.Contains(err.Error(), "/etc/passwd") {
			t.Errorf("%q: %v", spec, err)
		}
	}
	if _, err := (UserFiles{}).LookUp("redis"); err == nil || !strings.Contains(err.Error(), "which are both missing") {
		t.Errorf("without files: %v", err)
	}
	if got := f.MemberOf(999); !slices.Equal(got, []uint32{29, 44}) {
		t.Errorf("member of %v", got)
	}
	if g, err := f.GroupID("audio"); err != nil || g != 29 {
		t.Errorf("group %d, %v", g, err)
	}
}

func TestUserFilesNeverLeaveTheRoot(t *testing.T) {
	dir := t.TempDir()
	write := func(name, content string) {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("root/usr/lib/passwd", passwd)
	write("outside", "evil:x:1:1::/:\n")
	etc := filepath.Join(dir, "root", "etc")
	if err := os.MkdirAll(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	link := func(target, name string) {
		if err := os.Symlink(target, filepath.Join(etc, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("/usr/lib/passwd", "passwd")
	link("../../outside", "group")
	root, err := os.OpenRoot(filepath.Join(dir, "root"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if _, err := ReadUserFiles(root); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "/etc/group") {
		t.Errorf("an escape: %v", err)
	}
	for _, c := range []func(path string) error{
		func(p string) error { return unix.Mkfifo(p, 0o644) },
		func(p string) error { return os.Mkdir(p, 0o755) },
		func(p string) error { return os.Symlink("/etc/group", p) },
	} {
		path := filepath.Join(etc, "group")
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
		if err := c(path); err != nil {
			t.Fatal(err)
		}
		if _, err := ReadUserFiles(root); !errdefs.IsInvalidArgument(err) {
			t.Errorf("no plain file: %v", err)
		}
	}
	if err := os.Remove(filepath.Join(etc, "group")); err != nil {
		t.Fatal(err)
	}
	f, err := ReadUserFiles(root)
	if err != nil || string(f.Passwd) != passwd || f.Group != nil {
		t.Errorf("%+v, %v", f, err)
	}
}

func TestCommandAndEnvironment(t *testing.T) {
	img := &imagespec.ImageConfig{Entrypoint: []string{"entry"}, Cmd: []string{"cmd"}, WorkingDir: "srv/./x", Volumes: map[string]struct{}{"/data/": {}, "rel": {}, "/": {}}}
	for _, c := range []struct {
		entry, cmd, want []string
	}{
		{nil, nil, []string{"entry", "cmd"}},
		{nil, []string{"mine"}, []string{"entry", "mine"}},
		{[]string{"e"}, nil, []string{"e"}},
		{[]string{"e"}, []string{"c"}, []string{"e", "c"}},
		{[]string{}, []string{"c"}, []string{"c"}},
		{[]string{}, nil, nil},
		{[]string{""}, nil, nil},
		{nil, []string{"a\x00b"}, nil},
	} {
		got, err := Command(img, c.entry, c.cmd)
		if c.want == nil != errdefs.IsInvalidArgument(err) || !slices.Equal(got, c.want) {
			t.Errorf("%q %q: %q, %v", c.entry, c.cmd, got, err)
		}
	}
	env := Env(BaseEnv("/root", "h", true), []string{"PATH=/bin", "A=1", "broken", "=x"}, []string{"A=2=3", "B="})
	if want := []string{"HOME=/root", "HOSTNAME=h", "TERM=xterm", "PATH=/bin", "A=2=3", "B="}; !slices.Equal(env, want) {
		t.Errorf("env %q", env)
	}
	for asked, want := range map[string]string{"": "/srv/x", "/a/../b": "/b", "rel": ""} {
		got, err := WorkingDir(img, asked)
		if got != want || (want == "") != errdefs.IsInvalidArgument(err) {
			t.Errorf("working directory %q: %q, %v", asked, got, err)
		}
	}
	if got := Volumes(img); !slices.Equal(got, []string{"/data", "/rel"}) {
		t.Errorf("volumes %q", got)
	}
}

func TestSignal(t *testing.T) {
	for s, want := range map[string]int{
		"SIGTERM": 15, "term": 15, "15": 15, "RTMIN+3": 37, "SIGRTMIN": 34, "SIGRTMAX-1": 63, "rtmax": 64, "KILL": 9, "64": 64,
		"": 0, "0": 0, "65": 0, "-9": 0, "+9": 0, "RTMIN-1": 0, "RTMIN+31": 0, "RTMAX+1": 0, "RTMIN+": 0, "SIGSIGTERM": 0, "NOPE": 0, "RTMIN+-1": 0,
	} {
		got, err := Signal(s)
		if got != want || (want == 0) != errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
}

func TestLimits(t *testing.T) {
	r, err := Limits{Memory: 1 << 20, Swap: 1 << 20, CPUs: 0.5, Shares: 7, Cpuset: "0-1", Pids: 9}.Resources()
	if err != nil {
		t.Fatal(err)
	}
	if *r.Memory.Limit != 1<<20 || *r.Memory.Swap != 2<<20 || *r.CPU.Quota != 50000 || *r.CPU.Shares != 7 || r.CPU.Cpus != "0-1" || *r.Pids.Limit != 9 {
		t.Errorf("%+v %+v %+v", r.Memory, r.CPU, r.Pids)
	}
	if r, _ := (Limits{CPUs: 0.0001}).Resources(); *r.CPU.Quota != MinQuota {
		t.Errorf("quota %d", *r.CPU.Quota)
	}
	for _, bad := range []Limits{{Memory: -1}, {Swap: 5}, {CPUs: -1}, {Memory: 1 << 62, Swap: 1 << 62}} {
		if _, err := bad.Resources(); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
	for s, want := range map[string]int64{"42": 42, "1k": 1024, "512m": 512 << 20, "1.5GiB": 3 << 29, "2 TB": 2 << 40, "0": 0, "-1": -1, "": -1, "x": -1, "1z": -1, "9e": -1, "1e3": -1, "NaN": -1, "infk": -1} {
		got, err := Bytes(s)
		if want < 0 != errdefs.IsInvalidArgument(err) || err == nil && got != want {
			t.Errorf("%q: %d, %v", s, got, err)
		}
	}
	for s, want := range map[string]specs.POSIXRlimit{
		"nofile=10:20": {Type: "RLIMIT_NOFILE", Soft: 10, Hard: 20}, "RLIMIT_CORE=unlimited": {Type: "RLIMIT_CORE", Soft: 1<<64 - 1, Hard: 1<<64 - 1},
		"nofile=20:10": {}, "nope=1": {}, "nofile": {}, "nofile=": {},
	} {
		got, err := Rlimit(s)
		if got != want || (want.Type == "") != errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %+v, %v", s, got, err)
		}
	}
}

func TestDevices(t *testing.T) {
	d, err := ParseDevice("/dev/null:/dev/zip:rw")
	if err != nil || d != (Device{"/dev/null", "/dev/zip", "rw"}) {
		t.Fatalf("%+v, %v", d, err)
	}
	devs, rules, err := HostDevice(d)
	if err != nil || len(devs) != 1 || len(rules) != 1 {
		t.Fatalf("%v %v, %v", devs, rules, err)
	}
	if devs[0].Path != "/dev/zip" || devs[0].Type != "c" || devs[0].Major != 1 || devs[0].Minor != 3 || rules[0].Access != "rw" || *rules[0].Minor != 3 {
		t.Errorf("%+v %+v", devs[0], rules[0])
	}
	for _, s := range []string{"dev/null", "/dev/null:x", "/dev/null:/a:b:c", "/dev/null:rel:rw"} {
		if _, err := ParseDevice(s); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", s, err)
		}
	}
	if _, _, err := HostDevice(Device{Source: "/dev/nonesuch"}); !errdefs.IsNotFound(err) {
		t.Errorf("gone: %v", err)
	}
	if _, _, err := HostDevice(Device{Source: "/etc/hostname"}); !errdefs.IsInvalidArgument(err) && !errdefs.IsNotFound(err) {
		t.Errorf("no device: %v", err)
	}
	all, err := AllDevices()
	if err != nil || !slices.ContainsFunc(all, func(d specs.LinuxDevice) bool { return d.Path == "/dev/null" }) ||
		slices.ContainsFunc(all, func(d specs.LinuxDevice) bool { return strings.HasPrefix(d.Path, "/dev/pts/") }) {
		t.Errorf("all devices: %v, %v", all, err)
	}
	s := New()
	AddDevice(s, devs, rules)
	AddDevice(s, devs, nil)
	if len(s.Linux.Devices) != 1 || len(s.Linux.Resources.Devices) != 2 {
		t.Errorf("added: %v %v", s.Linux.Devices, s.Linux.Resources.Devices)
	}
}

func TestPrivilegedTakesTheWallsDown(t *testing.T) {
	s := New()
	if err := DefaultSeccomp(s); err != nil || s.Linux.Seccomp == nil {
		t.Fatal(err)
	}
	s.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/x", Minor: 7}, {Path: "/dev/mapped"}}
	Privileged(s, Node{Capabilities: []string{"CAP_KILL"}}, []specs.LinuxDevice{{Path: "/dev/x"}})
	if d := s.Linux.Devices; len(d) != 2 || d[0].Minor != 0 || d[1].Path != "/dev/mapped" {
		t.Errorf("devices %v", d)
	}
	for _, m := range s.Mounts {
		if slices.Contains(m.Options, "ro") {
			t.Errorf("%s is still read-only", m.Destination)
		}
	}
	if s.Linux.Seccomp != nil || len(s.Linux.MaskedPaths)+len(s.Linux.ReadonlyPaths) != 0 || s.Process.NoNewPrivileges || !s.Linux.Resources.Devices[0].Allow {
		t.Errorf("%+v", s.Linux)
	}
}

func TestSeccompFollowsTheCapabilities(t *testing.T) {
	allows := func(s *specs.Spec, call string) bool {
		if err := DefaultSeccomp(s); err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(s.Linux.Seccomp.Syscalls, func(c specs.LinuxSyscall) bool {
			return c.Action == specs.ActAllow && slices.Contains(c.Names, call)
		})
	}
	s := New()
	if allows(s, "mount") || !allows(s, "read") {
		t.Error("default profile")
	}
	s.Process.Capabilities = CapabilitySets([]string{"CAP_SYS_ADMIN"})
	if !allows(s, "mount") {
		t.Error("CAP_SYS_ADMIN does not open mount")
	}
	s.Process.Capabilities = nil
	if allows(s, "mount") {
		t.Error("no capabilities open mount")
	}
	if err := LoadSeccomp(s, []byte("{")); !errdefs.IsInvalidArgument(err) {
		t.Errorf("broken profile: %v", err)
	}
}

func TestSELinuxLabels(t *testing.T) {
	p, m, err := SELinux{Type: "spc_t", Level: "s0:c1,c2"}.Labels()
	if err != nil || p != "system_u:system_r:spc_t:s0:c1,c2" || m != "system_u:object_r:container_file_t:s0:c1,c2" {
		t.Errorf("%s %s %v", p, m, err)
	}
	if p, m, err := (SELinux{}).Labels(); p+m != "" || err != nil {
		t.Error("a label out of nothing")
	}
	if _, _, err := (SELinux{User: "a:b"}).Labels(); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}

func TestAddMountReplacesTheSameTarget(t *testing.T) {
	before := DefaultMounts(false)
	after := AddMount(before, specs.Mount{Destination: "/dev/shm", Type: "bind"})
	if len(after) != len(before) || after[len(after)-1].Type != "bind" || before[3].Destination != "/dev/shm" {
		t.Errorf("%v", after)
	}
}

func FuzzLookUp(f *testing.F) {
	f.Add("redis:video", []byte(passwd), []byte(group))
	f.Add("0", []byte(":::::"), []byte("a"))
	f.Fuzz(func(t *testing.T, spec string, passwd, group []byte) {
		files := UserFiles{Passwd: passwd, Group: group}
		u, err := files.LookUp(spec)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("class of %v", err)
			}
			return
		}
		if u.Home == "" || len(u.AdditionalGids) == 0 || u.UID == 1<<32-1 {
			t.Errorf("%+v", u)
		}
		files.MemberOf(u.UID)
	})
}

func FuzzSignal(f *testing.F) {
	for _, s := range []string{"SIGTERM", "15", "RTMIN+3", "RTMAX-", "+", "SIG"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := Signal(s)
		if err == nil && (n < 1 || n > 64) {
			t.Errorf("%q is %d", s, n)
		}
	})
}

func FuzzBytes(f *testing.F) {
	f.Add("1.5GiB")
	f.Add("9223372036854775807")
	f.Fuzz(func(t *testing.T, s string) {
		if n, err := Bytes(s); err == nil && n < 0 {
			t.Errorf("%q is %d", s, n)
		}
	})
}

// TestCoreDumpsAreAsElsewhere: a process without a limit for core dumps gets our hard limit; a
// process with one gets that.
func TestCoreDumpsAreAsElsewhere(t *testing.T) {
	n := Node{Rlimits: map[string]uint64{"RLIMIT_CORE": 77}}
	said := specs.POSIXRlimit{Type: "RLIMIT_CORE", Soft: 1, Hard: 2}
	for _, tc := range []struct {
		node     Node
		in, want []specs.POSIXRlimit
	}{
		{n, nil, []specs.POSIXRlimit{{Type: "RLIMIT_CORE", Soft: 77, Hard: 77}}},
		{n, []specs.POSIXRlimit{said}, []specs.POSIXRlimit{said}},
		{Node{Rlimits: map[string]uint64{"RLIMIT_CORE": 0}}, nil, nil},
	} {
		p := specs.Process{Rlimits: tc.in}
		if w := tc.node.ClampProcess(&p); len(w) > 0 || !slices.Equal(p.Rlimits, tc.want) {
			t.Errorf("%v: %v, %v", tc.in, p.Rlimits, w)
		}
	}
}

func TestCheckCDI(t *testing.T) {
	if err := CheckCDI([]string{"v.com/gpu=0", "v.com/gpu=1", "w.com/gpu=0"}); err != nil {
		t.Error(err)
	}
	for _, names := range [][]string{{"0"}, {"v.com=0"}, {"/gpu=0"}, {"v.com/=0"}, {"v.com/gpu="}, {""}, {"v.com/gpu=0", "v.com/gpu=0"}} {
		if err := CheckCDI(names); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", names, err)
		}
	}
}

package compile_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/native/nativetest"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// steps compiles a spec for a node that needs not be this one.
func steps(t *testing.T, s *specs.Spec, h compile.Host) []plan.Step {
	t.Helper()
	_, all := compiled(t, s, h)
	return all
}

func compiled(t *testing.T, s *specs.Spec, h compile.Host) ([]byte, []plan.Step) {
	t.Helper()
	out, err := compile.Container(compile.Input{ID: "c1", Bundle: "/b", Spec: s, Root: "/nowhere", Host: h, Park: true})
	if err != nil {
		t.Fatal(err)
	}
	all, err := plan.Steps(aligned(out.Plan))
	if err != nil {
		t.Fatal(err)
	}
	return aligned(out.Plan), all
}

func aligned(b []byte) []byte {
	return append(make([]byte, 0, (len(b)/8+1)*8), b...)
}

// titled finds the first step with that prefix of a title.
func titled(t *testing.T, all []plan.Step, prefix string) (int, plan.Step) {
	t.Helper()
	i := slices.IndexFunc(all, func(s plan.Step) bool { return strings.HasPrefix(s.Title, prefix) })
	if i < 0 {
		t.Fatalf("no step %q", prefix)
	}
	return i, all[i]
}

// TestMountLabel: the test's machines have no SELinux, so it checks the calls themselves.
func TestMountLabel(t *testing.T) {
	const label = "system_u:object_r:container_file_t:s0:c1,c2"
	s := nativetest.Spec("true")
	s.Linux.MountLabel, s.Process.SelinuxLabel = label, "system_u:system_r:container_t:s0:c1,c2"
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/own", Type: "tmpfs", Source: "tmpfs", Options: []string{"context=mine"}})
	all := steps(t, s, compile.Host{LastCap: 40, Hierarchies: []compile.Hierarchy{{Name: "cpu", Options: "cpu"}}})
	for prefix, data := range map[string]string{
		"mount proc on /proc":            "",
		"mount sysfs on /sys":            "",
		"mount mqueue on /dev/mqueue":    "",
		"mount tmpfs on /dev":            `mode=755,size=65536k,context="` + label + `"`,
		"mount devpts on /dev/pts":       `newinstance,ptmxmode=0666,mode=0620,gid=5,context="` + label + `"`,
		"mount tmpfs on /own":            "context=mine",
		"mount tmpfs on /sys/fs/cgroup":  `mode=755,context="` + label + `"`,
		"mount cgroup on /sys/fs/cgroup": "cpu",
		"mask directory /proc/acpi":      `size=0k,nr_inodes=1,context="` + label + `"`,
	} {
		if _, step := titled(t, all, prefix); step.Text(4) != data {
			t.Errorf("%s: %q, want %q", prefix, step.Text(4), data)
		}
	}
	if _, step := titled(t, all, "label /dev/mqueue"); step.NR != unix.SYS_SETXATTR || step.Text(1) != "security.selinux" || step.Text(2) != label || step.A[3] != uint64(len(label)+1) {
		t.Errorf("%+v", step)
	}
	// A stream is labelled if it is a pipe; /dev/null is the host's.
	for fd, name := range []string{"stdin", "stdout", "stderr"} {
		at, is := titled(t, all, name+" is a pipe")
		if set := all[at+1]; is.NR != unix.SYS_FCNTL || is.Kind != plan.Try || is.Want != 1 || set.NR != unix.SYS_FSETXATTR || set.A[0] != uint64(fd) || set.Text(2) != label {
			t.Errorf("%+v, %+v", is, set)
		}
	}
	// The program's own label goes to the attribute that was opened in the
	// host's /proc, before anything of the container's was mounted.
	open, _ := titled(t, all, "open /proc/thread-self/attr/exec")
	write, step := titled(t, all, "label system_u:system_r")
	mount, _ := titled(t, all, "propagation of /")
	if open > mount || write < mount || step.Text(1) != s.Process.SelinuxLabel {
		t.Errorf("opened at %d, written at %d, mounts from %d", open, write, mount)
	}
}

func TestAppArmorProfile(t *testing.T) {
	s := nativetest.Spec("true")
	s.Process.ApparmorProfile = "longshore-default"
	all := steps(t, s, compile.Host{LastCap: 40})
	open, _ := titled(t, all, "open /proc/thread-self/attr/apparmor/exec")
	write, step := titled(t, all, "label exec longshore-default")
	if mount, _ := titled(t, all, "propagation of /"); open > mount || write < mount || step.Text(1) != "exec longshore-default" {
		t.Errorf("opened at %d, written at %d, %q", open, write, step.Text(1))
	}
}

func TestMemoryPolicy(t *testing.T) {
	for want, m := range map[[3]uint64]*specs.LinuxMemoryPolicy{
		{2 | 1<<15, 0b1011, 65}: {Mode: specs.MpolBind, Nodes: "0-1,3", Flags: []specs.MemoryPolicyFlagType{specs.MpolFStaticNodes}},
		{4, 0, 0}:               {Mode: specs.MpolLocal},
	} {
		s := nativetest.Spec("true")
		s.Linux.MemoryPolicy = m
		_, step := titled(t, steps(t, s, compile.Host{LastCap: 40}), "memory policy")
		got := [3]uint64{step.A[0], 0, step.A[2]}
		if step.Points(1) {
			got[1] = step.Word(1, 0)
		}
		if got != want {
			t.Errorf("%+v: %v, want %v", m, got, want)
		}
	}
	for field, m := range map[string]*specs.LinuxMemoryPolicy{
		"mode": {Mode: "MPOL_X"}, "nodes": {Mode: specs.MpolBind, Nodes: "3-1"}, "flags": {Mode: specs.MpolBind, Nodes: "0", Flags: []specs.MemoryPolicyFlagType{"X"}},
	} {
		s := nativetest.Spec("true")
		s.Linux.MemoryPolicy = m
		if _, err := compile.Container(compile.Input{Spec: s, Root: "/nowhere"}); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "linux.memoryPolicy."+field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func TestExecCPUAffinity(t *testing.T) {
	p := *nativetest.Spec("true").Process
	exec := func(a *specs.CPUAffinity) ([]plan.Step, string, error) {
		p.ExecCPUAffinity = a
		out, err := compile.Exec(compile.ExecInput{
			ID: "c", Process: &p, Spec: nativetest.Spec("true"), Cgroup: compile.Cgroup{Dirs: []string{"/cg/cpu"}, Unified: "/cg/unified"}, Host: compile.Host{LastCap: 40},
		})
		if err != nil {
			return nil, "", err
		}
		text, err := plan.Print(aligned(out.Plan))
		if err != nil {
			t.Fatal(err)
		}
		all, err := plan.Steps(aligned(out.Plan))
		return all, text, err
	}
	all, text, err := exec(&specs.CPUAffinity{Initial: "1,64-65", Final: "0-2"})
	if err != nil {
		t.Fatal(err)
	}
	first, step := titled(t, all, "initial CPUs")
	if step.NR != unix.SYS_SCHED_SETAFFINITY || step.A[1] != 16 || step.Word(2, 0) != 2 || step.Word(2, 1) != 3 {
		t.Errorf("%+v", step)
	}
	last, _ := titled(t, all, "final CPUs")
	v1, _ := titled(t, all, "join /cg/cpu")
	v2, _ := titled(t, all, "join /cg/unified")
	if first > v1 || first > v2 || last < v1 || last < v2 || strings.Contains(text, "into /cg/unified") {
		t.Errorf("initial at %d, cgroups at %d and %d, final at %d", first, v1, v2, last)
	}
	if _, text, err = exec(&specs.CPUAffinity{Final: "3"}); err != nil || !strings.Contains(text, "into /cg/unified") {
		t.Errorf("%v\n%s", err, text)
	}
	for _, bad := range []string{"x", "1-", "-1", "2-1", "0,,1", "99999"} {
		if _, _, err := exec(&specs.CPUAffinity{Final: bad}); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "execCPUAffinity.final") {
			t.Errorf("%q: %v", bad, err)
		}
	}
	// A container's own process has none of it.
	s := nativetest.Spec("true")
	s.Process.ExecCPUAffinity = &specs.CPUAffinity{Initial: "0"}
	for _, st := range steps(t, s, compile.Host{LastCap: 40}) {
		if st.NR == unix.SYS_SCHED_SETAFFINITY {
			t.Error(st.Title)
		}
	}
}

// TestOnAnInitramfsTheRootIsMoved: pivot_root cannot move the kernel's first file system, and views
// of processes must not stay in reach below.
func TestOnAnInitramfsTheRootIsMoved(t *testing.T) {
	all := steps(t, nativetest.Spec("true"), compile.Host{LastCap: 40, Initramfs: true, Views: []string{"/sys", "/proc"}})
	var order []string
	for _, s := range all {
		for _, p := range []string{"unmount /sys", "unmount /proc", "move the root", "chroot", "chdir /", "pivot_root"} {
			if s.Title == p {
				order = append(order, p)
			}
		}
	}
	if d := cmp.Diff([]string{"unmount /sys", "unmount /proc", "move the root", "chroot", "chdir /", "chdir /"}, order); d != "" {
		t.Error(d)
	}
}

func TestSeccompListener(t *testing.T) {
	s := nativetest.Spec("true")
	s.Version, s.Annotations = "1.2.0", map[string]string{"a": `","pid":-1,"`}
	asks := specs.LinuxSyscall{Names: []string{"mkdir"}, Action: specs.ActNotify}
	s.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, ListenerPath: "/run/l.sock", ListenerMetadata: `","pid":0 x`, Syscalls: []specs.LinuxSyscall{asks}}
	blob, all := compiled(t, s, compile.Host{LastCap: 40})
	for _, step := range all {
		if step.Title == "our pid" { // as the child's readlink of /proc/self does
			copy(blob[step.A[2]:], "77")
		}
	}
	var got specs.ContainerProcessState
	_, send := titled(t, all, "send the seccomp listener")
	text := blob[bytes.Index(blob, []byte(`{"ociVersion"`)):][:send.Want]
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	want := specs.ContainerProcessState{Version: "1.2.0", Fds: []string{"seccompFd"}, Pid: 77, Metadata: `","pid":0 x`, State: specs.State{
		Version: "1.2.0", ID: "c1", Status: specs.StateCreating, Pid: 77, Bundle: "/b", Annotations: s.Annotations,
	}}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	for name, edit := range map[string]func(*specs.LinuxSeccomp){
		"listenerPath: empty":   func(s *specs.LinuxSeccomp) { s.ListenerPath, s.ListenerMetadata = "", "" },
		"listenerMetadata":      func(s *specs.LinuxSeccomp) { s.ListenerPath = "" },
		"not absolute":          func(s *specs.LinuxSeccomp) { s.ListenerPath = "x" },
		"longer than 107 bytes": func(s *specs.LinuxSeccomp) { s.ListenerPath = "/" + strings.Repeat("x", 107) },
		"for sendmsg":           func(s *specs.LinuxSeccomp) { s.DefaultAction = specs.ActNotify },
	} {
		bad := *s.Linux.Seccomp
		edit(&bad)
		b := *s
		l := *s.Linux
		l.Seccomp, b.Linux = &bad, &l
		if _, err := compile.Container(compile.Input{ID: "c1", Spec: &b, Root: "/nowhere"}); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

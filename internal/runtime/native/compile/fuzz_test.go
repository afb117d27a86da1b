package compile_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/native/nativetest"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

const (
	fuzzRoot = "/nowhere/rootfs"
	fuzzBase = "/nowhere/apart/mnt"
)

// FuzzCompile: no spec panics, and no plan reaches out of the root.
func FuzzCompile(f *testing.F) {
	full := nativetest.Spec("sh", "-c", "x")
	full.Process.Terminal = true
	full.Root.Readonly = true
	full.Linux.Sysctl = map[string]string{"net.ipv4.ip_forward": "1", "kernel.shmmax": "1", "fs.mqueue.msg_max": "1"}
	full.Linux.Devices = []specs.LinuxDevice{{Path: "/dev/../../x/fuse", Type: "c", Major: 10, Minor: 229}}
	full.Linux.RootfsPropagation = "rslave"
	full.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActErrno, Syscalls: []specs.LinuxSyscall{{Names: []string{"read"}, Action: specs.ActAllow}}}
	full.Mounts = append(full.Mounts,
		specs.Mount{Destination: "/dev/shm/../../../etc", Type: "bind", Source: "/", Options: []string{"rbind", "rro", "rslave"}},
		specs.Mount{Destination: "/a/b", Type: "tmpfs", Options: []string{"ro", "mode=700", "rnosuid"}})
	adj := 3
	full.Process.OOMScoreAdj = &adj
	full.Process.ApparmorProfile, full.Process.SelinuxLabel = "profile", "label"
	asking := nativetest.Spec("true")
	asking.Linux.Seccomp = &specs.LinuxSeccomp{DefaultAction: specs.ActAllow, ListenerPath: "/l", Syscalls: []specs.LinuxSyscall{{Names: []string{"mkdir"}, Action: specs.ActNotify}}}
	asking.Linux.MountLabel, asking.Linux.MemoryPolicy = "label", &specs.LinuxMemoryPolicy{Mode: specs.MpolBind, Nodes: "0-3"}
	asking.Process.ExecCPUAffinity = &specs.CPUAffinity{Initial: "0", Final: "0-1"}
	asking.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/h"}}}
	users, joined, timed := nativetest.InUserns(copySpec(full)), copySpec(full), nativetest.Spec("true")
	users.Mounts = append(users.Mounts, specs.Mount{
		Destination: "/mapped", Type: "bind", Source: "/", Options: []string{"bind", "ridmap"}, UIDMappings: []specs.LinuxIDMapping{{HostID: 7, Size: 9}}, GIDMappings: []specs.LinuxIDMapping{{HostID: 7, Size: 9}},
	})
	for i, n := range joined.Linux.Namespaces {
		if n.Type == specs.NetworkNamespace || n.Type == specs.IPCNamespace {
			joined.Linux.Namespaces[i].Path = "/run/ns/" + string(n.Type)
		}
	}
	nativetest.AddNamespace(joined, specs.LinuxNamespace{Type: specs.UserNamespace, Path: "/run/ns/user"})
	nativetest.AddNamespace(timed, specs.LinuxNamespace{Type: specs.TimeNamespace})
	timed.Linux.TimeOffsets = map[string]specs.LinuxTimeOffset{"boottime": {Secs: 77}}
	for _, s := range []*specs.Spec{nativetest.Spec("true"), full, asking, {}, users, joined, timed} {
		b, err := json.Marshal(s)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b, true)
	}
	f.Fuzz(func(t *testing.T, b []byte, park bool) {
		var s specs.Spec
		if json.Unmarshal(b, &s) != nil {
			return
		}
		host := compile.Host{Bounding: 1<<40 - 1, LastCap: 40, Kcore: true, Hierarchies: []compile.Hierarchy{{Name: "cpu,cpuacct", Options: "cpu,cpuacct"}, {Name: "pids", Options: "pids"}}}
		cgroup := compile.Cgroup{Dirs: []string{"/cg/cpu/c", "/cg/pids/c"}, Own: map[string]string{"pids": "/cg/pids/c"}}
		for _, host.BaseNamespace = range []string{"", fuzzBase} {
			out, err := compile.Container(compile.Input{ID: "id", Spec: &s, Root: fuzzRoot, Cgroup: cgroup, Host: host, Park: park})
			if err == nil {
				stays(t, &s, out, false)
			}
		}
		if s.Linux == nil {
			return
		}
		if out, err := compile.Exec(compile.ExecInput{ID: "id", Process: s.Process, Spec: &s, Cgroup: cgroup, Host: host}); err == nil {
			stays(t, &s, out, true)
		}
	})
}

// stays checks every operation of a plan that could reach a file.
func stays(t *testing.T, s *specs.Spec, out compile.Output, exec bool) {
	t.Helper()
	for _, p := range out.Points {
		if !strings.HasPrefix(p.Path, "/") || slices.Contains(strings.Split(p.Path, "/"), "..") {
			t.Errorf("point %q", p.Path)
		}
	}
	steps, err := plan.Steps(out.Plan)
	if err != nil {
		t.Fatal(err)
	}
	inside := exec  // whether the old root is gone
	staged := false // whether it stands on the scratch tmpfs, a tmpfs that nobody else sees
	apart := false  // whether the host's tree was left behind
	for i, o := range steps {
		if o.Kind == plan.Store || o.Kind == plan.Jump || o.Kind == plan.Fork {
			continue
		}
		place := fuzzRoot // of the scratch tmpfs
		if apart {
			place = "/root"
		}
		if why := wrong(s, o, inside); why != "" && (!staged || !onScratch(o)) && (!apart || !fromBase(o)) && (!apart || !stages(o, place)) {
			t.Errorf("operation %d, %s: %s", i, o.Title, why)
		}
		switch {
		case o.NR == unix.SYS_SETNS && i > 0 && steps[i-1].NR == unix.SYS_OPENAT && steps[i-1].Points(1) && steps[i-1].Text(1) == fuzzBase:
			apart = true
		case o.NR == unix.SYS_OPEN_TREE && apart && o.A[0] == cwd && !fromBase(o) && (!staged || !onScratch(o)):
			t.Errorf("operation %d: copies %s of a tree that was left", i, o.Text(1))
		case o.NR == unix.SYS_UMOUNT2:
			inside, staged, apart = true, false, false
		case o.NR == unix.SYS_CHDIR && o.Text(0) == place:
			if before := steps[i-1]; before.NR != unix.SYS_MOUNT || !stages(before, place) {
				t.Errorf("operation %d: goes to the root without a scratch tmpfs on it", i)
			}
			staged = true
		}
	}
}

// stages reports whether o mounts the scratch tmpfs at place, or goes there.
func stages(o plan.Step, place string) bool {
	switch o.NR {
	case unix.SYS_MOUNT:
		return o.Text(1) == place && o.Text(2) == "tmpfs"
	case unix.SYS_CHDIR:
		return o.Text(0) == place
	}
	return false
}

// onScratch reports whether o names nothing but entries of the scratch tmpfs: the root, the null
// device, sysfs, a number, or a number among the devices.
func onScratch(o plan.Step) bool {
	name := func(i int) bool {
		p := o.Text(i)
		return p == "r" || p == "d" || p == "s" || p == "n" && o.NR == unix.SYS_MKNODAT || strings.TrimLeft(strings.TrimPrefix(p, "d/"), "0123456789") == "" && p != "" && p != "d/"
	}
	switch o.NR {
	case unix.SYS_MKDIRAT, unix.SYS_MKNODAT, unix.SYS_FCHOWNAT:
		return o.A[0] == cwd && name(1)
	case unix.SYS_OPEN_TREE:
		return o.A[0] == cwd && name(1) && o.A[2]&unix.OPEN_TREE_CLONE != 0
	case unix.SYS_OPENAT:
		return o.A[0] == cwd && name(1) && o.A[2]&unix.O_PATH != 0
	case unix.SYS_MOUNT:
		return name(1)
	case unix.SYS_MOVE_MOUNT:
		return !o.Points(0) && o.Text(1) == "" && o.A[2] == cwd && name(3) && o.A[4] == unix.MOVE_MOUNT_F_EMPTY_PATH
	}
	return false
}

// fromBase reports whether o names nothing but entries of the almost empty namespace: the mount
// point of the root, and the read-only ones shown to all.
func fromBase(o plan.Step) bool {
	switch o.NR {
	case unix.SYS_OPEN_TREE:
		return o.A[0] == cwd && o.Text(1) == "/cgroup" && o.A[2] == unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC
	case unix.SYS_MOUNT:
		return o.Text(0) == "/blank" && strings.HasPrefix(o.Text(1), "/proc/self/fd/") && o.A[3] == unix.MS_BIND
	case unix.SYS_OPENAT:
		return o.Text(1) == "/root" && o.A[2]&unix.O_PATH != 0
	case unix.SYS_MOVE_MOUNT:
		return !o.Points(0) && o.Text(1) == "" && o.A[2] == cwd && o.Text(3) == "/root" && o.A[4] == unix.MOVE_MOUNT_F_EMPTY_PATH
	}
	return false
}

func copySpec(s *specs.Spec) *specs.Spec {
	c, l := *s, *s.Linux
	c.Linux, c.Mounts, l.Namespaces = &l, slices.Clone(s.Mounts), slices.Clone(l.Namespaces)
	return &c
}

const cwd = uint64(0xffffffffffffff9c) // AT_FDCWD

// harmless are calls that name no file, or only one that an earlier call has
// opened.
func harmless() []uint32 {
	return []uint32{
		unix.SYS_PRCTL, unix.SYS_DUP3, unix.SYS_CLOSE_RANGE, unix.SYS_CLOSE, unix.SYS_WRITE, unix.SYS_READ, unix.SYS_UNSHARE, unix.SYS_SETNS,
		unix.SYS_SETSID, unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_FCHDIR, unix.SYS_UMASK, unix.SYS_IOCTL, unix.SYS_FCHOWN,
		unix.SYS_SENDMSG, unix.SYS_PRLIMIT64, unix.SYS_SCHED_SETATTR, unix.SYS_IOPRIO_SET, unix.SYS_PERSONALITY, unix.SYS_KEYCTL,
		unix.SYS_SETGROUPS, unix.SYS_SETRESGID, unix.SYS_SETRESUID, unix.SYS_CAPSET, unix.SYS_SECCOMP,
		unix.SYS_SOCKET, unix.SYS_SET_MEMPOLICY, unix.SYS_SCHED_SETAFFINITY,
	}
}

func wrong(s *specs.Spec, o plan.Step, inside bool) string {
	opened := func(i int) bool { return !o.Points(i) && o.A[i] >= 3 && o.A[i] < 1<<16 }
	switch o.NR {
	case unix.SYS_OPENAT:
		return wrongOpen(s, o, inside)
	case unix.SYS_OPENAT2:
		resolve := o.Word(2, 2)
		if strings.HasPrefix(o.Title, "open sysctl ") && resolve != unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS|unix.RESOLVE_NO_XDEV {
			return fmt.Sprintf("opens sysctl %q with resolve %#x", o.Text(1), resolve)
		}
		switch {
		case opened(0) && resolve&unix.RESOLVE_IN_ROOT != 0 && resolve&(unix.RESOLVE_NO_MAGICLINKS|unix.RESOLVE_NO_SYMLINKS) != 0:
		case opened(0) && resolve&unix.RESOLVE_BENEATH != 0 && resolve&unix.RESOLVE_NO_SYMLINKS != 0:
		case inside && o.A[0] == cwd && resolve&(unix.RESOLVE_NO_MAGICLINKS|unix.RESOLVE_NO_SYMLINKS) != 0:
		default:
			return fmt.Sprintf("opens %q with resolve %#x", o.Text(1), resolve)
		}
	case unix.SYS_MOUNT:
		target := o.Text(1)
		plain := o.A[3]&(unix.MS_BIND|unix.MS_MOVE) == 0 && o.Text(2) == "" // changes propagation only
		above := plain && o.A[3] == unix.MS_PRIVATE && strings.HasPrefix(fuzzRoot, target+"/")
		_, isFD := strings.CutPrefix(target, "/proc/self/fd/")
		switch {
		case isFD && !inside, target == fuzzRoot, target == "." && plain, target == "/" && plain, above && !inside:
		default:
			return "mounts on " + target
		}
	case unix.SYS_MOVE_MOUNT:
		if !opened(0) || !opened(2) || o.Text(1)+o.Text(3) != "" || o.A[4] != unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH {
			return "moves by a path"
		}
	case unix.SYS_MOUNT_SETATTR:
		if byFD := opened(0) && o.Text(1) == "" && o.A[2]&unix.AT_EMPTY_PATH != 0; !byFD && (o.Text(1) != "/" || !inside) {
			return "changes the mount at " + o.Text(1)
		}
	case unix.SYS_OPEN_TREE:
		if o.A[2]&unix.OPEN_TREE_CLONE == 0 {
			return "opens a tree itself"
		}
	case unix.SYS_MKDIRAT, unix.SYS_MKNODAT, unix.SYS_FCHOWNAT:
		if name := o.Text(1); !opened(0) || name == "" || name == "." || name == ".." || strings.Contains(name, "/") {
			return "makes " + name
		}
	case unix.SYS_SYMLINKAT:
		if name := o.Text(2); !opened(1) || name == "" || name == ".." || strings.Contains(name, "/") {
			return "links " + name
		}
	case unix.SYS_PIVOT_ROOT, unix.SYS_UMOUNT2, unix.SYS_CHDIR:
		if p := o.Text(0); p != "." && p != "/" && (o.NR != unix.SYS_CHDIR || p != fuzzRoot || inside) {
			return "goes to " + p
		}
	case unix.SYS_READLINKAT:
		if o.Text(1) != "/proc/self" || !o.Points(2) || o.A[3] > 10 {
			return "reads the link " + o.Text(1)
		}
	case unix.SYS_CONNECT:
		if !opened(0) || s.Linux.Seccomp == nil || s.Linux.Seccomp.ListenerPath == "" {
			return "connects"
		}
	case unix.SYS_SETXATTR:
		if inside || !strings.HasPrefix(o.Text(0), "/proc/self/fd/") || o.Text(1) != "security.selinux" {
			return "sets " + o.Text(1) + " of " + o.Text(0)
		}
	case unix.SYS_EXECVE:
		if !inside {
			return "executes in the host's root"
		}
	default:
		if !slices.Contains(harmless(), o.NR) {
			return fmt.Sprintf("call %d is not known here", o.NR)
		}
	}
	return ""
}

// wrongOpen: by a path of the host only listed files are opened, and only those for writing that
// must be.
func wrongOpen(s *specs.Spec, o plan.Step, inside bool) string {
	name, flags := o.Text(1), o.A[2]
	write := []string{"/cg/cpu/c/tasks", "/cg/pids/c/tasks", "/proc/self/oom_score_adj", "/proc/thread-self/attr/apparmor/exec", "/proc/thread-self/attr/exec", "/proc/self/timens_offsets"}
	switch {
	case inside && !slices.Contains(write, name): // exec has its joins last
		return "opens " + name
	case flags&(unix.O_WRONLY|unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC) != 0:
		if flags&(unix.O_CREAT|unix.O_TRUNC|unix.O_RDWR) != 0 || !slices.Contains(write, name) {
			return "writes " + name
		}
	case slices.Contains([]string{"/", fuzzRoot, fuzzBase}, name):
	case slices.Contains([]string{"/proc/sys/net", "/proc/sys/fs/mqueue", "/proc/sys/kernel"}, name) && flags&unix.O_PATH != 0:
	default:
		if !slices.ContainsFunc(s.Linux.Namespaces, func(n specs.LinuxNamespace) bool { return n.Path == name }) {
			return "opens " + name
		}
	}
	return ""
}

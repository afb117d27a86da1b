package native_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sysctl/sysctltest"
)

// TestKnownEscapes: each mechanism of an escape from containers of other runtimes. The root is that
// of a privileged program: nothing but the way it was started holds it.
func TestKnownEscapes(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := newNode(t)
		for name, test := range map[string]func(*testing.T, *node){
			"our binary through /proc/self/exe":     selfExe,
			"leaked descriptors":                    leakedDescriptors,
			"working directory by a magic link":     magicCwd,
			"symlinks as mount targets":             symlinkTargets,
			"a /proc that leads elsewhere":          wrongProc,
			"sysctls of the host":                   hostSysctls,
			"release_agent":                         releaseAgent,
			"the keeper's memory from the inside":   unreadable,
			"exec where /proc and / were replaced":  replacedRoot,
			"a user namespace gives no capability":  userNamespace,
			"masks hold against the program's root": unmask,
			"what containers share is read-only":    sharedPlaces,
		} {
			t.Run(name, func(t *testing.T) { test(t, n) })
		}
	})
}

// privileged has all capabilities that this node can give.
func privileged(text string) *specs.Spec {
	s := script(text)
	all := ocispec.AllCapabilities()
	s.Process.Capabilities = &specs.LinuxCapabilities{Bounding: all, Permitted: all, Effective: all, Inheritable: all}
	return s
}

func (n *node) output(t *testing.T, s *specs.Spec) string {
	t.Helper()
	return n.run(t.Context(), t, n.runtime, containers(), s)
}

// selfExe: the keeper runs from a read-only mount, so that the copy that an
// entry point of /proc/self/exe makes of it cannot be written through.
func selfExe(t *testing.T, n *node) {
	st, err := n.keeper.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	exe := fmt.Sprintf("/proc/%d/exe", st.KeeperPid)
	if err := unix.Statfs(exe, &fs); err != nil || fs.Flags&unix.ST_RDONLY == 0 {
		t.Errorf("the keeper runs from a writable mount: flags %#x, %v", fs.Flags, err)
	}
	// Some kernels refuse it too because it runs; the mount holds when it does
	// not run any more.
	if fd, err := unix.Open(exe, unix.O_WRONLY, 0); err == nil {
		_ = unix.Close(fd)
		t.Error("it can be opened for writing")
	}
}

// leakedDescriptors: a program has its streams and nothing else.
func leakedDescriptors(t *testing.T, n *node) {
	if out := n.output(t, privileged("exec /bin/ls /proc/self/fd")); out != "0\n1\n2\n3\n" { // 3 is ls's own
		t.Errorf("%q", out)
	}
}

// magicCwd: with the host's pid namespace a magic link of a working directory
// would lead, with our privileges, to the host's root.
func magicCwd(t *testing.T, n *node) {
	for _, cwd := range []string{"/proc/1/root", "/proc/self/fd/4", "/evil"} {
		s := script("pwd; ls")
		s.Linux.Namespaces = s.Linux.Namespaces[1:] // no pid namespace
		s.Process.Cwd = cwd
		_ = os.Remove(n.root + "/evil")
		if err := os.Symlink("/proc/1/root", n.root+"/evil"); err != nil {
			t.Fatal(err)
		}
		if _, err := n.held(t.Context(), t, s); err == nil {
			t.Errorf("%s: started", cwd)
		}
	}
	_ = os.Remove(n.root + "/evil")
}

// symlinkTargets: a mount point that is a link stays below the root.
func symlinkTargets(t *testing.T, n *node) {
	for _, d := range []string{"/run/outside", n.root + "/run/outside"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"abs": "/run/outside", "up": "../../../../../../run/outside"} {
		if err := os.Symlink(to, n.root+"/"+link); err != nil {
			t.Fatal(err)
		}
		s := script("echo written > /" + link + "/made/f; echo done")
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/" + link + "/made", Type: "tmpfs", Source: "tmpfs"})
		if out := n.output(t, s); out != "done\n" {
			t.Errorf("%s: %q", link, out)
		}
	}
	if left, err := os.ReadDir("/run/outside"); err != nil || len(left) > 0 {
		t.Errorf("outside: %v, %v", left, err)
	}
}

// wrongProc: an image with a link as its /proc is refused.
func wrongProc(t *testing.T, n *node) {
	if err := os.Rename(n.root+"/proc", n.root+"/proc.dir"); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = os.Remove(n.root+"/proc"), os.Rename(n.root+"/proc.dir", n.root+"/proc") }()
	if err := os.Symlink("/tmp", n.root+"/proc"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.held(t.Context(), t, script("true")); err == nil {
		t.Error("started")
	}
}

// hostSysctls: no sysctl of the host is set, and the host is not renamed.
func hostSysctls(t *testing.T, n *node) {
	for _, key := range []string{"kernel.core_pattern", "vm.overcommit_memory", "fs.file-max", "net/../kernel.core_pattern", "net.../x"} {
		s := script("true")
		s.Linux.Sysctl = map[string]string{key: "1"}
		if _, err := n.held(t.Context(), t, s); err == nil {
			t.Errorf("%s was set", key)
		}
	}
	sysctltest.Unchanged(t)
	sysctltest.Control(t)
	for _, key := range sysctltest.Escapes() {
		s := script("true")
		s.Linux.Sysctl = map[string]string{key: sysctltest.Value(t)}
		if _, err := n.held(t.Context(), t, s); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", key, err)
		}
	}
	s := script("true")
	s.Hostname = "mine"
	s.Linux.Namespaces = []specs.LinuxNamespace{{Type: specs.MountNamespace}, {Type: specs.UTSNamespace, Path: "/proc/self/ns/uts"}}
	if _, err := n.held(t.Context(), t, s); !errdefs.IsInvalidArgument(err) {
		t.Errorf("the host was renamed: %v", err)
	}
}

// releaseAgent: the kernel would run it as the host's root.
func releaseAgent(t *testing.T, n *node) {
	s := script("f=$(ls -d /sys/fs/cgroup/*/release_agent /sys/fs/cgroup/release_agent 2>/dev/null); for i in $f; do echo /x > $i; done 2>/dev/null && test -n \"$f\" && echo written; echo done")
	s.Mounts = append(s.Mounts, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"nosuid", "noexec", "nodev", "ro"}})
	if out := n.output(t, s); out != "done\n" {
		t.Errorf("%q", out)
	}
}

// unreadable: a parked process is our copy still, and nobody's to read.
func unreadable(t *testing.T, n *node) {
	s := script("true")
	id, err := n.parked(t, s)
	if err != nil {
		t.Fatal(err)
	}
	var pid int
	all, err := n.keeper.Processes(t.Context())
	for _, p := range all {
		if p.Ref == (core.Ref{Container: id}) {
			pid = p.Pid
		}
	}
	if err != nil || pid == 0 {
		t.Fatalf("pid %d, %v", pid, err)
	}
	// Files of a process that is not dumpable are root's, under any user.
	var st unix.Stat_t
	if err := unix.Stat(fmt.Sprintf("/proc/%d/environ", pid), &st); err != nil || st.Uid != 0 {
		t.Errorf("owner %d, %v", st.Uid, err)
	}
}

// replacedRoot: an exec needs nothing that a container may have changed.
func replacedRoot(t *testing.T, n *node) {
	s := privileged("umount -l /proc; mkdir -p /tmp/proc; mount -t tmpfs tmpfs /proc; mkdir -p /proc/self/attr /proc/self/fd; echo > /proc/self/oom_score_adj; echo > /tmp/ready; sleep 1000")
	_ = os.Remove(n.root + "/tmp/ready")
	if err := unix.Mkfifo(n.root+"/tmp/ready", 0o666); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = os.Remove(n.root + "/tmp/ready") }()
	id, err := n.held(t.Context(), t, s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.ReadFile(n.root + "/tmp/ready"); err != nil {
		t.Fatal(err)
	}
	p := *s.Process
	adj := 500
	p.Args, p.OOMScoreAdj = []string{"/bin/sh", "-c", "cat /proc/self/oom_score_adj; echo done"}, &adj
	log := n.dir + "/exec.out"
	ref := core.Ref{Container: id, Process: "e"}
	l, err := n.runtime.Exec(t.Context(), core.RuntimeExec{Ref: ref, Spec: &p, IO: core.IO{Sinks: []core.Sink{{Format: core.FormatRaw, Stdout: true, Stderr: true, Path: log}}}})
	if err != nil {
		t.Fatal(err)
	}
	for x, err := range n.keeper.Exits(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if x.Ref == ref {
			break
		}
	}
	out, err := os.ReadFile(log)
	if err != nil || string(out) != "\ndone\n" {
		t.Errorf("pid %d wrote %q, %v", l.Pid, out, err)
	}
	_ = n.keeper.Forget(t.Context(), ref)
}

func userNamespace(t *testing.T, n *node) {
	s := script("unshare -U true; grep -E '^Cap(Prm|Eff|Bnd)' /proc/self/status | grep -v 0000000000000000; echo done")
	s.Process.Capabilities = &specs.LinuxCapabilities{}
	if out := n.output(t, s); !strings.HasSuffix(out, "done\n") || strings.Contains(out, "Cap") {
		t.Errorf("%q", out)
	}
}

func unmask(t *testing.T, n *node) {
	s := script("umount /proc/timer_list; umount -l /proc/timer_list; mount -t proc proc /mnt; cat /proc/timer_list /mnt/timer_list 2>/dev/null | wc -c")
	s.Linux.MaskedPaths = []string{"/proc/timer_list"}
	if out := n.output(t, s); !strings.HasSuffix(out, "\n0\n") {
		t.Errorf("%q", out)
	}
}

// sharedPlaces: containers that cannot make them writable share the directories of masks and of
// cgroup mounts. Others have their own.
func sharedPlaces(t *testing.T, n *node) {
	const write = `for d in /proc/driver /sys/fs/cgroup; do
mount -o remount,rw $d 2>/dev/null; mount -o remount,bind,rw $d 2>/dev/null; mkdir $d/left 2>/dev/null && echo wrote; chmod 700 $d 2>/dev/null; done; ls /proc/driver /sys/fs/cgroup | grep -c left; stat -c %a /sys/fs/cgroup`
	furnish := func(s *specs.Spec) *specs.Spec {
		s.Linux.MaskedPaths = []string{"/proc/driver"}
		s.Mounts = append(s.Mounts, specs.Mount{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: []string{"ro", "nosuid", "nodev", "noexec"}})
		return s
	}
	if out := n.output(t, furnish(script(write))); out != "0\n755\n" && out != "0\n555\n" { // v2's own is 555
		t.Errorf("without capabilities: %q", out)
	}
	if out := n.output(t, furnish(privileged(write))); !strings.HasPrefix(out, "wrote\n") {
		t.Logf("who has all capabilities could not write to its own: %q", out)
	}
	if out := n.output(t, furnish(script(write))); out != "0\n755\n" && out != "0\n555\n" {
		t.Errorf("what one container wrote another sees: %q", out)
	}
}

package ocicli_test

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sysctl/sysctltest"
)

// killed: delete --force clears the remains of a create that is killed anywhere. First at a fixed
// place, then anywhere.
func killed(t *testing.T, m *machine) {
	if err := os.WriteFile("/run/block", []byte("#!/bin/busybox sh\necho > /run/blocked\nexec /bin/busybox sleep 1000\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo("/run/blocked", 0o600); err != nil {
		t.Fatal(err)
	}
	// Open for writing too, so that the hook's open is not missed.
	blocked, err := os.OpenFile("/run/blocked", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = blocked.Close() }()
	s := m.spec("sleep 1000")
	s.Hooks = &specs.Hooks{CreateRuntime: []specs.Hook{{Path: "/run/block"}}}
	m.write(t, s)
	cmd := m.command(t, "create", "a")
	m.start(t, cmd)
	if _, err := blocked.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	if s := m.state(t, "a"); s.Status != specs.StateCreating {
		t.Errorf("in a hook: %+v", s)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	m.mustNot(t, "creating", "start", "a")
	m.must(t, "delete", "--force", "a")
	m.gone(t, "a")
	m.write(t, m.spec("sleep 1000"))
	begun := time.Now()
	m.must(t, "create", "a")
	whole := time.Since(begun)
	m.must(t, "delete", "a")
	const kills = 30
	for i := range kills {
		cmd := m.command(t, "create", "a")
		m.start(t, cmd)
		fuse := time.AfterFunc(whole*time.Duration(i)/kills, func() { _ = cmd.Process.Kill() })
		_ = cmd.Wait()
		fuse.Stop()
		m.must(t, "delete", "--force", "a")
		if left, _ := os.ReadDir("/run/oci"); len(left) > 0 && !strings.HasPrefix(left[0].Name(), ".new-") {
			t.Errorf("kill %d: left %v", i, left)
		}
	}
	m.must(t, "create", "a") // and removes half-made ones
	m.must(t, "delete", "a")
	m.gone(t, "a")
}

// overwritten: a container with our own file as its program cannot write it, though nobody runs it
// any more.
func overwritten(t *testing.T, m *machine) {
	try := `until [ -e /tmp/go ]; do sleep 0.01; done; if (: >> /proc/self/fd/$1) 2>/tmp/why; then echo overwritten > /tmp/how; else echo kept > /tmp/how; fi; sleep 1000`
	s := m.spec("")
	s.Process.Args = []string{"/proc/self/exe"}
	s.Process.Env = append(s.Process.Env, attackEnv+"="+try)
	m.write(t, s)
	m.must(t, "create", "a")
	m.must(t, "start", "a")
	// The file is not in use, so that nothing but the mount protects it.
	roottest.Eventually(t, "the program's file is not in use", func() bool {
		f, err := os.OpenFile(m.bin, os.O_WRONLY, 0)
		if err == nil {
			_ = f.Close()
		}
		return err == nil
	})
	if err := os.WriteFile(m.bundle+"/rootfs/tmp/go", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var how []byte
	roottest.Eventually(t, "the container has tried to write", func() bool {
		how, _ = os.ReadFile(m.bundle + "/rootfs/tmp/how")
		return strings.HasSuffix(string(how), "\n")
	})
	why, _ := os.ReadFile(m.bundle + "/rootfs/tmp/why")
	if string(how) != "kept\n" || !strings.Contains(string(why), "Read-only") {
		t.Errorf("%s%s", how, why)
	}
	m.must(t, "delete", "--force", "a")
	m.gone(t, "a")
}

// hostSysctls: no name of a parameter leads to one of the machine.
func hostSysctls(t *testing.T, m *machine) {
	sysctltest.Unchanged(t)
	sysctltest.Control(t)
	for _, key := range sysctltest.Escapes() {
		s := m.spec("true")
		s.Linux.Sysctl = map[string]string{key: sysctltest.Value(t)}
		m.write(t, s)
		m.mustNot(t, "linux.sysctl", "create", "a")
	}
	m.gone(t, "a")
}

// borrowed: a container without a mount namespace, and one in somebody else's,
// see their own root, in an exec too, and leave no mount.
func borrowed(t *testing.T, m *machine) {
	holder := exec.CommandContext(t.Context(), "unshare", "-m", "--propagation", "private", "sh", "-c", "echo; exec sleep 1000")
	there, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	m.start(t, holder)
	defer func() { _, _ = holder.Process.Kill(), holder.Wait() }()
	if _, err := there.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	ours, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	path := "/proc/" + strconv.Itoa(holder.Process.Pid) + "/ns/mnt"
	theirs, err := os.Readlink(path)
	if err != nil || theirs == ours {
		t.Fatalf("%s, ours is %s: %v", theirs, ours, err)
	}
	for _, joined := range []string{"", path} {
		s := m.spec("sleep 1000")
		var kept []specs.LinuxNamespace
		for _, ns := range s.Linux.Namespaces {
			if ns.Type != specs.MountNamespace {
				kept = append(kept, ns)
			}
		}
		want := ours
		if joined != "" {
			kept, want = append(kept, specs.LinuxNamespace{Type: specs.MountNamespace, Path: joined}), theirs
		}
		s.Linux.Namespaces = kept
		m.write(t, s)
		m.must(t, "run", "-d", "a")
		if got, err := os.Readlink("/proc/" + strconv.Itoa(m.state(t, "a").Pid) + "/ns/mnt"); err != nil || got != want {
			t.Errorf("in %s, want %s: %v", got, want, err)
		}
		if out := m.must(t, "exec", "a", "sh", "-c", "ls -d /bin/busybox /run/oci 2>/dev/null; ls /proc/1/exe; pwd"); out != "/bin/busybox\n/proc/1/exe\n/\n" {
			t.Errorf("exec: %q", out)
		}
		m.must(t, "delete", "--force", "a")
		m.gone(t, "a")
		// As after a create that fails.
		s.Process.Args = []string{"nosuch"}
		m.write(t, s)
		m.mustNot(t, "not found", "create", "a")
		m.gone(t, "a")
	}
	// A root on a mount of its own keeps that.
	if err := unix.Mount(m.bundle+"/rootfs", m.bundle+"/rootfs", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	s := m.spec("true")
	s.Linux.Namespaces = nil
	s.Hostname = ""
	m.write(t, s)
	m.must(t, "run", "a")
	if b, _ := os.ReadFile("/proc/self/mountinfo"); strings.Count(string(b), m.bundle+"/rootfs") != 1 {
		t.Errorf("%s", b)
	}
	if err := unix.Unmount(m.bundle+"/rootfs", 0); err != nil {
		t.Error(err)
	}
	m.gone(t, "a")
}

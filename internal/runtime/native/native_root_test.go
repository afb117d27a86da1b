package native_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/native/compile"
	"github.com/longshore/longshore/internal/runtime/native/nativetest"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// rootfs makes a root filesystem of busybox and mounts it, as the engine does.
func rootfs(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	bb, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skip("busybox-static is not installed")
	}
	for _, d := range []string{"bin", "etc", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/busybox"), bb, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, a := range []string{"sh", "cat", "id", "ls", "mount", "true", "sleep", "grep", "stat", "echo", "touch", "hostname", "env", "readlink"} {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", a)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	return dir
}

func host(t *testing.T) compile.Host {
	t.Helper()
	h, err := compile.ReadHost()
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// runPlan runs a container to its end and returns its output and status.
func runPlan(t *testing.T, in compile.Input) (string, unix.WaitStatus, error) {
	t.Helper()
	out, err := compile.Container(in)
	if err != nil {
		t.Fatal(err)
	}
	if err := compile.MakePoints(in.Root, out); err != nil {
		t.Fatal(err)
	}
	return start(t, out.Plan, -1)
}

func start(t *testing.T, blob []byte, target int) (string, unix.WaitStatus, error) {
	t.Helper()
	mem, err := unix.Mmap(-1, 0, len(blob), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(mem) }()
	copy(mem, blob)
	p, err := plan.Place(mem)
	if err != nil {
		t.Fatal(err)
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	null, err := os.Open("/dev/null")
	if err != nil {
		t.Fatal(err)
	}
	c, err := fork.Start(p, fork.Files{Stdin: int(null.Fd()), Stdout: int(w.Fd()), Stderr: int(w.Fd()), Park: -1, Console: -1, Target: target})
	_, _ = w.Close(), null.Close()
	if err != nil {
		t.Fatal(err)
	}
	failed := c.Outcome(p)
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	var ws unix.WaitStatus
	for {
		if _, err := unix.Wait4(c.Pid, &ws, 0, nil); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	_ = unix.Close(c.PidFD)
	return string(text), ws, failed
}

func TestAContainerIsWhatItsSpecSays(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		in := compile.Input{ID: "c1", Root: rootfs(t), Host: host(t), Spec: nativetest.Spec("sh", "-c", `
			echo pid $$; id; hostname
			grep -E 'Cap|NoNewPrivs|Seccomp:' /proc/self/status
			ls -l /dev /proc/kcore; ls /sys/firmware /dev/pts | wc -l
			touch /proc/sys/kernel/domainname 2>&1; touch /tmp/x 2>&1
			grep -c . /proc/self/mountinfo; cat /proc/self/limits | grep 'open files'
			ls /proc/self/fd; cat /proc/self/cgroup; exit 7`)}
		out, ws, err := runPlan(t, in)
		t.Log(out)
		if err != nil || ws.ExitStatus() != 7 {
			t.Fatalf("status %d, %v", ws.ExitStatus(), err)
		}
		for _, want := range []string{
			"pid 1\n", "uid=1000 gid=1000 groups=5,6", "native\n", "CapBnd:\t0000000000000021", "CapEff:\t0000000000000000", "NoNewPrivs:\t1",
			"null", "Read-only file system", "Max open files            100                  200",
		} {
			if !strings.Contains(out, want) {
				t.Errorf("no %q", want)
			}
		}
	})
}

func TestAMissingProgramIsNamed(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		in := compile.Input{ID: "c1", Root: rootfs(t), Host: host(t), Spec: nativetest.Spec("no-such-program")}
		_, ws, err := runPlan(t, in)
		var f *fork.FailedError
		if !errors.As(err, &f) || f.Name != "exec /bin/no-such-program" || f.Errno != unix.ENOENT || !f.Exec || ws.ExitStatus() != 127 {
			t.Errorf("%v, status %d", err, ws.ExitStatus())
		}
	})
}

// BenchmarkContainer is a whole container, from compiling to its reaped exit.
func BenchmarkContainer(b *testing.B) {
	if os.Getenv(roottest.Env) != "1" {
		b.Skip("needs root")
	}
	t := &testing.T{}
	dir := b.TempDir()
	for _, d := range []string{"bin", "proc", "dev", "sys"} {
		_ = os.MkdirAll(filepath.Join(dir, d), 0o755)
	}
	bb, _ := os.ReadFile("/bin/busybox")
	_ = os.WriteFile(filepath.Join(dir, "bin/true"), bb, 0o755)
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		b.Fatal(err)
	}
	defer func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }()
	in := compile.Input{ID: "c1", Root: dir, Host: host(t), Spec: nativetest.Spec("/bin/true")}
	for b.Loop() {
		_, ws, err := runPlan(t, in)
		if err != nil || ws.ExitStatus() != 0 {
			b.Fatal(err, ws)
		}
	}
}

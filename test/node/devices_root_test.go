package node

import (
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTheHostsNullIsReplaced: with a file in the place of /dev/null, the agent starts
// containers all the same, before and after its restart, in user namespaces too, files hidden
// from them are hidden and cannot be written, and doctor names the fault.
func TestTheHostsNullIsReplaced(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		ownDevices(t)
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		runs := func(when string, cfg *runtimeapi.PodSandboxConfig) {
			t.Helper()
			pod := n.RunPod(t, cfg)
			c := nodetest.ContainerConfig("c", image, "/bin/sh", "-c", `echo x > /dev/null && cat /dev/null /proc/timer_list && chmod 0 /proc/timer_list 2>/dev/null && echo changed
				echo y > /proc/timer_list; echo "$(wc -c < /dev/null) $(umask) done"`)
			c.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{
				NamespaceOptions: cfg.Linux.SecurityContext.NamespaceOptions, MaskedPaths: []string{"/proc/timer_list", "/proc/acpi"},
			}
			app := pod.Run(t, c)
			app.WaitExited(t)
			if log := app.ReadLog(t); !strings.Contains(log, "F 0 0022 done\n") || strings.Count(log, "\n") != 1 {
				t.Errorf("%s: %s", when, log)
			}
			pod.Remove(t)
		}
		diagnosis := func(when string, says ...string) {
			t.Helper()
			out, err := n.CLI("doctor")
			if (err != nil) != strings.HasPrefix(says[0], "fail") {
				t.Errorf("%s: doctor: %v", when, err)
			}
			for _, want := range says {
				if !strings.Contains(out, want) {
					t.Errorf("%s: doctor does not say %q:\n%s", when, want, out)
				}
			}
		}
		runs("before", n.PodConfig("before"))
		diagnosis("before", "ok    devices", "ok    start")
		stays := n.RunPod(t, n.PodConfig("stays"))
		stays.Run(t, nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"))

		if err := os.Remove("/dev/null"); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile("/dev/null", []byte("a file"), 0o666); err != nil {
			t.Fatal(err)
		}
		runs("replaced", n.PodConfig("replaced"))
		runs("replaced, in a user namespace", mappedPod(n, "replaced-mapped"))
		diagnosis("replaced", "fail  devices", "mknod -m 666 /dev/null c 1 3", "ok    start")
		n.Kill()
		n.Up()
		runs("after a restart", n.PodConfig("restarted"))
		runs("after a restart, in a user namespace", mappedPod(n, "restarted-mapped"))
		diagnosis("after a restart", "fail  devices", "ok    start")
		if b, err := os.ReadFile("/dev/null"); err != nil || strings.Contains(string(b), "y") {
			t.Errorf("the file has %q, %v", b, err)
		}
		if err := errors.Join(os.Remove("/dev/null"), unix.Mknod("/dev/null", unix.S_IFCHR|0o666, int(unix.Mkdev(1, 3))), os.Chmod("/dev/null", 0o666)); err != nil {
			t.Fatal(err)
		}
		diagnosis("made anew", "ok    devices", "ok    start")

		// The mount namespace that containers start from has lost its null device, as once with
		// the host's: nothing starts, doctor sees it, and the next agent mends it though a
		// container runs.
		breakNull(t, n)
		if out, err := n.CLI("run", "--rm", image, "/bin/true"); err == nil {
			t.Errorf("a container was started without: %s", out)
		}
		diagnosis("broken", "fail  runtime native", "fail  start", "restart the agent")
		n.Kill()
		n.Up()
		diagnosis("mended", "ok    runtime native", "ok    start")
		runs("mended", n.PodConfig("mended"))
		stays.Remove(t)
		clean(t, n)
	})
}

// ownDevices mounts a /dev for the test alone: nobody else sees its changes.
func ownDevices(t *testing.T) {
	t.Helper()
	dev, err := os.MkdirTemp("/run", "dev")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", dev, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	for name, number := range map[string][2]uint32{"null": {1, 3}, "zero": {1, 5}, "full": {1, 7}, "random": {1, 8}, "urandom": {1, 9}, "tty": {5, 0}, "kmsg": {1, 11}} {
		path := filepath.Join(dev, name)
		if err := errors.Join(unix.Mknod(path, unix.S_IFCHR|0o666, int(unix.Mkdev(number[0], number[1]))), os.Chmod(path, 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"pts", "shm", "mqueue"} {
		if err := os.Mkdir(filepath.Join(dev, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/proc/self/fd", filepath.Join(dev, "fd")); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(dev, "/dev", "", unix.MS_MOVE, ""); err != nil {
		t.Fatal(err)
	}
}

// breakNull hides /dev in the mount namespace that containers start from.
func breakNull(t *testing.T, n *nodetest.Node) {
	t.Helper()
	pins, err := filepath.Glob(filepath.Join(n.State, "runtime", "native.apart", "mnt-*"))
	if err != nil || len(pins) != 1 {
		t.Fatalf("pinned: %v, %v", pins, err)
	}
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends
		fd, err := unix.Open(pins[0], unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = errors.Join(unix.Unshare(unix.CLONE_FS), unix.Setns(fd, unix.CLONE_NEWNS), unix.Mount("tmpfs", "/dev", "tmpfs", 0, ""))
			_ = unix.Close(fd)
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

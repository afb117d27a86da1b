package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// stateSize is the size of the test's state file system, less than a container tries to write.
const stateSize = 24 << 20

// fillAll writes to all files that the agent adds to a container, and to its memory-backed file
// systems, until they are full or have 40 MiB each; then it prints its own change to
// /etc/hosts.
const fillAll = `for f in /etc/hosts /etc/resolv.conf /etc/hostname /control; do
	test -e $f && { dd if=/dev/zero of=$f bs=1M count=40 2>&1 | tail -n 1; }; done
dd if=/dev/zero of=/dev/shm/f bs=1M count=40 2>/dev/null; dd if=/dev/zero of=/dev/f bs=1M count=40 2>/dev/null
rm -f /etc/hosts /dev/shm/f /dev/f; echo mine > /etc/hosts && cat /etc/hosts; echo filled; exec sleep 1000`

// TestAContainerCannotFillTheState: wherever root in a container writes, the file system of all
// containers' records has as much room as before, and others are made and stopped as before. A
// file that used to be bound is the control.
func TestAContainerCannotFillTheState(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir, err := os.MkdirTemp("", "longshore-node-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		state := filepath.Join(dir, "run")
		if err := os.Mkdir(state, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", state, "tmpfs", 0, fmt.Sprintf("size=%d,mode=700", stateSize)); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Unmount(state, unix.MNT_DETACH) })
		n := nodetest.Start(t, nodetest.Options{Dir: dir})
		image := n.Busybox(t)
		other := n.RunPod(t, n.PodConfig("other"))
		other.Run(t, nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"))
		for name, change := range map[string]func(*runtimeapi.ContainerConfig){
			"usual":     func(*runtimeapi.ContainerConfig) {},
			"read-only": func(c *runtimeapi.ContainerConfig) { security(c).ReadonlyRootfs = true },
			"all capabilities": func(c *runtimeapi.ContainerConfig) {
				security(c).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"ALL"}}
				// It lifts read-only mounts.
				c.Command[2] = "for f in /etc/hosts /etc/resolv.conf /etc/hostname / /proc/kcore /proc/sys; do mount -o remount,bind,rw $f; done 2>/dev/null; " + c.Command[2]
			},
			"privileged": func(c *runtimeapi.ContainerConfig) { security(c).Privileged = true },
		} {
			t.Run(name, func(t *testing.T) {
				pod := n.PodConfig(strings.ReplaceAll(name, " ", "-"))
				pod.Linux.SecurityContext.Privileged = name == "privileged"
				attacker := n.RunPod(t, pod)
				before := room(t, state)
				cfg := nodetest.ContainerConfig("c", image, "/bin/sh", "-c", fillAll)
				change(cfg)
				c := attacker.Run(t, cfg)
				nodetest.Eventually(t, "it has filled all", func() bool { return strings.Contains(c.ReadLog(t), "filled\n") })
				if after := room(t, state); before-after > 1<<20 {
					t.Errorf("the state file system lost %d bytes\n%s", before-after, c.ReadLog(t))
				}
				if wrote := strings.Contains(c.ReadLog(t), "F mine\n"); wrote != (name != "read-only") {
					t.Errorf("/etc/hosts could be written: %v\n%s", wrote, c.ReadLog(t))
				}
				if bound := writableOf(t, state, "sleep"); len(bound) > 0 {
					t.Errorf("of the state file system it has, and can write: %v", bound)
				}
				clean(t, n)
				another := n.RunPod(t, n.PodConfig("another"))
				another.Run(t, nodetest.ContainerConfig("c", image, "/bin/true")).WaitExited(t)
				another.Remove(t)
				attacker.Remove(t)
			})
		}
		t.Run("control", func(t *testing.T) {
			attacker := n.RunPod(t, n.PodConfig("control"))
			cfg := nodetest.ContainerConfig("c", image, "/bin/sh", "-c", fillAll)
			cfg.Mounts = []*runtimeapi.Mount{{HostPath: filepath.Join(state, "sandboxes", attacker.ID, "hosts"), ContainerPath: "/control"}}
			c := attacker.Run(t, cfg)
			nodetest.Eventually(t, "it has filled all", func() bool { return strings.Contains(c.ReadLog(t), "filled\n") })
			if left := room(t, state); left > 1<<20 {
				t.Errorf("%d bytes are left on the state file system", left)
			}
			nodetest.Eventually(t, "the shell has become sleep, which has a writable mount of the state file system", func() bool {
				return len(writableOf(t, state, "sleep")) == 1
			})
			_, err := n.CRI.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: n.PodConfig("another")})
			if err == nil {
				t.Error("a pod could be made all the same")
			}
			if err := os.Truncate(cfg.Mounts[0].HostPath, 0); err != nil {
				t.Fatal(err)
			}
			attacker.Remove(t)
		})
		other.Remove(t)
		clean(t, n)
	})
}

// TestAnImageVolumeStaysAsItIs: a container that may change its mounts cannot write
// to an image that it has beside its root, be it of one layer, which other
// containers have too.
func TestAnImageVolumeStaysAsItIs(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		pod := n.RunPod(t, n.PodConfig("p"))
		cfg := nodetest.ContainerConfig("c", image, "/bin/sh", "-c",
			"test -x /image/bin/sh || exit 1; mount -o remount,bind,rw /image; mount -o remount,rw /image; echo bad > /image/bin/bad; echo bad > /image/etc/passwd; rm -f /image/bin/sh; ls /image/bin | grep -c .; echo done")
		security(cfg).Capabilities = &runtimeapi.Capability{AddCapabilities: []string{"ALL"}}
		cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/image", Readonly: true, Image: &runtimeapi.ImageSpec{Image: image}}}
		c := pod.Run(t, cfg)
		if st := c.WaitExited(t); st.GetExitCode() != 0 {
			t.Errorf("it ended with %d:\n%s", st.GetExitCode(), c.ReadLog(t))
		}
		next := pod.Run(t, nodetest.ContainerConfig("next", image, "/bin/sh", "-c", "test ! -e /bin/bad && grep root /etc/passwd"))
		if st := next.WaitExited(t); st.GetExitCode() != 0 {
			t.Errorf("the next container of the image ended with %d:\n%s\n%s", st.GetExitCode(), next.ReadLog(t), c.ReadLog(t))
		}
		pod.Remove(t)
		clean(t, n)
	})
}

func room(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// writableOf lists the mounts of the file system that dir is on that are writable
// in the mount namespaces of processes of that name.
func writableOf(t *testing.T, dir, program string) (found []string) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		t.Fatal(err)
	}
	device := fmt.Sprintf("%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	looked := 0
	procs, err := filepath.Glob("/proc/[0-9]*")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		args, err := os.ReadFile(p + "/cmdline")
		if first, _, _ := strings.Cut(string(args), "\x00"); err != nil || filepath.Base(first) != program {
			continue
		}
		table, err := os.ReadFile(p + "/mountinfo")
		if err != nil {
			continue
		}
		looked++
		for line := range strings.Lines(string(table)) {
			f := strings.Fields(line)
			if f[2] == device && strings.HasPrefix(f[5], "rw") {
				found = append(found, f[4])
			}
		}
	}
	if looked == 0 {
		t.Error("no process of a container was looked at")
	}
	return found
}

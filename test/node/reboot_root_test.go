package node

import (
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestRebootIsToldAsOne kills agent, keeper, nest and every container, takes the
// state directory away, and starts the agent again: it starts clean, the log
// tells what had been running and that it ended, and every name is free.
func TestRebootIsToldAsOne(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		cfg := n.PodConfig("before")
		pod := n.RunPod(t, cfg)
		c := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"))
		n.Kill()
		for _, role := range []string{"nest", "keeper"} {
			for _, pid := range nodetest.Processes("longshore-keeper", role) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		for _, pid := range nodetest.Processes("busybox", "") {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		unmountBelow(t, n.State)
		if err := os.RemoveAll(n.State); err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(n.State, 0o700); err != nil {
			t.Fatal(err)
		}
		n.Up()

		list, err := n.CRI.ListContainers(t.Context(), &runtimeapi.ListContainersRequest{})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range list.GetContainers() {
			if l.GetState() == runtimeapi.ContainerState_CONTAINER_RUNNING {
				t.Errorf("container %s is said to run after a reboot", l.GetId())
			}
		}
		exits, last := 0, uint64(0)
		for _, e := range n.Events() {
			if e.Seq <= last {
				t.Errorf("event %d follows %d", e.Seq, last)
			}
			last = e.Seq
			if e.Kind == "container.exited" && e.Container == c.ID {
				exits++
			}
		}
		if exits != 1 {
			t.Errorf("%d exit events of the container that the reboot ended, want 1", exits)
		}
		out, err := n.CLI("why", c.ID)
		if err != nil || !strings.Contains(out, "restart") {
			t.Errorf("why does not tell of the node's restart: %q %v", out, err)
		}
		n.Check()
		// The names are free.
		again := n.RunPod(t, cfg)
		again.Run(t, nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"))
		again.Remove(t)
		n.Check()
	})
}

func unmountBelow(t *testing.T, dir string) {
	t.Helper()
	for range 100 {
		mounts, err := os.ReadFile("/proc/self/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		var last string
		for line := range strings.Lines(string(mounts)) {
			if m := strings.Fields(line)[4]; strings.HasPrefix(m, dir+"/") {
				last = m
			}
		}
		if last == "" {
			return
		}
		if err := unix.Unmount(last, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
	}
	t.Fatalf("mounts below %s do not end", dir)
}

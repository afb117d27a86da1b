package node

import (
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestRebootIsToldAsOne: after a power cut, which kills agent, keeper, nest and every container
// and empties the state directory, the agent starts clean, the log tells of the containers'
// end, and every name is free.
func TestRebootIsToldAsOne(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image := n.Busybox(t)
		cfg := n.PodConfig("before")
		pod := n.RunPod(t, cfg)
		c := pod.Run(t, nodetest.ContainerConfig("c", image, "/bin/sleep", "1000"))
		n.PowerCut()
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

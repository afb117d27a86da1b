package swarm

import (
	"testing"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestATasksEgressList is a label of its container.
func TestATasksEgressList(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		networktest.NewReachWorld(t)
		n := nodetest.Start(t, nodetest.Options{Config: networktest.ReachDNS + "[face.swarm]\nenabled = true\n"})
		ref, m := n.Busybox(t), swarmtest.New(t)
		if _, err := n.CLI("swarm", "join", m.Addr, "--token", m.Token); err != nil {
			t.Fatal(err)
		}
		for id, want := range map[string]string{"open": networktest.ReachedAll, "listed": networktest.ReachedList} {
			task := swarmtest.Task(id, ref, "sh", "-c", networktest.ReachScript)
			if id == "listed" {
				task.GetSpec().GetContainer().Labels = map[string]string{core.EgressLabel: networktest.ReachList}
			}
			m.Assign(task)
			m.Reaches(id, swarmv1.TaskState_COMPLETE)
			if out, err := n.CLI("logs", id); out != want {
				t.Errorf("%s: %q %v, want %q", id, out, err, want)
			}
		}
	})
}

package swarm

import (
	"testing"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAnIdleTaskSleeps by a label of its container. To the managers it runs.
func TestAnIdleTaskSleeps(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.swarm]\nenabled = true\n"})
		ref, m := n.Busybox(t), swarmtest.New(t)
		if _, err := n.CLI("swarm", "join", m.Addr, "--token", m.Token); err != nil {
			t.Fatal(err)
		}
		task := swarmtest.Task("idle", ref, "sleep", "1000")
		task.GetSpec().GetContainer().Labels = map[string]string{core.SleepAfterLabel: "1s"}
		m.Assign(task)
		m.Reaches("idle", swarmv1.TaskState_RUNNING)
		n.Bed(t).FallsAsleep("swarm")
		m.Reaches("idle", swarmv1.TaskState_RUNNING)
		if out, err := n.CLI("check"); err != nil {
			t.Errorf("%s, %v", out, err)
		}
	})
}

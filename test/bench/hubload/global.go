package hubload

import (
	"context"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// global declares a global service of our hub, which goes through its scheduler and its store. The clients report
// each task as a worker does. The longest time for which a heartbeat had no answer meanwhile is noted too.
func (m measurement) global(ctx context.Context) error {
	if _, err := m.s.ask(request{Op: "clear"}); err != nil {
		return err
	}
	m.c.slowest.Store(0)
	m.c.obeys.Store(true)
	defer m.c.obeys.Store(false)
	used := m.s.cpu()
	a, err := m.s.ask(request{Op: "global", N: m.n, Within: time.Until(deadline(ctx))})
	if err != nil {
		return err
	}
	m.f.scheduled = float64((m.s.cpu() - used).Microseconds()) / float64(m.n)
	m.f.deployed = float64(a.Ended-a.Began) / 1e9
	m.f.slowest = float64(m.c.slowest.Load()) / 1e6
	return nil
}

func deadline(ctx context.Context) time.Time {
	at, ok := ctx.Deadline()
	if !ok {
		return time.Now().Add(time.Hour)
	}
	return at
}

// states are those that a worker reports of a task that it starts.
var states = []swarmv1.TaskState{swarmv1.TaskState_PREPARING, swarmv1.TaskState_STARTING, swarmv1.TaskState_RUNNING}

// obey reports that the tasks of a message run.
func (n *client) obey(msg *swarmv1.AssignmentsMessage) error {
	for _, change := range msg.GetChanges() {
		t := change.GetAssignment().GetTask()
		if t == nil || change.GetAction() != swarmv1.AssignmentChange_UPDATE || t.GetStatus().GetState() >= swarmv1.TaskState_RUNNING {
			continue
		}
		for _, state := range states {
			if err := n.reportState(n.all.ctx, t.GetId(), state); err != nil {
				return err
			}
		}
	}
	return nil
}

// answered notes how long a heartbeat took.
func (c *clients) answered(took time.Duration) {
	for {
		before := c.slowest.Load()
		if int64(took) <= before || c.slowest.CompareAndSwap(before, int64(took)) {
			return
		}
	}
}

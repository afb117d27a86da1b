package swarm

import (
	"context"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/swarm/publish"
	"github.com/longshore/longshore/internal/face/swarm/translate"
	"github.com/longshore/longshore/internal/logs"
)

var _ publish.Source = outputs{}

// outputs are the outputs of a worker's tasks.
type outputs struct{ w *worker }

// Outputs implements publish.Source.
func (x outputs) Outputs(ctx context.Context, match func(service, task string) bool) (list []publish.Output) {
	x.w.mu.Lock()
	var tasks []*swarmv1.Task
	for id, t := range x.w.tasks {
		if !t.removed && match(t.swarm.GetServiceId(), id) {
			tasks = append(tasks, t.swarm)
		}
	}
	x.w.mu.Unlock()
	for _, t := range tasks {
		c, err := x.w.engine.ContainerByKey(ctx, core.Key(t.GetId()))
		if err == nil && c.State != core.ContainerCreating && c.State != core.ContainerCreated {
			list = append(list, x.of(t, c))
		}
	}
	return list
}

// of returns the output of a task's container. A task that can no longer be read has no attributes.
func (x outputs) of(t *swarmv1.Task, c core.Container) publish.Output {
	o := publish.Output{Service: t.GetServiceId(), Task: t.GetId(), Container: c.ID, Sinks: logs.Whole(c.Config.IO.Sinks)}
	if a, err := translate.Read(t, x.w.node); err == nil {
		o.Attributes, _ = a.LogAttributes(c)
	}
	return o
}

// Ended implements publish.Source.
func (x outputs) Ended(ctx context.Context, id core.ID) (<-chan struct{}, func()) {
	return engine.Ended(ctx, x.w.engine, id)
}

// started sends the output of a task that runs now to its followers.
func (x outputs) started(ctx context.Context, e core.Event) {
	x.w.mu.Lock()
	t := x.w.tasks[string(e.Key)]
	var s *swarmv1.Task
	if t != nil && !t.removed {
		s = t.swarm
	}
	x.w.mu.Unlock()
	if s == nil {
		return
	}
	if c, err := x.w.engine.Container(ctx, e.Container); err == nil {
		x.w.output.Started(x.of(s, c))
	}
}

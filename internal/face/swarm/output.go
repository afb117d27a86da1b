package swarm

import (
	"context"
	"slices"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/swarm/publish"
	"github.com/longshore/longshore/internal/face/swarm/translate"
	"github.com/longshore/longshore/internal/logs"
)

var _ publish.Source = (*outputs)(nil)

// outputs finds the outputs of tasks.
type outputs struct {
	engine *engine.Client
	node   translate.Node
	tasks  func() []*swarmv1.Task // the node's
}

// Outputs implements publish.Source.
func (o *outputs) Outputs(ctx context.Context, match func(service, task string) bool) (list []publish.Output) {
	for _, t := range o.tasks() {
		if !match(t.GetServiceId(), t.GetId()) {
			continue
		}
		c, err := o.engine.ContainerByKey(ctx, core.Key(t.GetId()))
		if err == nil && c.State != core.ContainerCreating && c.State != core.ContainerCreated {
			list = append(list, o.of(t, c))
		}
	}
	return list
}

// of returns the output of a task's container. A task that can no longer be read has no attributes.
func (o *outputs) of(t *swarmv1.Task, c core.Container) publish.Output {
	out := publish.Output{Service: t.GetServiceId(), Task: t.GetId(), Container: c.ID, Sinks: logs.Whole(c.Config.IO.Sinks)}
	if a, err := translate.Read(t, o.node); err == nil {
		out.Attributes, _ = a.LogAttributes(c)
	}
	return out
}

// Ended implements publish.Source.
func (o *outputs) Ended(ctx context.Context, id core.ID) (<-chan struct{}, func()) {
	return engine.Ended(ctx, o.engine, id)
}

// started returns the output of a container that an event says was started; false if it is none of the node's tasks'.
func (o *outputs) started(ctx context.Context, e core.Event) (publish.Output, bool) {
	tasks := o.tasks()
	i := slices.IndexFunc(tasks, func(t *swarmv1.Task) bool { return t.GetId() == string(e.Key) })
	if i < 0 {
		return publish.Output{}, false
	}
	c, err := o.engine.Container(ctx, e.Container)
	if err != nil {
		return publish.Output{}, false
	}
	return o.of(tasks[i], c), true
}

package swarm

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/stepper"
)

// claim makes devices a task's own until it has ended. FailedPrecondition when another task has
// one: managers give a device to one task at a time, but we need not believe that.
func (w *worker) claim(ctx context.Context, id string, devices []string) error {
	if len(devices) == 0 {
		return nil
	}
	containers, err := w.engine.Containers(ctx, core.Filter{})
	if err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, name := range devices {
		holder := w.devices[name]
		if t := w.tasks[holder]; holder == id || t == nil || stepper.Ended(t.swarm.GetStatus().GetState()) {
			holder = ""
		}
		// Those of an earlier agent, and of tasks that are removed.
		for _, c := range containers {
			t := w.tasks[string(c.Key)]
			ended := c.State == core.ContainerExited || t != nil && stepper.Ended(t.swarm.GetStatus().GetState())
			if !ended && string(c.Key) != id && slices.Contains(c.Config.CDI, name) {
				holder = string(c.Key)
			}
		}
		if holder != "" {
			return fmt.Errorf("device %s is still task %s's: %w", name, holder, errdefs.ErrFailedPrecondition)
		}
	}
	for _, name := range devices {
		w.devices[name] = id
	}
	return nil
}

// ending reports whether another task than id is about to end. It then frees devices that a task
// lacks now.
func (w *worker) ending(id string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	for other, t := range w.tasks {
		if other != id && (t.removed || t.swarm.GetDesiredState() >= swarmv1.TaskState_SHUTDOWN && !stepper.Ended(t.swarm.GetStatus().GetState())) {
			return true
		}
	}
	return false
}

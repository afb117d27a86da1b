package solo

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// The conditions of a wait, besides the end of the container.
const (
	NotRunning = "not-running"
	NextExit   = "next-exit"
	Removed    = "removed"
)

// neverRan reports whether a container has ended without a start of its program.
func neverRan(c *core.Container) bool {
	return c.State == core.ContainerExited && c.Main.Started.IsZero()
}

// NextEnd waits for the first end of the container's program after the event since, or for the container's removal. Then it
// returns the last end, nil if there was none.
func NextEnd(ctx context.Context, all *engine.Client, c core.Container, since uint64, removed bool) (*core.Autopsy, error) {
	last, started := c.Main.Autopsy, c.State != core.ContainerCreated && !neverRan(&c)
	if !started {
		last = nil
	}
	for e, err := range all.Events(ctx, since, core.Filter{Container: c.ID}) {
		switch {
		case err != nil:
			return nil, err
		case e.Kind == core.EventContainerStarted:
			started = true
		case e.Kind == core.EventContainerExited && (started || e.Autopsy != nil && e.Autopsy.Start != ""): // a removal also ends a process that was never started
			if last = e.Autopsy; !removed {
				return last, nil
			}
		case e.Kind == core.EventContainerRemoved && removed:
			return last, nil
		case e.Kind == core.EventContainerRemoved:
			return nil, fmt.Errorf("wait for %s: it was removed before it ended: %w", c.ID.Short(), errdefs.ErrNotFound)
		}
	}
	return nil, context.Cause(ctx)
}

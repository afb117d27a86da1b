package control

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
)

// The conditions of a wait, besides the end of the container.
const (
	waitNotRunning = "not-running"
	waitNextExit   = "next-exit"
	waitRemoved    = "removed"
)

// Wait returns when the container has ended, or at the request's condition.
func (s *containerServer) Wait(ctx context.Context, req *longshorev1.WaitRequest) (*longshorev1.WaitResponse, error) {
	// The events after this number have everything that happens after the container was found.
	since, err := s.srv.all.LastSeq(ctx)
	if err != nil {
		return nil, err
	}
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	var wait func(context.Context) (*core.Autopsy, error)
	ended := s.srv.all.JoinWait
	switch req.GetCondition() {
	case "", waitNotRunning:
		created := c.State == core.ContainerCreated || view.NeverRan(&c)
		if req.GetCondition() == waitNotRunning && created {
			return &longshorev1.WaitResponse{}, nil
		}
		if c.State != core.ContainerCreated && created { // the end on record is of no program
			wait = func(ctx context.Context) (*core.Autopsy, error) { return nextEnd(ctx, s.srv.all, c, since, false) }
			break
		}
		join := ended(core.Ref{Container: c.ID})
		wait = func(ctx context.Context) (*core.Autopsy, error) {
			a, err := join(ctx)
			return &a, err
		}
	case waitNextExit:
		wait = func(ctx context.Context) (*core.Autopsy, error) { return nextEnd(ctx, s.srv.all, c, since, false) }
	case waitRemoved:
		wait = func(ctx context.Context) (*core.Autopsy, error) { return nextEnd(ctx, s.srv.all, c, since, true) }
	default:
		return nil, invalid.Errorf("condition %q is none of %s, %s, %s", req.GetCondition(), waitNotRunning, waitNextExit, waitRemoved)
	}
	_ = grpc.SendHeader(ctx, nil) // it fails only without a client, and then ctx ends
	a, err := wait(ctx)
	if err != nil {
		return nil, err
	}
	if a == nil {
		return &longshorev1.WaitResponse{}, nil
	}
	return &longshorev1.WaitResponse{Autopsy: view.Autopsy(a)}, nil
}

// nextEnd waits for the first end of the container's program after the event since, or for the container's removal. Then it
// returns the last end, nil if there was none.
func nextEnd(ctx context.Context, all *engine.Client, c core.Container, since uint64, removed bool) (*core.Autopsy, error) {
	last, started := c.Main.Autopsy, c.State != core.ContainerCreated && !view.NeverRan(&c)
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

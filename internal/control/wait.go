package control

import (
	"context"

	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo"
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
	case "", solo.NotRunning:
		created := c.State == core.ContainerCreated || view.NeverRan(&c)
		if req.GetCondition() == solo.NotRunning && created {
			return &longshorev1.WaitResponse{}, nil
		}
		if c.State != core.ContainerCreated && created { // the end on record is of no program
			wait = func(ctx context.Context) (*core.Autopsy, error) { return solo.NextEnd(ctx, s.srv.all, c, since, false) }
			break
		}
		join := ended(core.Ref{Container: c.ID})
		wait = func(ctx context.Context) (*core.Autopsy, error) {
			a, err := join(ctx)
			return &a, err
		}
	case solo.NextExit:
		wait = func(ctx context.Context) (*core.Autopsy, error) { return solo.NextEnd(ctx, s.srv.all, c, since, false) }
	case solo.Removed:
		wait = func(ctx context.Context) (*core.Autopsy, error) { return solo.NextEnd(ctx, s.srv.all, c, since, true) }
	default:
		return nil, invalid.Errorf("condition %q is none of %s, %s, %s", req.GetCondition(), solo.NotRunning, solo.NextExit, solo.Removed)
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

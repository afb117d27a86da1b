package control

import (
	"context"
	"fmt"
	"syscall"

	"github.com/longshore/longshore/internal/solo"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/access"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/asleep"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/solo/translate"
)

// stopOptions returns the options of a request to stop a container.
func stopOptions(signal string, grace *durationpb.Duration, req core.StopRequest) (engine.StopOptions, error) {
	opts := engine.StopOptions{Signal: signal, Request: req}
	if signal != "" {
		if _, err := ocispec.Signal(signal); err != nil {
			return opts, err
		}
	}
	var err error
	opts.Grace, err = translate.Grace(grace)
	return opts, err
}

// Start starts a created container, or one of ours that has ended again.
func (s *containerServer) Start(ctx context.Context, req *longshorev1.StartRequest) (*longshorev1.StartResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	view, err := s.srv.changer(c.Meta, req.GetForce())
	if err != nil {
		return nil, err
	}
	if c.Owner == core.OwnerCLI {
		err = s.srv.solo.Start(ctx, c)
	} else {
		err = view.StartContainer(ctx, c.ID)
	}
	if err != nil {
		return nil, startFailure(err)
	}
	return &longshorev1.StartResponse{}, nil
}

// Restart stops a container of ours, unless it has ended, and starts it again.
func (s *containerServer) Restart(ctx context.Context, req *longshorev1.RestartRequest) (*longshorev1.RestartResponse, error) {
	opts, err := stopOptions(req.GetSignal(), req.GetGrace(), access.StopRequest(ctx, "longshore restart"))
	if err != nil {
		return nil, err
	}
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if c.Owner != core.OwnerCLI {
		return nil, fmt.Errorf("restart %s: it belongs to %s, which makes a new container instead: %w", c.ID.Short(), c.Owner, errdefs.ErrPermissionDenied)
	}
	if err := s.srv.solo.Restart(ctx, c, opts); err != nil {
		return nil, startFailure(err)
	}
	return &longshorev1.RestartResponse{}, nil
}

// Restart restarts a container of the owner "cli", for another API.
func (s *Server) Restart(ctx context.Context, c core.Container, o engine.StopOptions) error {
	return s.solo.Restart(ctx, c, o)
}

// Stop stops a container, or a sandbox with every container in it.
func (s *containerServer) Stop(ctx context.Context, req *longshorev1.StopRequest) (*longshorev1.StopResponse, error) {
	opts, err := stopOptions(req.GetSignal(), req.GetGrace(), access.StopRequest(ctx, "longshore stop"))
	if err != nil {
		return nil, err
	}
	c, err := s.srv.container(ctx, req.GetName())
	if err == nil {
		view, err := s.srv.changer(c.Meta, req.GetForce())
		if err != nil {
			return nil, err
		}
		return &longshorev1.StopResponse{}, view.StopContainer(ctx, c.ID, opts)
	}
	if !errdefs.IsNotFound(err) {
		return nil, err
	}
	sb, serr := s.srv.sandbox(ctx, req.GetName())
	if serr != nil {
		return nil, err
	}
	view, err := s.srv.changer(sb.Meta, req.GetForce())
	if err != nil {
		return nil, err
	}
	return &longshorev1.StopResponse{}, view.StopSandbox(ctx, sb.ID, opts)
}

// Kill sends one signal to a container's main process.
func (s *containerServer) Kill(ctx context.Context, req *longshorev1.KillRequest) (*longshorev1.KillResponse, error) {
	sig := int(syscall.SIGKILL)
	if req.GetSignal() != "" {
		var err error
		if sig, err = ocispec.Signal(req.GetSignal()); err != nil {
			return nil, err
		}
	}
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	view, err := s.srv.changer(c.Meta, req.GetForce())
	if err != nil {
		return nil, err
	}
	a := access.StopRequest(ctx, "longshore kill")
	a.Signal = sig
	return &longshorev1.KillResponse{}, view.Signal(ctx, core.Ref{Container: c.ID}, sig, a)
}

// Pause freezes a container.
func (s *containerServer) Pause(ctx context.Context, req *longshorev1.PauseRequest) (*longshorev1.PauseResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	view, err := s.srv.changer(c.Meta, req.GetForce())
	if err != nil {
		return nil, err
	}
	return &longshorev1.PauseResponse{}, view.PauseContainer(ctx, c.ID)
}

// Sleep puts a container to sleep.
func (s *containerServer) Sleep(ctx context.Context, req *longshorev1.SleepRequest) (*longshorev1.SleepResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	v, err := s.srv.changer(c.Meta, req.GetForce())
	if err != nil {
		return nil, err
	}
	if err := v.Rests.Sleep(ctx, c.ID); err != nil {
		return nil, err
	}
	if c, err = v.Container(ctx, c.ID); err != nil {
		return nil, err
	}
	return &longshorev1.SleepResponse{Rest: view.Rest(c.Rest)}, nil
}

// Wake wakes a container.
func (s *containerServer) Wake(ctx context.Context, req *longshorev1.WakeRequest) (*longshorev1.WakeResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	v, err := s.srv.changer(c.Meta, req.GetForce())
	if err != nil {
		return nil, err
	}
	return &longshorev1.WakeResponse{}, v.Rests.Wake(ctx, c.ID, asleep.ByRequest)
}

// Resume lets a paused container continue.
func (s *containerServer) Resume(ctx context.Context, req *longshorev1.ResumeRequest) (*longshorev1.ResumeResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	view, err := s.srv.changer(c.Meta, req.GetForce())
	if err != nil {
		return nil, err
	}
	return &longshorev1.ResumeResponse{}, view.ResumeContainer(ctx, c.ID)
}

// Remove removes a container, together with the sandbox that was created for it, or a whole
// sandbox.
func (s *containerServer) Remove(ctx context.Context, req *longshorev1.RemoveRequest) (*longshorev1.RemoveResponse, error) {
	opts := engine.RemoveOptions{Force: req.GetForce(), Request: access.StopRequest(ctx, "longshore rm")}
	c, err := s.srv.container(ctx, req.GetName())
	if err == nil {
		view, err := s.srv.changer(c.Meta, req.GetForce())
		if err != nil {
			return nil, err
		}
		if c.Owner == core.OwnerCLI {
			return &longshorev1.RemoveResponse{}, s.srv.solo.Remove(ctx, c, solo.Removal{RemoveOptions: opts, Volumes: req.GetVolumes()})
		}
		return &longshorev1.RemoveResponse{}, view.RemoveContainer(ctx, c.ID, opts)
	}
	if !errdefs.IsNotFound(err) {
		return nil, err
	}
	sb, serr := s.srv.sandbox(ctx, req.GetName())
	if serr != nil {
		return nil, err
	}
	view, err := s.srv.changer(sb.Meta, req.GetForce())
	if err != nil {
		return nil, err
	}
	return &longshorev1.RemoveResponse{}, view.RemoveSandbox(ctx, sb.ID, opts)
}

package control

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/durationpb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/access"
	"github.com/longshore/longshore/internal/control/translate"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/ocispec"
)

// cleanTimeout bounds the cleanup after a call has failed or its client has left.
const cleanTimeout = time.Minute

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
		unlock, err := s.srv.settling.Lock(ctx, c.ID)
		if err != nil {
			return nil, err
		}
		defer unlock()
		if cur, err := s.srv.own.Container(ctx, c.ID); err == nil && cur.Restarting() {
			return &longshorev1.StartResponse{}, nil // its restart policy starts it; docker's answer too
		}
		if err := s.startable(ctx, c); err != nil {
			return nil, err
		}
		if err := s.srv.renewLocked(ctx, c.ID); err != nil {
			return nil, err
		}
	}
	if err := s.srv.started(ctx, view, c.ID); err != nil {
		return nil, startFailure(err)
	}
	return &longshorev1.StartResponse{}, nil
}

// renew makes a container of ours ready to be started again, if it has ended.
func (s *Server) renew(ctx context.Context, id core.ID) error {
	unlock, err := s.settling.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return s.renewLocked(ctx, id)
}

// renewLocked is renew. Preconditions: the container's lock in settling is held.
func (s *Server) renewLocked(ctx context.Context, id core.ID) error {
	c, err := s.own.Container(ctx, id)
	if err != nil || c.State != core.ContainerExited {
		return err
	}
	if err := restartable(c); err != nil {
		return err
	}
	return s.own.RenewContainer(ctx, id)
}

// restartable returns an error if a container of ours cannot be started a second time.
func restartable(c core.Container) error {
	if !c.Config.IO.Hold {
		return nil
	}
	return fmt.Errorf("start %s again: its output belongs to the `longshore run --rm` that made it; run it with -d to restart it: %w", c.Key, errdefs.ErrFailedPrecondition)
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
	if err := restartable(c); err != nil {
		return nil, err
	}
	// With this lock held, the container is not settled between its end and its start: one with
	// --rm would be removed.
	unlock, err := s.srv.settling.Lock(ctx, c.ID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if c, err = s.srv.own.Container(ctx, c.ID); err != nil {
		return nil, err
	}
	if err := s.startable(ctx, c); err != nil {
		return nil, err
	}
	if c.State != core.ContainerCreated {
		if err := s.srv.own.StopContainer(ctx, c.ID, opts); err != nil {
			return nil, err
		}
		if err := s.srv.renewLocked(ctx, c.ID); err != nil {
			return nil, err
		}
	}
	if err := s.srv.started(ctx, s.srv.own, c.ID); err != nil {
		return nil, startFailure(err)
	}
	return &longshorev1.RestartResponse{}, nil
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
			return &longshorev1.RemoveResponse{}, s.srv.removeOwn(ctx, c, removal{opts, req.GetVolumes()})
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

// removal has the options for the removal of a container of ours.
type removal struct {
	engine.RemoveOptions
	volumes bool // also removes its anonymous volumes
}

// removeOwn removes a container of ours together with its sandbox and its log.
func (s *Server) removeOwn(ctx context.Context, c core.Container, opts removal) error {
	if !opts.Force && (c.State == core.ContainerRunning || c.State == core.ContainerPaused || c.Restarting()) {
		return fmt.Errorf("remove %s: it is %s, stop it first or use --force: %w", c.Key, c.State, errdefs.ErrFailedPrecondition)
	}
	// The sandbox was created for this container alone and is removed with it, so kill processes that still run in it.
	opts.Force = true
	sb, err := s.own.Sandbox(ctx, c.Sandbox)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	if err := s.own.RemoveSandbox(ctx, c.Sandbox, opts.RemoveOptions); err != nil {
		return err
	}
	settleHolders(ctx, s, &sb)
	errs := []error{s.removeLog(c)}
	if opts.volumes {
		for _, name := range recordOf(c).Anonymous {
			// Another container may use it, by its generated name: then it stays.
			if err := s.own.Volumes.Remove(ctx, name); err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
				errs = append(errs, err)
			}
		}
	}
	return errors.Join(errs...)
}

package solo

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// cleanTimeout bounds the cleanup after a call has failed or its client has left.
const cleanTimeout = time.Minute

// Start starts a created container, or one that has ended again. It does nothing for one that its restart policy starts.
func (s *Service) Start(ctx context.Context, c core.Container) error {
	unlock, err := s.settling.Lock(ctx, c.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if cur, err := s.own.Container(ctx, c.ID); err == nil && cur.Restarting() {
		return nil // docker's answer too
	}
	if err := s.startable(ctx, c); err != nil {
		return err
	}
	if err := s.renewLocked(ctx, c.ID); err != nil {
		return err
	}
	return s.started(ctx, c.ID)
}

// StartCreated starts a container that was just created, and removes it after a failure if it is removed after its end.
func (s *Service) StartCreated(ctx context.Context, c core.Container) error {
	err := s.startable(ctx, c)
	if err == nil {
		err = s.started(ctx, c.ID)
	}
	if err != nil {
		s.DropIfAuto(ctx, c)
	}
	return err
}

// Renew makes a container ready to be started again, if it has ended.
func (s *Service) Renew(ctx context.Context, id core.ID) error {
	unlock, err := s.settling.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return s.renewLocked(ctx, id)
}

// renewLocked is Renew. Preconditions: the container's lock in settling is held.
func (s *Service) renewLocked(ctx context.Context, id core.ID) error {
	c, err := s.own.Container(ctx, id)
	if err != nil || c.State != core.ContainerExited {
		return err
	}
	if err := restartable(c); err != nil {
		return err
	}
	return s.own.RenewContainer(ctx, id)
}

// restartable returns an error if a container cannot be started a second time.
func restartable(c core.Container) error {
	if !c.Config.IO.Hold {
		return nil
	}
	return fmt.Errorf("start %s again: its output belongs to the `longshore run --rm` that made it; run it with -d to restart it: %w", c.Key, errdefs.ErrFailedPrecondition)
}

// Restart stops a container, unless it has ended, and starts it again.
func (s *Service) Restart(ctx context.Context, c core.Container, opts engine.StopOptions) error {
	if err := restartable(c); err != nil {
		return err
	}
	// With this lock held, the container is not settled between its end and its start: one with
	// --rm would be removed.
	unlock, err := s.settling.Lock(ctx, c.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if c, err = s.own.Container(ctx, c.ID); err != nil {
		return err
	}
	if err := s.startable(ctx, c); err != nil {
		return err
	}
	if c.State != core.ContainerCreated {
		if err := s.own.StopContainer(ctx, c.ID, opts); err != nil {
			return err
		}
		if err := s.renewLocked(ctx, c.ID); err != nil {
			return err
		}
	}
	return s.started(ctx, c.ID)
}

// linkTime bounds the time of a start for the files of those with a link to the container. followLinks updates the
// others.
const linkTime = 2 * time.Second

// started starts a container. Its names resolve when it returns.
func (s *Service) started(ctx context.Context, id core.ID) error {
	return s.startedBy(ctx, id, func() error { return s.own.StartContainer(ctx, id) })
}

// startedBy is started with another verb than a start.
func (s *Service) startedBy(ctx context.Context, id core.ID, start func() error) error {
	if s.o.Starting != nil {
		s.o.Starting(ctx, id)
	}
	if err := start(); err != nil {
		return err
	}
	if s.o.Starting != nil {
		s.o.Starting(ctx, id) // for clients that came after the first call
	}
	if err := s.node.Publish(ctx); err != nil { // it runs: followNames tries again
		s.o.Logger.WarnContext(ctx, "could not report a running container to the networks' name servers; will try again", "container", string(id), "error", err)
	}
	if c, err := s.own.Container(ctx, id); err == nil {
		soon, cancel := context.WithTimeout(ctx, linkTime)
		defer cancel()
		_ = s.own.Attachments.Relink(soon, s.o.Owner, c.Sandbox) // followLinks reports errors
	}
	return nil
}

// DropIfAuto removes a container that could not be started, if its user asked for its removal
// after its end.
func (s *Service) DropIfAuto(ctx context.Context, c core.Container) {
	if !RecordOf(c).AutoRemove {
		return
	}
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	a := core.StopRequest{Owner: s.o.Owner, Call: "longshore agent: the container could not be started", At: time.Now()}
	if err := s.Remove(clean, c, Removal{engine.RemoveOptions{Request: a}, true}); err != nil {
		s.o.Logger.WarnContext(ctx, "could not remove a container that did not start; remove it with longshore rm", "container", string(c.ID), "error", err)
	}
}

// Removal has the options for the removal of a container.
type Removal struct {
	engine.RemoveOptions
	Volumes bool // also removes its anonymous volumes
}

// Remove removes a container together with its sandbox and its log. Without force, one that runs is refused, also if another call
// starts it meanwhile.
func (s *Service) Remove(ctx context.Context, c core.Container, opts Removal) error {
	if opts.Force {
		return s.remove(ctx, c, opts)
	}
	unlock, err := s.settling.Lock(ctx, c.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if c, err = s.own.Container(ctx, c.ID); err != nil {
		return err
	}
	if c.State.Live() || c.Restarting() {
		return fmt.Errorf("remove %s: it is %s, stop it first or use --force: %w", c.Key, c.State, errdefs.ErrFailedPrecondition)
	}
	return s.remove(ctx, c, opts)
}

// remove removes a container that may run.
func (s *Service) remove(ctx context.Context, c core.Container, opts Removal) error {
	// The sandbox was created for this container alone and is removed with it, so kill processes that still run in it.
	opts.Force = true
	sb, err := s.own.Sandbox(ctx, c.Sandbox)
	if err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	var anonymous []string
	if opts.Volumes {
		anonymous = RecordOf(c).Anonymous
	}
	volumes := removals{s.o.Removals, s.own}
	if err := volumes.store(c.ID, anonymous); err != nil {
		return err
	}
	if err := s.own.RemoveSandbox(ctx, c.Sandbox, opts.RemoveOptions); err != nil {
		return errors.Join(err, volumes.resumeOne(ctx, c.ID, anonymous, false))
	}
	if s.o.Removed != nil {
		s.o.Removed(c.ID)
	}
	s.settleHolders(ctx, &sb)
	return errors.Join(removeLog(s.o.LogDir, c), volumes.finish(ctx, c.ID, anonymous))
}

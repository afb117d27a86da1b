package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/asleep"
	"github.com/longshore/longshore/internal/engine/stages"
	"github.com/longshore/longshore/internal/engine/validate"
)

const (
	sigkill = int(unix.SIGKILL)
	sigterm = int(unix.SIGTERM)
	sigstop = int(unix.SIGSTOP)
)

// StopContainer asks the main process to end, and kills it when the grace period is over. It
// returns when the end is recorded, and succeeds when the container has ended or is gone.
// Concurrent stops each use their own grace period, so the shortest one counts.
func (c *Client) StopContainer(ctx context.Context, id core.ID, opts StopOptions) error {
	ct, err := c.view.Container(id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	err = c.view.stop(ctx, &ct, opts)
	if errdefs.IsNotFound(err) {
		return nil // removed meanwhile
	}
	if err != nil {
		return fmt.Errorf("stop container %s: %w", id, err)
	}
	return nil
}

// KillContainer kills everything in a container and does not wait for its end, as StopContainer
// does. It succeeds when the container has ended.
func (c *Client) KillContainer(ctx context.Context, id core.ID, req core.StopRequest) error {
	ct, err := c.view.Container(id)
	if err != nil {
		return err
	}
	if ct.State == core.ContainerExited && !ct.Restarting() {
		return nil
	}
	op := core.Operation{Verb: core.VerbStop, Container: &ct}
	err = c.view.e.perform(ctx, &op, func() error {
		if ct.State == core.ContainerExited {
			if ended, err := c.Restarts.End(ctx, id, req); err != nil || ended {
				return err
			}
		}
		req = c.view.Request(req, "KillContainer")
		req.Signal, req.Stop = sigkill, true
		if err := c.view.recordRequest(core.Ref{Container: id}, req); err != nil {
			return err
		}
		return c.view.e.kill(ctx, &ct)
	})
	if err != nil {
		return fmt.Errorf("kill container %s: %w", id, err)
	}
	return nil
}

func (c view) stop(ctx context.Context, ct *core.Container, opts StopOptions) error {
	op := core.Operation{Verb: core.VerbStop, Container: ct, Part: opts.part}
	return c.e.perform(ctx, &op, func() error { return c.end(ctx, ct, opts) })
}

// end stops a container, after the policies allowed it.
func (c view) end(ctx context.Context, ct *core.Container, opts StopOptions) error {
	e, ref := c.e, core.Ref{Container: ct.ID}
	if ct.State == core.ContainerExited {
		ended, err := c.restarts().End(ctx, ct.ID, opts.Request)
		if err != nil || ended {
			return err
		}
		cur, err := c.Container(ct.ID) // its restart policy has started it
		if err != nil {
			return err
		}
		return c.end(ctx, &cur, opts)
	}
	if ct.State == core.ContainerCreating {
		// A create in progress holds this lock and is cancelled; if it had completed, the container is
		// stopped.
		done := e.creates.GiveUp(ct.ID)
		unlock, err := e.sandboxes.Lock(ctx, ct.Sandbox)
		done()
		if err != nil {
			return err
		}
		unlock()
		cur, err := c.Container(ct.ID)
		if err != nil {
			return err
		}
		if cur.State == core.ContainerCreating {
			return fmt.Errorf("its create was never completed: %w", errdefs.ErrUnavailable)
		}
		return c.end(ctx, &cur, opts)
	}
	sig, grace, err := stopPlan(ct, opts)
	if err != nil {
		return err
	}
	if ct.State == core.ContainerCreated {
		grace = 0 // its program never ran, so nothing would handle a signal
	}
	pl := e.pipeline(ctx, ct.Owner, "stop")
	req := c.Request(opts.Request, "StopContainer")
	req.Stop = true
	if req.Signal = sig; grace <= 0 {
		req.Signal = sigkill
	}
	if err := c.recordRequest(ref, req); err != nil {
		return err
	}
	if err := pl.Pass("asked"); err != nil {
		return err
	}
	if grace > 0 {
		ended, err := c.graceful(ctx, ct, sig, grace, pl)
		if err != nil || ended {
			return err
		}
	}
	if err := e.kill(ctx, ct); err != nil {
		return err
	}
	if err := pl.Pass("killed"); err != nil {
		return err
	}
	if _, err := e.await(ctx, ref); err != nil {
		return err
	}
	return pl.Pass("ended")
}

func stopPlan(ct *core.Container, opts StopOptions) (sig int, grace time.Duration, err error) {
	name := opts.Signal
	if name == "" {
		name = ct.Config.Stop.Signal
	}
	grace = ct.Config.Stop.Grace
	if opts.Grace != nil {
		grace = *opts.Grace
	}
	sig, err = validate.StopSignal(name)
	return sig, grace, err
}

// graceful signals the main process and waits for its end, for at most grace.
func (c view) graceful(ctx context.Context, ct *core.Container, sig int, grace time.Duration, pl *stages.Pipeline) (ended bool, err error) {
	e, ref := c.e, core.Ref{Container: ct.ID}
	ask := func() error { return e.o.Supervisor.Signal(ctx, ref, sig) }
	if ct.Confinement != nil && ct.Confinement.Shutdown { // a signal would end it before it has read the request
		ask = func() error { return e.o.Supervisor.CloseStdin(ctx, ref) }
	}
	if err := ask(); err != nil && !errdefs.IsNotFound(err) {
		return false, err
	}
	if err := c.rests().Wake(ctx, ct.ID, asleep.ByStop); errors.Is(err, core.ErrMemoryLost) {
		return false, nil // that has killed it
	} else if err != nil {
		return false, err
	}
	if ct.State == core.ContainerPaused {
		// A frozen process does not get signals.
		if err := c.frozen(ctx, ct, core.VerbResume); err != nil && !errdefs.IsFailedPrecondition(err) {
			return false, err
		}
	}
	if err := pl.Pass("signalled"); err != nil {
		return false, err
	}
	wait, cancel := context.WithTimeout(ctx, grace)
	defer cancel()
	_, err = e.await(wait, ref)
	switch {
	case err == nil:
		return true, pl.Pass("ended")
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case errors.Is(err, context.DeadlineExceeded):
		return false, nil
	default:
		return false, err
	}
}

// kill kills everything in a container. Adopted cgroups may contain processes of others; there it
// kills only those that the keeper knows.
func (e *Engine) kill(ctx context.Context, ct *core.Container) error {
	if ct.Refused != nil && ct.State == core.ContainerCreated {
		return e.recordEnd(ct.ID, core.Main, refusedEnd(ct))
	}
	if len(ct.Cgroup.Adopted) > 0 {
		return e.killKnown(ctx, ct)
	}
	if err := ignoreNotFound(e.o.Cgroups.Kill(ctx, ct.Cgroup)); err != nil {
		return fmt.Errorf("kill: %w", err)
	}
	if ct.State == core.ContainerPaused || ct.State == core.ContainerAsleep {
		if err := ignoreNotFound(e.o.Cgroups.Freeze(ctx, ct.Cgroup, false)); err != nil {
			return fmt.Errorf("thaw: %w", err)
		}
	}
	return nil
}

func (e *Engine) killKnown(ctx context.Context, ct *core.Container) error {
	var errs []error
	for _, p := range slices.Concat([]core.Process{ct.Main}, ct.Execs, e.quiet.In(ct.ID)) {
		if p.Autopsy != nil {
			continue
		}
		err := e.o.Supervisor.Signal(ctx, core.Ref{Container: ct.ID, Process: p.ID}, sigkill)
		if err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	if ct.State == core.ContainerPaused {
		if rt, err := e.runtime(ct.Runtime); err == nil {
			errs = append(errs, rt.Resume(ctx, ct.ID))
		}
	}
	return errors.Join(errs...)
}

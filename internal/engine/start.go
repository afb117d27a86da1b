package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/autopsy"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/restarts"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/underway"
)

// StartContainer starts a created container's program. When the program cannot be started, the
// container has exited, and its autopsy says why.
func (c *Client) StartContainer(ctx context.Context, id core.ID) error {
	ct, err := c.view.Container(id)
	if err != nil {
		return err
	}
	op := core.Operation{Verb: core.VerbStart, Container: &ct}
	if err := c.e.perform(ctx, &op, func() error { return c.view.start(ctx, &ct, false) }); err != nil {
		return fmt.Errorf("start container %s: %w", id, err)
	}
	return nil
}

// start starts a created container, for a caller or for its restart policy.
func (c view) start(ctx context.Context, ct *core.Container, policy bool) error {
	e, id := c.e, ct.ID
	unlock, err := e.sandboxes.Lock(ctx, ct.Sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	// With this lock held, an exit is recorded after the start, however soon it comes.
	unlockLaunch, err := e.launches.Lock(ctx, core.Ref{Container: id})
	if err != nil {
		return err
	}
	defer unlockLaunch()
	cur, err := e.records.Container(id)
	if err != nil {
		return err
	}
	if err := step(&cur, core.VerbStart); err != nil {
		return err
	}
	switch {
	case policy && cur.Restarts.Due.IsZero():
		return restarts.ErrNotDue
	case cur.Config.Restore:
		return fmt.Errorf("it continues a checkpoint: %w", errdefs.ErrFailedPrecondition)
	}
	rt, err := e.runtime(cur.Runtime)
	if err != nil {
		return err
	}
	pl := e.pipeline(ctx, cur.Owner, "start")
	if err := pl.Pass("begin"); err != nil {
		return err
	}
	began := now() // before the program's first output, because clients read the log since then
	if err = launchRefused(&cur); err == nil {
		err = rt.Start(ctx, id)
	}
	if errors.Is(err, core.ErrEnded) {
		return err // an earlier agent may have started it: its exit says how it ended
	}
	if err != nil {
		return e.startFailed(ctx, &cur, err)
	}
	if err := pl.Pass("launch"); err != nil {
		return err
	}
	err = c.ChangeContainer(id, scope.By{Verb: "start"}, func(ct *core.Container, n *scope.Change) error {
		if err := step(ct, core.VerbStart); err != nil {
			return err
		}
		ct.Main.Started = began
		ct.Trace = ct.Trace.With(pl.Trace())
		ev := core.Event{Kind: core.EventContainerStarted}
		if policy {
			ev.Note = restarts.Started(ct)
		} else if e.o.Restarts != nil {
			e.o.Restarts.Started(ct)
		}
		n.Add(ev)
		return nil
	})
	if err != nil {
		return err
	}
	return pl.Pass("commit")
}

// startFailed ends a container after a failed start of its program, and records why. Nothing of it
// may run. If only the caller's context ended, the program has not failed: a container that is
// still created stays so.
func (e *Engine) startFailed(ctx context.Context, ct *core.Container, cause error) error {
	ctx, cancel := underway.Cleanup(ctx)
	defer cancel()
	kerr := e.kill(ctx, ct)
	a := autopsy.Make(autopsy.Input{Exit: core.Exit{Code: core.StartStatus(cause), At: now()}, Start: cause.Error()})
	if err := e.recordEnd(ct.ID, core.Main, a); err != nil {
		e.o.Logger.WarnContext(ctx, "could not record why a start failed", "container", ct.ID, "error", err)
	}
	if kerr != nil {
		e.o.Logger.WarnContext(ctx, "could not kill a container whose start failed", "container", ct.ID, "error", kerr)
	}
	return cause
}

// PauseContainer freezes a running container.
func (c *Client) PauseContainer(ctx context.Context, id core.ID) error {
	return c.view.freeze(ctx, id, core.VerbPause)
}

// ResumeContainer lets a paused container continue.
func (c *Client) ResumeContainer(ctx context.Context, id core.ID) error {
	return c.view.freeze(ctx, id, core.VerbResume)
}

func (c view) freeze(ctx context.Context, id core.ID, verb core.Verb) error {
	ct, err := c.Container(id)
	if err != nil {
		return err
	}
	if err := c.e.perform(ctx, &core.Operation{Verb: verb, Container: &ct}, func() error { return c.frozen(ctx, &ct, verb) }); err != nil {
		return fmt.Errorf("%s container %s: %w", verb, id, err)
	}
	return nil
}

// frozen pauses or resumes a container. The caller has asked the policies where that is needed.
func (c view) frozen(ctx context.Context, ct *core.Container, verb core.Verb) error {
	e := c.e
	unlock, err := e.sandboxes.Lock(ctx, ct.Sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	cur, err := e.records.Container(ct.ID)
	if err != nil {
		return err
	}
	if err := step(&cur, verb); err != nil {
		return err
	}
	rt, err := e.runtime(cur.Runtime)
	if err != nil {
		return err
	}
	do, kind := rt.Pause, core.EventContainerPaused
	if verb == core.VerbResume {
		do, kind = rt.Resume, core.EventContainerResumed
	}
	if err := do(ctx, ct.ID); err != nil {
		return err
	}
	return c.ChangeContainer(ct.ID, scope.By{Verb: string(verb)}, func(ct *core.Container, n *scope.Change) error {
		if err := step(ct, verb); err != nil {
			return err
		}
		n.Add(core.Event{Kind: kind})
		return nil
	})
}

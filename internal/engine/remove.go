package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/stages"
	"github.com/longshore/longshore/internal/engine/underway"
)

// RemoveContainer removes a container that does not run, with all containers nested below it.
// With Force it first kills one that runs. It succeeds when the container is gone.
func (c *Client) RemoveContainer(ctx context.Context, id core.ID, opts RemoveOptions) error {
	ct, err := c.view.Container(id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.view.remove(ctx, &ct, opts); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove container %s: %w", id, err)
	}
	return nil
}

func (c view) remove(ctx context.Context, ct *core.Container, opts RemoveOptions) error {
	if alive(ct.State) && !opts.Force {
		return fmt.Errorf("it is %s: %w", ct.State, errdefs.ErrFailedPrecondition)
	}
	if err := c.removeNested(ctx, ct, opts); err != nil {
		return err
	}
	var none time.Duration
	if err := c.stop(ctx, ct, StopOptions{Grace: &none, Request: c.Request(opts.Request, "RemoveContainer"), part: true}); err != nil {
		return err
	}
	if err := c.e.awaitExecs(ctx, ct.ID); err != nil {
		return err
	}
	pl := c.e.pipeline(ctx, ct.Owner, "remove")
	if err := pl.Pass("ended"); err != nil {
		return err
	}
	ended, err := c.Container(ct.ID)
	if err != nil {
		return err
	}
	op := core.Operation{Verb: core.VerbRemove, Container: &ended, Part: opts.part}
	return c.e.perform(ctx, &op, func() error { return c.removeEnded(ctx, &ended, opts, pl) })
}

// removeEnded removes an ended container, after the policies allowed it.
func (c view) removeEnded(ctx context.Context, ct *core.Container, opts RemoveOptions, pl *stages.Pipeline) error {
	unlock, err := c.e.sandboxes.Lock(ctx, ct.Sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	cur, err := c.Container(ct.ID)
	if err != nil {
		return err
	}
	if cur.State != core.ContainerExited {
		return fmt.Errorf("it is %s: %w", cur.State, errdefs.ErrFailedPrecondition)
	}
	// From here on the removal completes even if the caller leaves.
	ctx, cancel := underway.Cleanup(ctx)
	defer cancel()
	if err := c.e.records.EditContainer(cur.ID, func(ct *core.Container, _ *scope.Change) error { ct.Removing = true; return nil }); err != nil {
		return err
	}
	if cur.Config.Durable { // a boot must not bring back a container with half a layer
		if err := c.e.o.Store.Sync(); err != nil {
			return err
		}
	}
	var by scope.Change
	c.Forced(&by, &cur.Meta, scope.By{Request: c.Request(opts.Request, "RemoveContainer")})
	return teardown{c.e, by, pl}.container(ctx, &cur)
}

func alive(s core.ContainerState) bool {
	return s.Live()
}

func (c view) removeNested(ctx context.Context, ct *core.Container, opts RemoveOptions) error {
	all, err := c.e.records.ContainersOf(ct.Sandbox)
	if err != nil {
		return err
	}
	for _, child := range all {
		if child.Parent != ct.ID {
			continue
		}
		if err := c.remove(ctx, &child, opts); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// awaitExecs kills the execs that have outlived a container's main process, and waits until the
// end of every exec is recorded.
func (e *Engine) awaitExecs(ctx context.Context, id core.ID) error {
	ct, err := e.records.Container(id)
	if err != nil {
		return err
	}
	for _, p := range append(ct.Execs, e.quiet.In(id)...) {
		if p.Autopsy != nil {
			continue
		}
		ref := core.Ref{Container: id, Process: p.ID}
		if err := e.o.Supervisor.Signal(ctx, ref, sigkill); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		if _, err := e.await(ctx, ref); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// StopSandbox stops every container and gives namespaces and network back. It succeeds when the
// sandbox is stopped or gone.
func (c *Client) StopSandbox(ctx context.Context, id core.ID, opts StopOptions) error {
	sb, err := c.view.Sandbox(id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.view.stopSandbox(ctx, &sb, opts); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("stop sandbox %s: %w", id, err)
	}
	return nil
}

func (c view) stopSandbox(ctx context.Context, sb *core.Sandbox, opts StopOptions) error {
	pl := c.e.pipeline(ctx, sb.Owner, "stop_sandbox")
	opts.Request = c.Request(opts.Request, "StopSandbox")
	if opts.IfEnded {
		return c.e.perform(ctx, &core.Operation{Verb: core.VerbStop, Sandbox: sb, Part: opts.part}, func() error {
			_, err := c.closeSandbox(ctx, sb.ID, opts, pl)
			return err
		})
	}
	defer c.e.creates.GiveUp(sb.ID)()
	if err := c.stopContainers(ctx, sb.ID, opts); err != nil {
		return err
	}
	return c.e.perform(ctx, &core.Operation{Verb: core.VerbStop, Sandbox: sb, Part: opts.part}, func() error {
		for {
			if err := pl.Pass("containers"); err != nil {
				return err
			}
			again, err := c.closeSandbox(ctx, sb.ID, opts, pl)
			if err != nil || !again {
				return err
			}
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			if err := c.stopContainers(ctx, sb.ID, opts); err != nil {
				return err
			}
		}
	})
}

// stopContainers stops all containers of a sandbox concurrently.
func (c view) stopContainers(ctx context.Context, sandbox core.ID, opts StopOptions) error {
	all, err := c.e.records.ContainersOf(sandbox)
	if err != nil {
		return err
	}
	var g errgroup.Group
	for _, ct := range all {
		g.Go(func() error {
			if err := c.stop(ctx, &ct, opts); err != nil && !errdefs.IsNotFound(err) {
				return fmt.Errorf("container %s: %w", ct.ID, err)
			}
			return nil
		})
	}
	return g.Wait()
}

// closeSandbox records the stop and releases the sandbox's resources, under its lock. again means
// that a container was created after they were stopped.
func (c view) closeSandbox(ctx context.Context, id core.ID, opts StopOptions, pl *stages.Pipeline) (again bool, err error) {
	e := c.e
	unlock, err := e.sandboxes.Lock(ctx, id)
	if err != nil {
		return false, err
	}
	defer unlock()
	sb, err := e.records.Sandbox(id)
	if err != nil {
		return false, err
	}
	if sb.State == core.SandboxStopped && owned.Released(&sb) {
		return false, nil
	}
	all, err := e.records.ContainersOf(id)
	if err != nil {
		return false, err
	}
	for _, ct := range all {
		if ct.State != core.ContainerExited {
			return true, nil
		}
	}
	if opts.IfEnded {
		if held, err := e.joins().Held(id); err != nil {
			return false, err
		} else if held {
			return false, e.All().Attachments.Withdraw(ctx, &sb)
		}
	}
	ctx, cancel := underway.Cleanup(ctx)
	defer cancel()
	if sb.State != core.SandboxStopped {
		sb, err = c.ChangeSandbox(id, scope.By{Verb: "stop", Request: opts.Request}, func(sb *core.Sandbox, n *scope.Change) error {
			sb.State, _ = core.NextSandbox(sb.State, core.VerbStop)
			n.Add(core.Event{Kind: core.EventSandboxStopped})
			return nil
		})
		if err != nil {
			return false, err
		}
	}
	if err := pl.Pass("recorded"); err != nil {
		return false, err
	}
	return false, teardown{e: e, pipeline: pl}.release(ctx, &sb)
}

// RemoveSandbox removes a sandbox with its containers. It succeeds when the sandbox is gone.
// Without Force it returns FailedPrecondition for a sandbox that is not stopped.
func (c *Client) RemoveSandbox(ctx context.Context, id core.ID, opts RemoveOptions) error {
	sb, err := c.view.Sandbox(id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := c.view.removeSandbox(ctx, &sb, opts); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove sandbox %s: %w", id, err)
	}
	return nil
}

func (c view) removeSandbox(ctx context.Context, sb *core.Sandbox, opts RemoveOptions) error {
	if sb.State != core.SandboxStopped && !opts.Force {
		return fmt.Errorf("it is %s: %w", sb.State, errdefs.ErrFailedPrecondition)
	}
	opts.Request = c.Request(opts.Request, "RemoveSandbox")
	var none time.Duration
	if err := c.stopSandbox(ctx, sb, StopOptions{Grace: &none, Request: opts.Request, part: true}); err != nil {
		return err
	}
	all, err := c.e.records.ContainersOf(sb.ID)
	if err != nil {
		return err
	}
	opts.part = true // removeEmpty syncs their records
	for _, ct := range all {
		if err := c.remove(ctx, &ct, opts); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("container %s: %w", ct.ID, err)
		}
	}
	return c.e.perform(ctx, &core.Operation{Verb: core.VerbRemove, Sandbox: sb}, func() error { return c.removeEmpty(ctx, sb, opts) })
}

// removeEmpty removes a stopped sandbox without containers, after the policies allowed it.
func (c view) removeEmpty(ctx context.Context, sb *core.Sandbox, opts RemoveOptions) error {
	pl := c.e.pipeline(ctx, sb.Owner, "remove_sandbox")
	if err := pl.Pass("containers"); err != nil {
		return err
	}
	unlock, err := c.e.sandboxes.Lock(ctx, sb.ID)
	if err != nil {
		return err
	}
	defer unlock()
	cur, err := c.Sandbox(sb.ID)
	if err != nil {
		return err
	}
	ctx, cancel := underway.Cleanup(ctx)
	defer cancel()
	if !owned.Released(&cur) { // a restart has made it ready again, before its container was removed
		if err := (teardown{e: c.e}).release(ctx, &cur); err != nil {
			return err
		}
	}
	var by scope.Change
	c.Forced(&by, &cur.Meta, scope.By{Verb: "remove", Request: opts.Request})
	return teardown{c.e, by, pl}.sandbox(ctx, &cur)
}

package engine

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	"github.com/longshore/longshore/internal/core"
)

// RemoveContainer removes a container that does not run, with everything nested
// below it; with Force one that runs is killed first. It succeeds on what is
// gone.
func (c *Client) RemoveContainer(ctx context.Context, id core.ID, opts RemoveOptions) error {
	ct, err := c.view.container(id)
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
	if err := c.stop(ctx, ct, StopOptions{Grace: &none, Request: c.request(opts.Request, "RemoveContainer")}); err != nil {
		return err
	}
	if err := c.e.awaitExecs(ctx, ct.ID); err != nil {
		return err
	}
	l := c.e.pipeline("remove")
	if err := l.pass("ended"); err != nil {
		return err
	}
	ended, err := c.container(ct.ID)
	if err != nil {
		return err
	}
	op := core.Operation{Verb: core.VerbRemove, Container: &ended}
	return c.e.policies.around(ctx, &op, func() error { return c.removeEnded(ctx, &ended, opts, l) })
}

// removeEnded removes a container about which the policies were asked.
func (c view) removeEnded(ctx context.Context, ct *core.Container, opts RemoveOptions, l *pipeline) error {
	unlock, err := c.e.sandboxes.Lock(ctx, ct.Sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	cur, err := c.container(ct.ID)
	if err != nil {
		return err
	}
	if cur.State != core.ContainerExited {
		return fmt.Errorf("it is %s: %w", cur.State, errdefs.ErrFailedPrecondition)
	}
	// From here on it goes through though the caller may leave.
	ctx, cancel := detached(ctx)
	defer cancel()
	if err := c.e.records.editContainer(cur.ID, func(ct *core.Container, _ *change) error { ct.Removing = true; return nil }); err != nil {
		return err
	}
	var by change
	by.forced(c, &cur.Meta, "remove", c.request(opts.Request, "RemoveContainer"))
	return c.e.teardownContainer(ctx, &cur, by, l)
}

func alive(s core.ContainerState) bool {
	return s == core.ContainerRunning || s == core.ContainerPaused
}

func (c view) removeNested(ctx context.Context, ct *core.Container, opts RemoveOptions) error {
	all, err := c.e.records.containersOf(ct.Sandbox)
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

// awaitExecs waits until every exec of a container whose main process has ended
// has ended too: the kernel or the end of the main process has killed them.
func (e *Engine) awaitExecs(ctx context.Context, id core.ID) error {
	ct, err := e.records.container(id)
	if err != nil {
		return err
	}
	for _, p := range ct.Execs {
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

// removeProcesses drops what runtime and keeper have of a container.
func (e *Engine) removeProcesses(ctx context.Context, rt core.Runtime, ct *core.Container) error {
	if err := rt.Delete(ctx, ct.ID, true); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	for _, p := range append([]core.Process{ct.Main}, ct.Execs...) {
		err := e.o.Supervisor.Forget(ctx, core.Ref{Container: ct.ID, Process: p.ID})
		// One that is just dying is forgotten when its exit comes.
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			return fmt.Errorf("forget: %w", err)
		}
	}
	return nil
}

// teardownContainer gives everything back and then drops the record. Every
// stage succeeds on what is gone, so it can be tried again. l may be nil.
func (e *Engine) teardownContainer(ctx context.Context, ct *core.Container, by change, l *pipeline) error {
	return e.teardown(ctx, containerTeardown(e, ct, by), l)
}

func containerTeardown(e *Engine, ct *core.Container, by change) []stage {
	return []stage{
		{"runtime", func(ctx context.Context) error {
			rt, err := e.runtime(ct.Runtime)
			if err != nil {
				return nil //nolint:nilerr // taken out of the config: nothing of it can run
			}
			return e.removeProcesses(ctx, rt, ct)
		}},
		{"unmount", func(ctx context.Context) error {
			return errors.Join(e.o.Roots.Unmount(ctx, filepath.Join(ct.Bundle, "rootfs")), e.imageVolumes().release(ctx, ct))
		}},
		{"discard", func(ctx context.Context) error {
			if ct.Image == "" {
				return nil
			}
			return e.o.Images.Discard(ctx, ct.ID)
		}},
		{"cgroup", func(ctx context.Context) error { return e.o.Cgroups.Remove(ctx, ct.Cgroup) }},
		{"bundle", func(context.Context) error { return removeBundle(ct.Bundle) }},
		{"record", func(context.Context) error { return e.records.dropContainer(ct.ID, by) }},
	}
}

func (e *Engine) teardown(ctx context.Context, stages []stage, l *pipeline) error {
	for _, s := range stages {
		if err := s.do(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		if l == nil {
			continue
		}
		if err := l.pass(s.name); err != nil {
			return err
		}
	}
	return nil
}

// StopSandbox stops every container and gives namespaces and network back. It
// succeeds on what is stopped or gone.
func (c *Client) StopSandbox(ctx context.Context, id core.ID, opts StopOptions) error {
	sb, err := c.view.sandbox(id)
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
	l := c.e.pipeline("stop_sandbox")
	opts.Request = c.request(opts.Request, "StopSandbox")
	if err := c.stopContainers(ctx, sb.ID, opts); err != nil {
		return err
	}
	return c.e.policies.around(ctx, &core.Operation{Verb: core.VerbStop, Sandbox: sb}, func() error {
		for {
			if err := l.pass("containers"); err != nil {
				return err
			}
			again, err := c.closeSandbox(ctx, sb.ID, opts.Request, l)
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

// stopContainers stops all at once.
func (c view) stopContainers(ctx context.Context, sandbox core.ID, opts StopOptions) error {
	all, err := c.e.records.containersOf(sandbox)
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

// closeSandbox records the stop and gives back what the sandbox held, under its
// lock. again means that a container was created since they were stopped.
func (c view) closeSandbox(ctx context.Context, id core.ID, asked core.StopRequest, l *pipeline) (again bool, err error) {
	e := c.e
	unlock, err := e.sandboxes.Lock(ctx, id)
	if err != nil {
		return false, err
	}
	defer unlock()
	sb, err := e.records.sandbox(id)
	if err != nil {
		return false, err
	}
	if sb.State == core.SandboxStopped && released(&sb) {
		return false, nil
	}
	all, err := e.records.containersOf(id)
	if err != nil {
		return false, err
	}
	for _, ct := range all {
		if ct.State != core.ContainerExited {
			return true, nil
		}
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if sb.State != core.SandboxStopped {
		sb, err = e.records.editSandbox(id, func(sb *core.Sandbox, n *change) error {
			sb.State, _ = core.NextSandbox(sb.State, core.VerbStop)
			n.add(core.Event{Kind: core.EventSandboxStopped})
			n.forced(c, &sb.Meta, "stop", asked)
			return nil
		})
		if err != nil {
			return false, err
		}
	}
	if err := l.pass("recorded"); err != nil {
		return false, err
	}
	return false, e.release(ctx, &sb, l)
}

// released reports whether a stopped sandbox holds nothing any more.
func released(sb *core.Sandbox) bool {
	for _, ns := range sharedKinds(&sb.Config.Namespaces) {
		if ns.Path != "" {
			return false
		}
	}
	return sb.Init == 0
}

// release gives namespaces, network, init and shared memory back and puts that
// on record. The sandbox's lock must be held.
func (e *Engine) release(ctx context.Context, sb *core.Sandbox, l *pipeline) error {
	return e.teardown(ctx, releaseStages(e, sb), l)
}

func releaseStages(e *Engine, sb *core.Sandbox) []stage {
	return []stage{
		{"network", func(ctx context.Context) error {
			if sb.Config.Namespaces.Net.Mode != core.Shared {
				return nil
			}
			return e.o.Network.Teardown(ctx, sb.NetworkRequest())
		}},
		{"unpin", func(ctx context.Context) error {
			var err error
			if sb.Config.Namespaces.PID.Mode == core.Shared {
				err = e.removeInit(ctx, sb)
			}
			if err == nil && sb.Dir != "" {
				err = e.unmountShm(ctx, sb.Dir)
			}
			return errors.Join(err, e.o.Pinner.Unpin(ctx, sb.ID))
		}},
		{"done", func(context.Context) error {
			_, err := e.records.editSandbox(sb.ID, func(sb *core.Sandbox, _ *change) error {
				for _, ns := range sharedKinds(&sb.Config.Namespaces) {
					ns.Path = ""
				}
				sb.Init = 0
				if sb.Config.Namespaces.PID.Mode == core.Shared {
					sb.Config.Namespaces.PID.Path = ""
				}
				return nil
			})
			return err
		}},
	}
}

// removeInit removes the tiny init with its container.
func (e *Engine) removeInit(ctx context.Context, sb *core.Sandbox) error {
	if rt, err := e.runtime(sb.Config.Runtime); err == nil {
		if err := rt.Delete(ctx, sb.ID, true); err != nil {
			return err
		}
	}
	bundle := e.bundle(sb.ID)
	if err := e.o.Roots.Unmount(ctx, filepath.Join(bundle, "rootfs")); err != nil {
		return err
	}
	cg, err := e.o.Cgroups.Place(core.Cgroup{}, sb.Cgroup, "init")
	if err != nil {
		return err
	}
	return errors.Join(e.o.Cgroups.Remove(ctx, cg), removeBundle(bundle))
}

// RemoveSandbox removes its containers and the sandbox; success when it is
// gone. Without Force a sandbox that is not stopped is FailedPrecondition.
func (c *Client) RemoveSandbox(ctx context.Context, id core.ID, opts RemoveOptions) error {
	sb, err := c.view.sandbox(id)
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
	opts.Request = c.request(opts.Request, "RemoveSandbox")
	var none time.Duration
	if err := c.stopSandbox(ctx, sb, StopOptions{Grace: &none, Request: opts.Request}); err != nil {
		return err
	}
	all, err := c.e.records.containersOf(sb.ID)
	if err != nil {
		return err
	}
	for _, ct := range all {
		if err := c.remove(ctx, &ct, opts); err != nil && !errdefs.IsNotFound(err) {
			return fmt.Errorf("container %s: %w", ct.ID, err)
		}
	}
	return c.e.policies.around(ctx, &core.Operation{Verb: core.VerbRemove, Sandbox: sb}, func() error { return c.removeEmpty(ctx, sb, opts) })
}

// removeEmpty removes a sandbox, stopped and without containers, about which the
// policies were asked.
func (c view) removeEmpty(ctx context.Context, sb *core.Sandbox, opts RemoveOptions) error {
	l := c.e.pipeline("remove_sandbox")
	if err := l.pass("containers"); err != nil {
		return err
	}
	unlock, err := c.e.sandboxes.Lock(ctx, sb.ID)
	if err != nil {
		return err
	}
	defer unlock()
	cur, err := c.sandbox(sb.ID)
	if err != nil {
		return err
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	var by change
	by.forced(c, &cur.Meta, "remove", opts.Request)
	return c.e.teardownSandbox(ctx, &cur, by, l)
}

// teardownSandbox gives back what a released sandbox still has and drops the
// record. l may be nil.
func (e *Engine) teardownSandbox(ctx context.Context, sb *core.Sandbox, by change, l *pipeline) error {
	return e.teardown(ctx, sandboxTeardown(e, sb, by), l)
}

func sandboxTeardown(e *Engine, sb *core.Sandbox, by change) []stage {
	return []stage{
		{"runtime", func(ctx context.Context) error {
			if sb.Config.Namespaces.PID.Mode != core.Shared {
				return nil
			}
			return e.forgetKilled(ctx, core.Ref{Container: sb.ID})
		}},
		{"cgroup", func(ctx context.Context) error { return e.o.Cgroups.Remove(ctx, sb.Cgroup) }},
		{"files", func(ctx context.Context) error { return e.removeSandboxDir(ctx, sb.Dir) }},
		{"record", func(context.Context) error { return e.records.dropSandbox(sb.ID, by) }},
	}
}

package engine

import (
	"context"
	"fmt"
	"slices"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/autopsy"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/asleep"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/underway"
	"github.com/longshore/longshore/internal/engine/validate"
	"github.com/longshore/longshore/internal/proctree"
)

// Exec starts a further process in a running container. With cfg.Attach it also returns a stream.
//
// The process is recorded when it runs. A crash before that leaves a process without a record,
// which recovery kills.
func (c *Client) Exec(ctx context.Context, id core.ID, cfg core.ProcessConfig) (p core.Process, s *core.Streams, err error) {
	if p, s, err = c.view.exec(ctx, id, cfg); err != nil {
		return core.Process{}, nil, fmt.Errorf("exec in container %s: %w", id, err)
	}
	return p, s, nil
}

func (c view) exec(ctx context.Context, id core.ID, cfg core.ProcessConfig) (p core.Process, s *core.Streams, err error) {
	if cfg.Spec == nil || len(cfg.Spec.Args) == 0 {
		return p, nil, fmt.Errorf("no command: %w", errdefs.ErrInvalidArgument)
	}
	if err := validQuiet(c, cfg); err != nil {
		return p, nil, err
	}
	if cfg.ID == core.Main {
		cfg.ID = core.ProcessID(newID()[:32])
	}
	ct, err := c.Container(id)
	if err != nil {
		return p, nil, err
	}
	err = c.e.policies.around(ctx, &core.Operation{Verb: core.VerbExec, Container: &ct, Process: cfg.ID}, func() error {
		p, s, err = c.startExec(ctx, id, cfg)
		return err
	})
	return p, s, err
}

// startExec starts a further process, after the policies allowed it.
func (c view) startExec(ctx context.Context, id core.ID, cfg core.ProcessConfig) (core.Process, *core.Streams, error) {
	e, ref := c.e, core.Ref{Container: id, Process: cfg.ID}
	if err := c.rests().Wake(ctx, id, asleep.ByExec); err != nil {
		return core.Process{}, nil, err
	}
	unlock, err := e.launches.Lock(ctx, ref)
	if err != nil {
		return core.Process{}, nil, err
	}
	defer unlock()
	ct, err := c.Container(id)
	if err != nil {
		return core.Process{}, nil, err
	}
	if err := e.canExec(&ct, cfg.ID); err != nil {
		return core.Process{}, nil, err
	}
	sb, err := e.records.Sandbox(ct.Sandbox)
	if err != nil {
		return core.Process{}, nil, err
	}
	if cfg.Spec, err = e.policies.adjust(ctx, &sb, &ct, cfg.Spec); err != nil {
		return core.Process{}, nil, err
	}
	launched, err := e.launchExec(ctx, &sb, &ct, cfg)
	if err != nil {
		return core.Process{}, nil, err
	}
	p, err := c.recordExec(ctx, &ct, cfg, launched)
	if err != nil {
		if launched.Streams != nil {
			_ = launched.Streams.Close()
		}
		return core.Process{}, nil, err
	}
	return p, launched.Streams, nil
}

func (e *Engine) canExec(ct *core.Container, id core.ProcessID) error {
	if ct.State != core.ContainerRunning {
		return fmt.Errorf("it is %s: %w", ct.State, errdefs.ErrFailedPrecondition)
	}
	if e.process(ct, id) != nil {
		return fmt.Errorf("process %s: %w", id, errdefs.ErrAlreadyExists)
	}
	return nil
}

func (e *Engine) launchExec(ctx context.Context, sb *core.Sandbox, ct *core.Container, cfg core.ProcessConfig) (core.Launched, error) {
	rt, err := e.runtime(ct.Runtime)
	if err != nil {
		return core.Launched{}, err
	}
	pl := e.pipeline(ctx, ct.Owner, "exec")
	if err := pl.Pass("begin"); err != nil {
		return core.Launched{}, err
	}
	own := sb.Of(&ct.Config)
	uid, gid := owned.HostIDs(&own, cfg.Spec)
	launched, err := rt.Exec(ctx, core.RuntimeExec{
		Ref: core.Ref{Container: ct.ID, Process: cfg.ID}, Bundle: ct.Bundle, Spec: cfg.Spec, IO: cfg.IO, Attach: cfg.Attach,
		Levels: levelsOf(sb, ct), UID: uid, GID: gid,
	})
	if err == nil {
		err = pl.Pass("launch")
	}
	return launched, err
}

func (c view) recordExec(ctx context.Context, ct *core.Container, cfg core.ProcessConfig, launched core.Launched) (core.Process, error) {
	e, ref := c.e, core.Ref{Container: ct.ID, Process: cfg.ID}
	p := core.Process{
		ID: cfg.ID, Pid: launched.Pid, Session: proctree.Session(launched.Pid), Args: cfg.Spec.Args, TTY: cfg.IO.TTY, Hold: cfg.IO.Hold, Ephemeral: cfg.Ephemeral,
		KeepExit: cfg.KeepExit, Started: now(), Data: cfg.Data,
	}
	if cfg.Quiet {
		err := e.quiet.Add(ct.ID, p)
		return p, e.execRecorded(ctx, ref, ct.Owner, err)
	}
	err := c.ChangeContainer(ct.ID, scope.By{Verb: "exec"}, func(ct *core.Container, n *scope.Change) error {
		forgetExit(ct, p.ID)
		ct.Execs = append(ct.Execs, p)
		n.Add(core.Event{Kind: core.EventProcessStarted, Process: p.ID})
		return nil
	})
	return p, e.execRecorded(ctx, ref, ct.Owner, err)
}

// execRecorded ends a launch: its process is recorded, or err says why not.
func (e *Engine) execRecorded(ctx context.Context, ref core.Ref, owner core.Owner, err error) error {
	if err == nil {
		return e.pipeline(ctx, owner, "exec").Pass("commit")
	}
	// The container has ended or was removed meanwhile: the process must not stay.
	ctx, cancel := underway.Cleanup(ctx)
	defer cancel()
	if serr := e.o.Supervisor.Signal(ctx, ref, sigkill); serr != nil && !errdefs.IsNotFound(serr) {
		e.o.Logger.WarnContext(ctx, "could not kill a process without a record; the next recovery or reclaim does", "container", ref.Container, "process", ref.Process, "error", serr)
	}
	return err
}

// Signal sends a signal to a process. A signal that may end the process is recorded with its
// caller.
func (c *Client) Signal(ctx context.Context, ref core.Ref, sig int, req core.StopRequest) error {
	ct, p, err := c.view.process(ref)
	if err != nil {
		return err
	}
	req = c.view.Request(req, "Signal")
	req.Signal = sig
	req.Incidental = !asksForEnd(&ct, sig)
	op := core.Operation{Verb: core.VerbKill, Container: &ct, Process: ref.Process, Detail: fmt.Sprintf("signal %d", sig)}
	return c.e.policies.around(ctx, &op, func() error { return c.view.signal(ctx, ref, &ct, p, req) })
}

func (c view) signal(ctx context.Context, ref core.Ref, ct *core.Container, p *core.Process, req core.StopRequest) error {
	sig := req.Signal
	if p.Autopsy != nil {
		ended, err := true, error(nil)
		restarts := ref.Process == core.Main && ct.Restarting()
		if restarts {
			ended, err = c.restarts().Signal(ctx, ct.ID, req)
		}
		if err != nil || ended && restarts {
			return err
		}
		if ended {
			return fmt.Errorf("signal process %s of container %s: it has ended: %w", ref.Process, ref.Container, errdefs.ErrNotFound)
		}
	}
	policy := ref.Process == core.Main && ct.Config.Restart != core.RestartPolicy{}
	if (mayEnd(sig) || policy) && recorded(ct, ref) || c.Forces(&ct.Meta) {
		if err := c.recordRequest(ref, req); err != nil {
			return err
		}
	}
	if sig != sigkill {
		if err := c.rests().Wake(ctx, ref.Container, asleep.BySignal); err != nil {
			return err
		}
	}
	if err := c.e.o.Supervisor.Signal(ctx, ref, sig); err != nil {
		return fmt.Errorf("signal process %s of container %s: %w", ref.Process, ref.Container, err)
	}
	if sig == sigkill && ref.Process == core.Main && (ct.State == core.ContainerPaused || ct.State == core.ContainerAsleep) {
		// On cgroup v1 not even SIGKILL ends a frozen process. The others of one that sleeps would find empty memory.
		var err error
		if ct.State == core.ContainerAsleep {
			err = c.e.kill(ctx, ct)
		} else {
			err = c.e.thaw(ctx, ct)
		}
		if err = ignoreNotFound(err); err != nil {
			return fmt.Errorf("thaw container %s, which is killed: %w", ref.Container, err)
		}
	}
	if policy && ct.Config.Durable {
		return c.e.o.Store.Sync()
	}
	return nil
}

// thaw resumes a paused container.
func (e *Engine) thaw(ctx context.Context, ct *core.Container) error {
	rt, err := e.runtime(ct.Runtime)
	if err != nil {
		return err
	}
	return rt.Resume(ctx, ct.ID)
}

// asksForEnd reports whether people and programs send sig to end a process.
func asksForEnd(ct *core.Container, sig int) bool {
	if stop, err := validate.StopSignal(ct.Config.Stop.Signal); err == nil && stop == sig {
		return true
	}
	return slices.Contains([]int{1, 2, 3, 6, sigkill, sigterm}, sig)
}

// mayEnd reports whether sig ends a process that has no handler for it.
func mayEnd(sig int) bool {
	return !slices.Contains([]syscall.Signal{
		syscall.SIGCHLD, syscall.SIGCONT, syscall.SIGSTOP, syscall.SIGTSTP, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGURG, syscall.SIGWINCH,
	}, syscall.Signal(sig))
}

// recordRequest stores the caller's request to end a process.
func (c view) recordRequest(ref core.Ref, req core.StopRequest) error {
	return c.ChangeContainer(ref.Container, scope.By{Verb: "signal", Request: req}, func(ct *core.Container, _ *scope.Change) error {
		p := ct.Process(ref.Process)
		if ref.Process == core.Main && c.e.o.Restarts != nil {
			c.e.o.Restarts.Requested(ct, req)
		}
		if p == nil || p.Autopsy != nil || !req.Stop && !mayEnd(req.Signal) {
			return nil
		}
		// A stop stays the recorded request while other signals are sent, and a signal that requests
		// no end does not replace a request that the process may still obey.
		old := p.StopRequest
		if req.Stop || old == nil || req.Signal == sigkill || !old.Stop && (old.Incidental || !req.Incidental || req.At.Sub(old.At) > autopsy.SignalTime) {
			p.StopRequest = &req
		}
		return nil
	})
}

// RemoveProcess forgets an exec that has ended. With Force it first kills the exec and the
// processes that it started or left behind. It succeeds when there is no such process.
func (c *Client) RemoveProcess(ctx context.Context, ref core.Ref, opts RemoveOptions) error {
	if ref.Process == core.Main {
		return fmt.Errorf("remove process: the main process goes with its container: %w", errdefs.ErrInvalidArgument)
	}
	ct, p, err := c.view.process(ref)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if p.Autopsy == nil && !opts.Force {
		return fmt.Errorf("remove process %s of container %s: it runs: %w", ref.Process, ref.Container, errdefs.ErrFailedPrecondition)
	}
	if err := endProcess(ctx, c, &ct, p, opts); err != nil {
		c.e.quiet.Abandon(ctx, ref)
		return err
	}
	if c.e.quiet.Drop(ref) {
		return nil
	}
	var by scope.Change
	if ct, err := c.view.Container(ref.Container); err == nil {
		c.view.Forced(&by, &ct.Meta, scope.By{Verb: "remove process", Request: c.view.Request(opts.Request, "")})
	}
	return c.e.records.dropExec(ref, by)
}

// endProcess kills an exec if it runs, with its children if forced, and removes it from the keeper.
func endProcess(ctx context.Context, c *Client, ct *core.Container, p *core.Process, opts RemoveOptions) error {
	ref := core.Ref{Container: ct.ID, Process: p.ID}
	if opts.Force {
		c.e.endTree(ctx, ct, p)
	}
	if p.Autopsy == nil {
		if err := c.Signal(ctx, ref, sigkill, opts.Request); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
		if _, err := c.e.await(ctx, ref); err != nil {
			return err
		}
	}
	if err := c.e.o.Supervisor.Forget(ctx, ref); err != nil && !errdefs.IsNotFound(err) {
		return fmt.Errorf("remove process %s of container %s: %w", ref.Process, ref.Container, err)
	}
	return nil
}

// endTree ends the processes that an exec has started, and stops the exec itself so that it
// starts no more. When the exec has ended, it ends those that are left.
func (e *Engine) endTree(ctx context.Context, ct *core.Container, p *core.Process) {
	list := func() ([]int, error) { return e.o.Cgroups.Pids(ctx, ct.Cgroup) }
	var err error
	switch {
	case p.Autopsy == nil:
		err = proctree.Kill(p.Pid, p.Session, list)
	case p.Session > 0 && !p.Autopsy.Exit.Lost:
		err = proctree.Orphans(p.Session, p.Autopsy.Exit.At, list)
	}
	if err != nil {
		e.o.Logger.WarnContext(ctx, "could not end the processes that an exec started; they may still run", "container", ct.ID, "process", p.ID, "error", err)
	}
}

// dropExec removes an ended process from its container's record. The exit of one that was started
// with KeepExit stays.
func (r records) dropExec(ref core.Ref, by scope.Change) error {
	err := r.EditContainer(ref.Container, func(ct *core.Container, n *scope.Change) error {
		if p := ct.Process(ref.Process); p != nil {
			keepExit(ct, p)
		}
		ct.Execs = slices.DeleteFunc(ct.Execs, func(p core.Process) bool { return p.ID == ref.Process })
		n.Join(by)
		return nil
	})
	return ignoreNotFound(err)
}

// Wait returns when the process has ended and its output is in its sinks.
func (c *Client) Wait(ctx context.Context, ref core.Ref) (core.Autopsy, error) {
	if _, _, err := c.view.process(ref); err != nil {
		return core.Autopsy{}, err
	}
	return c.e.await(ctx, ref)
}

// JoinWait is Wait in two steps. It finds the process now; the function that it returns waits for
// the end of that very process, even if another one gets its ID meanwhile. The function must be
// called once.
func (c *Client) JoinWait(ref core.Ref) (wait func(context.Context) (core.Autopsy, error)) {
	if _, _, err := c.view.process(ref); err != nil {
		return func(context.Context) (core.Autopsy, error) { return core.Autopsy{}, err }
	}
	return c.e.joinWait(ref)
}

// Streams opens a live connection to a process's standard streams.
func (c *Client) Streams(ctx context.Context, ref core.Ref, opts core.StreamOptions) (s *core.Streams, err error) {
	ct, _, err := c.view.process(ref)
	if err != nil {
		return nil, err
	}
	opts.Stdin = opts.Stdin && (ct.Confinement == nil || !ct.Confinement.Shutdown) // it is not a client's to write to
	if err := c.Rests.Wake(ctx, ref.Container, asleep.ByAttach); err != nil {
		return nil, err
	}
	if ref.Process != core.Main {
		return c.e.o.Supervisor.Streams(ctx, ref, opts)
	}
	err = c.e.policies.around(ctx, &core.Operation{Verb: core.VerbAttach, Container: &ct}, func() error {
		s, err = c.e.o.Supervisor.Streams(ctx, ref, opts)
		return err
	})
	return s, err
}

// supervised calls the keeper about a process that has a record.
func (c view) supervised(ref core.Ref, ask func(core.Supervisor) error) error {
	if _, _, err := c.process(ref); err != nil {
		return err
	}
	return ask(c.e.o.Supervisor)
}

// Resize sets the size of a process's terminal.
func (c *Client) Resize(ctx context.Context, ref core.Ref, size core.Size) error {
	return c.view.supervised(ref, func(s core.Supervisor) error { return s.Resize(ctx, ref, size) })
}

// CloseStdin closes a process's input.
func (c *Client) CloseStdin(ctx context.Context, ref core.Ref) error {
	return c.view.supervised(ref, func(s core.Supervisor) error { return s.CloseStdin(ctx, ref) })
}

// ReopenSinks opens the paths of a process's sinks again, after somebody renamed a file.
func (c *Client) ReopenSinks(ctx context.Context, ref core.Ref) error {
	return c.view.supervised(ref, func(s core.Supervisor) error { return s.ReopenSinks(ctx, ref) })
}

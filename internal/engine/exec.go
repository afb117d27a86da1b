package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/proctree"
)

// Exec starts a further process in a running container; with cfg.Attach the
// stream is returned as well.
//
// It is recorded once it runs: a crash before that leaves a process that nobody
// has heard of, which recovery kills.
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
	if cfg.ID == core.Main {
		cfg.ID = core.ProcessID(newID()[:32])
	}
	ct, err := c.container(id)
	if err != nil {
		return p, nil, err
	}
	err = c.e.policies.around(ctx, &core.Operation{Verb: core.VerbExec, Container: &ct, Process: cfg.ID}, func() error {
		p, s, err = c.startExec(ctx, id, cfg)
		return err
	})
	return p, s, err
}

// startExec starts a further process about which the policies were asked.
func (c view) startExec(ctx context.Context, id core.ID, cfg core.ProcessConfig) (core.Process, *core.Streams, error) {
	e, ref := c.e, core.Ref{Container: id, Process: cfg.ID}
	unlock, err := e.launches.Lock(ctx, ref)
	if err != nil {
		return core.Process{}, nil, err
	}
	defer unlock()
	ct, err := c.container(id)
	if err != nil {
		return core.Process{}, nil, err
	}
	if err := canExec(&ct, cfg.ID); err != nil {
		return core.Process{}, nil, err
	}
	sb, err := e.records.sandbox(ct.Sandbox)
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

func canExec(ct *core.Container, id core.ProcessID) error {
	if ct.State != core.ContainerRunning {
		return fmt.Errorf("it is %s: %w", ct.State, errdefs.ErrFailedPrecondition)
	}
	if ct.Process(id) != nil {
		return fmt.Errorf("process %s: %w", id, errdefs.ErrAlreadyExists)
	}
	return nil
}

func (e *Engine) launchExec(ctx context.Context, sb *core.Sandbox, ct *core.Container, cfg core.ProcessConfig) (core.Launched, error) {
	rt, err := e.runtime(ct.Runtime)
	if err != nil {
		return core.Launched{}, err
	}
	l := e.pipeline("exec")
	if err := l.pass("begin"); err != nil {
		return core.Launched{}, err
	}
	uid, gid := hostIDs(sb, cfg.Spec)
	launched, err := rt.Exec(ctx, core.RuntimeExec{
		Ref: core.Ref{Container: ct.ID, Process: cfg.ID}, Bundle: ct.Bundle, Spec: cfg.Spec, IO: cfg.IO, Attach: cfg.Attach,
		Levels: levelsOf(sb, ct), UID: uid, GID: gid,
	})
	if err == nil {
		err = l.pass("launch")
	}
	return launched, err
}

func (c view) recordExec(ctx context.Context, ct *core.Container, cfg core.ProcessConfig, launched core.Launched) (core.Process, error) {
	e, ref := c.e, core.Ref{Container: ct.ID, Process: cfg.ID}
	p := core.Process{
		ID: cfg.ID, Pid: launched.Pid, Session: proctree.Session(launched.Pid), Args: cfg.Spec.Args, TTY: cfg.IO.TTY, Hold: cfg.IO.Hold, Ephemeral: cfg.Ephemeral,
		KeepExit: cfg.KeepExit, Started: now(), Data: cfg.Data,
	}
	err := e.records.editContainer(ct.ID, func(ct *core.Container, n *change) error {
		forgetExit(ct, p.ID)
		ct.Execs = append(ct.Execs, p)
		n.add(core.Event{Kind: core.EventProcessStarted, Process: p.ID})
		n.forced(c, &ct.Meta, "exec", c.request(core.StopRequest{}, ""))
		return nil
	})
	if err == nil {
		if err := e.pipeline("exec").pass("commit"); err != nil {
			return p, err
		}
		return p, nil
	}
	// The container was removed under our hands: nothing may stay.
	ctx, cancel := detached(ctx)
	defer cancel()
	if serr := e.o.Supervisor.Signal(ctx, ref, sigkill); serr != nil && !errdefs.IsNotFound(serr) {
		e.o.Logger.WarnContext(ctx, "a process without a record was not killed", "container", ct.ID, "process", p.ID, "error", serr)
	}
	return p, err
}

// Signal sends a signal to a process. One that asks for the process's end is
// put on record with who asked.
func (c *Client) Signal(ctx context.Context, ref core.Ref, sig int, asked core.StopRequest) error {
	ct, p, err := c.view.process(ref)
	if err != nil {
		return err
	}
	if p.Autopsy != nil {
		return fmt.Errorf("signal process %s of container %s: it has ended: %w", ref.Process, ref.Container, errdefs.ErrNotFound)
	}
	asked = c.view.request(asked, "Signal")
	asked.Signal = sig
	if asksForEnd(&ct, sig) || c.view.forces(&ct.Meta) {
		if err := c.e.records.recordAsked(ref, asked, c.view); err != nil {
			return err
		}
	}
	if err := c.e.o.Supervisor.Signal(ctx, ref, sig); err != nil {
		return fmt.Errorf("signal process %s of container %s: %w", ref.Process, ref.Container, err)
	}
	return nil
}

// asksForEnd tells the signals by which people and programs end a process from
// those with another meaning.
func asksForEnd(ct *core.Container, sig int) bool {
	if stop, err := parseSignal(ct.Config.Stop.Signal); err == nil && stop == sig {
		return true
	}
	return slices.Contains([]int{1, 2, 3, 6, sigkill, sigterm}, sig)
}

func (r records) recordAsked(ref core.Ref, asked core.StopRequest, by view) error {
	err := r.editContainer(ref.Container, func(ct *core.Container, n *change) error {
		n.forced(by, &ct.Meta, "signal", asked)
		p := ct.Process(ref.Process)
		if p == nil || p.Autopsy != nil || !asked.Stop && !asksForEnd(ct, asked.Signal) {
			return nil
		}
		// A stop goes on whatever is sent beside it.
		if asked.Stop || p.StopRequest == nil || !p.StopRequest.Stop || asked.Signal == sigkill {
			p.StopRequest = &asked
		}
		return nil
	})
	return err
}

// RemoveProcess forgets an exec that has ended; with Force it is killed first, and
// what it started or has left goes with it. Success when there is none.
func (c *Client) RemoveProcess(ctx context.Context, ref core.Ref, opts RemoveOptions) error {
	if ref.Process == core.Main {
		return fmt.Errorf("remove process: the main process goes with its container: %w", errdefs.ErrInvalidArgument)
	}
	// Of one that recovery kills, the exit is not kept by whoever comes first.
	ended, abandoned := c.e.abandoned.Load(ref)
	ct, p, err := c.view.process(ref)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if opts.Force {
		c.e.endTree(ctx, &ct, p)
	}
	if p.Autopsy == nil {
		if !opts.Force {
			return fmt.Errorf("remove process %s of container %s: it runs: %w", ref.Process, ref.Container, errdefs.ErrFailedPrecondition)
		}
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
	var by change
	if ct, err := c.view.container(ref.Container); err == nil {
		by.forced(c.view, &ct.Meta, "remove process", c.view.request(opts.Request, ""))
	}
	return c.e.records.dropExec(ref, !abandoned || ended == true, by)
}

// endKin ends what an exec has started, and stops the exec itself; or what it has
// left, when it has ended.
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
		e.o.Logger.WarnContext(ctx, "what an exec started may go on", "container", ct.ID, "process", p.ID, "error", err)
	}
}

// dropExec takes an ended process off its container's record; keep is whether the
// exit of one with KeepExit stays.
func (r records) dropExec(ref core.Ref, keep bool, by change) error {
	err := r.editContainer(ref.Container, func(ct *core.Container, n *change) error {
		if p := ct.Process(ref.Process); keep && p != nil {
			keepExit(ct, p)
		}
		ct.Execs = slices.DeleteFunc(ct.Execs, func(p core.Process) bool { return p.ID == ref.Process })
		n.events = append(n.events, by.events...)
		return nil
	})
	return ignoreNotFound(err)
}

// Wait returns once the process has ended and its output is in its sinks.
func (c *Client) Wait(ctx context.Context, ref core.Ref) (core.Autopsy, error) {
	if _, _, err := c.view.process(ref); err != nil {
		return core.Autopsy{}, err
	}
	return c.e.await(ctx, ref)
}

// JoinWait is Wait in two steps: it finds the process now, and the function that it
// returns waits for the end of this very process, though another one may have its ID
// by then. That function must be called once.
func (c *Client) JoinWait(ref core.Ref) (wait func(context.Context) (core.Autopsy, error)) {
	if _, _, err := c.view.process(ref); err != nil {
		return func(context.Context) (core.Autopsy, error) { return core.Autopsy{}, err }
	}
	return c.e.joinWait(ref)
}

// Streams opens a live connection to a process's standard streams.
func (c *Client) Streams(ctx context.Context, ref core.Ref, opts core.StreamOptions) (*core.Streams, error) {
	if _, _, err := c.view.process(ref); err != nil {
		return nil, err
	}
	return c.e.o.Supervisor.Streams(ctx, ref, opts)
}

// supervised asks the keeper for something of a process on record.
func (c *Client) supervised(ref core.Ref, ask func(core.Supervisor) error) error {
	if _, _, err := c.view.process(ref); err != nil {
		return err
	}
	return ask(c.e.o.Supervisor)
}

// Resize tells a process's terminal its size.
func (c *Client) Resize(ctx context.Context, ref core.Ref, size core.Size) error {
	return c.supervised(ref, func(s core.Supervisor) error { return s.Resize(ctx, ref, size) })
}

// CloseStdin ends a process's input.
func (c *Client) CloseStdin(ctx context.Context, ref core.Ref) error {
	return c.supervised(ref, func(s core.Supervisor) error { return s.CloseStdin(ctx, ref) })
}

// ReopenSinks opens a process's sinks anew, after somebody renamed a file.
func (c *Client) ReopenSinks(ctx context.Context, ref core.Ref) error {
	return c.supervised(ref, func(s core.Supervisor) error { return s.ReopenSinks(ctx, ref) })
}

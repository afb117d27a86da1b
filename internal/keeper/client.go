package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper/wire"
)

var (
	_ core.Launcher   = (*Client)(nil)
	_ core.Supervisor = (*Client)(nil)
)

// Options configure a Client.
type Options struct {
	// StateDir holds the pairs' directories: sockets, FIFOs, exit records. New makes
	// it, for root only, if it does not exist. It should be on a tmpfs.
	StateDir string
	// Binary is the path of longshore-keeper, or of a program that is it when it is started
	// under that name.
	Binary string
	// Started, unless nil, is called for each pair that was started, before that pair
	// gets anything to run.
	Started func(ctx context.Context, keeper, nest int)
	// Changed, unless nil, is called when Status may have changed: a keeper was lost or
	// reached again, has lost its nest, or sent a copy that could not be received. It must not block.
	Changed func()
	// LateCopies leaves the request for copies of keeper's and nest's items to Client.AskCopies, so that
	// a starting agent gets its other answers first.
	LateCopies bool
	// VersionOf returns the version that is built into a program file, "" if there is none. It
	// may be nil: the library that reads it is larger than this package.
	VersionOf func(path string) string
	// Logger may be nil, for no logs.
	Logger *slog.Logger
}

// Client talks to all pairs on the node. New launches go to the newest pair that has a
// nest; all other requests go to the pair that knows the process.
type Client struct {
	opts Options
	log  *slog.Logger

	mu      sync.Mutex    // guards pairs, changed, closed
	pairs   []*pair       // oldest first
	changed chan struct{} // closed and replaced when pairs change
	closed  bool
	busy    chan struct{} // held while pairs are searched for or started
}

// New connects to the pairs that run below opts.StateDir, and starts one if there is
// none. The context is for New alone.
func New(ctx context.Context, opts Options) (*Client, error) {
	if !filepath.IsAbs(opts.StateDir) || !filepath.IsAbs(opts.Binary) {
		return nil, fmt.Errorf("keeper: StateDir and Binary must be absolute paths: %w", errdefs.ErrInvalidArgument)
	}
	c := &Client{opts: opts, log: opts.Logger, changed: make(chan struct{}), busy: make(chan struct{}, 1)}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	if c.opts.Changed == nil {
		c.opts.Changed = func() {}
	}
	if err := os.MkdirAll(opts.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("keeper: %w", err)
	}
	if _, err := c.current(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return c, nil
}

// Close disconnects from the pairs, which continue to run.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	pairs := c.pairs
	c.pairs = nil
	c.changedLocked()
	c.mu.Unlock()
	for _, p := range pairs {
		p.close()
	}
	return nil
}

func (c *Client) changedLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// all returns the pairs, newest first.
func (c *Client) all() []*pair {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]*pair, 0, len(c.pairs))
	for i := len(c.pairs) - 1; i >= 0; i-- {
		out = append(out, c.pairs[i])
	}
	return out
}

// current returns the pair that new launches go to, and starts one if there is none.
func (c *Client) current(ctx context.Context) (*pair, error) {
	if p := c.usable(); p != nil {
		return p, nil
	}
	select {
	case c.busy <- struct{}{}:
		defer func() { <-c.busy }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if p := c.usable(); p != nil {
		return p, nil
	}
	return c.findOrStart(ctx)
}

// usable returns the newest pair that is connected and has a nest.
func (c *Client) usable() *pair {
	for _, p := range c.all() {
		if p.hasNest() {
			return p
		}
	}
	return nil
}

// on calls fn for the pair that knows the object: for each pair, newest first, until
// the answer is not NotFound.
func (c *Client) on(ctx context.Context, fn func(*pair) error) error {
	if _, err := c.current(ctx); err != nil {
		return err
	}
	err := fmt.Errorf("keeper: no keeper is running: %w", errdefs.ErrUnavailable)
	for i, p := range c.all() {
		e := fn(p)
		if e == nil {
			return nil
		}
		// Of several errors, return the one that says most: NotFound says least.
		if i == 0 || errdefs.IsNotFound(err) {
			err = e
		}
		if !errdefs.IsNotFound(e) && !errdefs.IsUnavailable(e) {
			return e
		}
	}
	return err
}

// onRef sends a request that names a process and has no answer.
func (c *Client) onRef(ctx context.Context, kind wire.Kind, m wire.Message) error {
	return c.on(ctx, func(p *pair) error {
		_, err := p.call(ctx, kind, m, nil)
		return err
	})
}

func wireRef(r core.Ref) wire.Ref {
	return wire.Ref{Container: string(r.Container), Process: string(r.Process)}
}

func coreRef(r wire.Ref) core.Ref {
	return core.Ref{Container: core.ID(r.Container), Process: core.ProcessID(r.Process)}
}

// LaunchCommand implements core.Launcher. After the error Unavailable the process may nevertheless
// have been started: check Processes before launching it again.
func (c *Client) LaunchCommand(ctx context.Context, l core.CommandLaunch) (core.Launched, error) {
	body, err := wireLaunch(&l.Launch)
	if err != nil {
		return core.Launched{}, err
	}
	body.Kind, body.Command, body.PidFile, body.ConsoleSocket = wire.LaunchCommand, wireCommand(&l.Command), l.PidFile, l.ConsoleSocket
	return c.launch(ctx, &l.Launch, core.Ref{}, wire.KindLaunch, body)
}

// LaunchPlan implements core.Launcher. Unavailable has the meaning as for LaunchCommand.
func (c *Client) LaunchPlan(ctx context.Context, l core.PlanLaunch) (core.Launched, error) {
	body, err := wireLaunch(&l.Launch)
	if err != nil {
		return core.Launched{}, err
	}
	body.Kind, body.Park, body.Target = wire.LaunchPlan, l.Park, wireRef(l.Target)
	if len(l.Given) == 0 {
		return c.launch(ctx, &l.Launch, l.Target, wire.KindLaunchPlan, &planned{Message: body, plan: l.Plan})
	}
	if len(l.Given) > wire.MaxGiven {
		return core.Launched{}, fmt.Errorf("launch: %d descriptors for the program, at most %d are possible: %w", len(l.Given), wire.MaxGiven, errdefs.ErrInvalidArgument)
	}
	return c.launch(ctx, &l.Launch, l.Target, wire.KindLaunchGiven, &planned{Message: body, plan: l.Plan, given: l.Given})
}

// launch sends a launch to the pair that runs target or, without a target, to the pair
// that new launches go to.
func (c *Client) launch(ctx context.Context, l *core.Launch, target core.Ref, kind wire.Kind, m wire.Message) (core.Launched, error) {
	var out core.Launched
	err := c.onTarget(ctx, target, func(p *pair) error {
		var a wire.Launched
		fds, err := p.call(ctx, kind, m, &a)
		if err != nil {
			return err
		}
		out.Pid = a.Pid
		if l.Attach != nil && a.Opened.Stream != 0 {
			out.Streams = p.streams(wireRef(l.Ref), *l.Attach, a.Opened, fds)
		} else {
			fds.close()
		}
		return nil
	})
	return out, err
}

// onTarget calls fn for the pair that runs target, because only its keeper can put a child into
// target's namespaces. For the zero Ref it is the pair that new launches go to.
func (c *Client) onTarget(ctx context.Context, target core.Ref, fn func(*pair) error) error {
	if target.Container != "" {
		return c.on(ctx, fn)
	}
	p, err := c.current(ctx)
	if err != nil {
		return err
	}
	return fn(p)
}

// Release implements core.Launcher. It fails with NotFound if the program, or the
// process, does not exist.
func (c *Client) Release(ctx context.Context, ref core.Ref) error {
	m := wireRef(ref)
	return c.onRef(ctx, wire.KindRelease, &m)
}

// Advance implements core.Launcher.
func (c *Client) Advance(ctx context.Context, ref core.Ref) error {
	m := wireRef(ref)
	return c.onRef(ctx, wire.KindAdvance, &m)
}

// wireLaunch translates the common part of launches of all kinds.
func wireLaunch(l *core.Launch) (*wire.Launch, error) {
	m := &wire.Launch{
		Ref: wireRef(l.Ref),
		IO:  wire.IO{TTY: l.IO.TTY, Cols: l.IO.Size.Cols, Rows: l.IO.Size.Rows, Hold: l.IO.Hold},
		UID: l.UID, GID: l.GID, Peak: l.Peak,
	}
	switch l.IO.Stdin {
	case core.StdinClosed:
	case core.StdinOpen:
		m.IO.Stdin = wire.StdinOpen
	case core.StdinOnce:
		m.IO.Stdin = wire.StdinOnce
	default:
		return nil, fmt.Errorf("launch: stdin mode %q: %w", l.IO.Stdin, errdefs.ErrInvalidArgument)
	}
	for _, s := range l.IO.Sinks {
		if s.Format != core.FormatRaw && !s.Format.Records() {
			return nil, fmt.Errorf("launch: sink format %q: %w", s.Format, errdefs.ErrInvalidArgument)
		}
		path, ok := wire.JoinPath(s.Below, s.Path)
		if !ok {
			return nil, fmt.Errorf("launch: sink %s is not below %s: %w", s.Path, s.Below, errdefs.ErrInvalidArgument)
		}
		files, size := s.MaxFiles, s.MaxBytes
		if s.Format == core.FormatCRIPlain {
			size = -1
		}
		if s.Numbered {
			files = -max(files, 1)
		}
		m.IO.Sinks = append(m.IO.Sinks, wire.Sink{
			CRI: s.Format.Records(), Stdout: s.Stdout, Stderr: s.Stderr,
			Path: path, MaxBytes: size, MaxFiles: files,
		})
	}
	for _, v := range l.Levels {
		m.Levels = append(m.Levels, wire.Level{Path: v.Path, Local: v.LocalPath})
	}
	if l.Attach != nil {
		m.Attach, m.Want = true, wireWant(*l.Attach)
	}
	return m, nil
}

func wireWant(o core.StreamOptions) wire.Want {
	return wire.Want{Stdin: o.Stdin, Stdout: o.Stdout, Stderr: o.Stderr, Exclusive: o.Exclusive}
}

func wireCommand(c *core.Command) wire.Command {
	return wire.Command{Args: c.Args, Env: c.Env, Dir: c.Dir, HideUnified: c.HideUnified}
}

// Run implements core.Launcher.
func (c *Client) Run(ctx context.Context, cmd core.Command) (core.CommandResult, error) {
	line := wireCommand(&cmd)
	if cmd.Path == "" && cmd.Stdin == nil {
		return c.run(ctx, core.Ref{}, wire.KindRun, &line)
	}
	return c.run(ctx, core.Ref{}, wire.KindTask, &planned{Message: &wire.Task{Command: line, Path: cmd.Path, Input: cmd.Stdin}})
}

// RunPlan implements core.Launcher.
func (c *Client) RunPlan(ctx context.Context, cmd core.PlannedCommand) (core.CommandResult, error) {
	return c.run(ctx, cmd.Target, wire.KindTask, &planned{Message: &wire.Task{Input: cmd.Stdin, Planned: true, Target: wireRef(cmd.Target)}, plan: cmd.Plan})
}

func (c *Client) run(ctx context.Context, target core.Ref, kind wire.Kind, m wire.Message) (core.CommandResult, error) {
	var r wire.Result
	err := c.onTarget(ctx, target, func(p *pair) error {
		_, err := p.call(ctx, kind, m, &r)
		return err
	})
	if err != nil {
		return core.CommandResult{}, err
	}
	return core.CommandResult{Status: r.Status, Stdout: r.Stdout, Stderr: r.Stderr}, nil
}

// Signal implements core.Supervisor.
func (c *Client) Signal(ctx context.Context, ref core.Ref, signal int) error {
	return c.onRef(ctx, wire.KindSignal, &wire.SignalRequest{Ref: wireRef(ref), Signal: signal})
}

// Resize implements core.Supervisor.
func (c *Client) Resize(ctx context.Context, ref core.Ref, size core.Size) error {
	return c.onRef(ctx, wire.KindResize, &wire.ResizeRequest{Ref: wireRef(ref), Cols: size.Cols, Rows: size.Rows})
}

// CloseStdin implements core.Supervisor. It also ends the input of open streams.
func (c *Client) CloseStdin(ctx context.Context, ref core.Ref) error {
	r := wireRef(ref)
	return c.on(ctx, func(p *pair) error {
		p.closeInputs(r)
		_, err := p.call(ctx, wire.KindCloseStdin, &r, nil)
		return err
	})
}

// ReopenSinks implements core.Supervisor.
func (c *Client) ReopenSinks(ctx context.Context, ref core.Ref) error {
	r := wireRef(ref)
	return c.onRef(ctx, wire.KindReopen, &r)
}

// Streams implements core.Supervisor.
func (c *Client) Streams(ctx context.Context, ref core.Ref, opts core.StreamOptions) (*core.Streams, error) {
	var st *core.Streams
	err := c.on(ctx, func(p *pair) error {
		var o wire.Opened
		fds, err := p.call(ctx, wire.KindStreams, &wire.StreamsRequest{Ref: wireRef(ref), Want: wireWant(opts)}, &o)
		if err != nil {
			return err
		}
		st = p.streams(wireRef(ref), opts, o, fds)
		return nil
	})
	return st, err
}

// Processes implements core.Supervisor. For a pair with keeper and nest dead it returns the
// processes with recorded exits.
func (c *Client) Processes(ctx context.Context) ([]core.Supervised, error) {
	if _, err := c.current(ctx); err != nil {
		return nil, err
	}
	var out []core.Supervised
	for _, p := range c.all() {
		var l wire.Processes
		if _, err := p.call(ctx, wire.KindProcesses, nil, &l); err != nil {
			if p.dead() {
				continue
			}
			return nil, err
		}
		for _, s := range l.List {
			out = append(out, core.Supervised{Ref: coreRef(s.Ref), Pid: s.Pid, Running: s.Running, Lost: s.Lost})
		}
	}
	for _, x := range c.orphanExits() {
		out = append(out, core.Supervised{Ref: coreRef(x.Ref), Lost: x.LostOut})
	}
	return out, nil
}

// Ack implements core.Supervisor.
func (c *Client) Ack(ctx context.Context, ref core.Ref) error {
	c.ackOrphan(ref)
	r := wireRef(ref)
	err := c.onRef(ctx, wire.KindAck, &r)
	if errdefs.IsNotFound(err) {
		return nil // its pair died, or it was acknowledged and forgotten before
	}
	return err
}

// Forget implements core.Supervisor.
func (c *Client) Forget(ctx context.Context, ref core.Ref) error {
	if _, err := c.current(ctx); err != nil {
		return err
	}
	c.ackOrphan(ref)
	r := wireRef(ref)
	var errs []error
	for _, p := range c.all() {
		if _, err := p.call(ctx, wire.KindForget, &r, nil); err != nil && !p.dead() {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Status implements core.Supervisor. It sums up all pairs. The pids are those of the
// pair that new launches go to, except that NestPid is 0 while any pair with processes
// has lost its nest.
func (c *Client) Status(ctx context.Context) (core.SupervisorStatus, error) {
	if _, err := c.current(ctx); err != nil {
		return core.SupervisorStatus{}, err
	}
	var out core.SupervisorStatus
	nestLost := false
	for _, p := range c.all() {
		var s wire.Status
		if _, err := p.call(ctx, wire.KindStatus, nil, &s); err != nil {
			if p.dead() {
				continue
			}
			return out, err
		}
		if out.KeeperPid == 0 {
			out.Version, out.KeeperPid, out.NestPid, out.Started = version(c.opts.VersionOf, s), s.KeeperPid, s.NestPid, time.Unix(0, s.Started)
		}
		nestLost = nestLost || s.NestPid == 0 && s.Processes > 0
		out.Processes += s.Processes
		out.Uncopied += p.uncopied(s.Processes)
		out.Pending += s.Pending
		out.Lost += s.Lost
	}
	if nestLost {
		out.NestPid = 0
	}
	out.Pending += len(c.orphanExits())
	return out, nil
}

// version returns the keeper's version: the release that its status reports, or the one built into its program, or
// else the number that its status reports.
func version(of func(path string) string, s wire.Status) string {
	if _, err := strconv.Atoi(s.Program); err == nil && of != nil {
		if v := of("/proc/" + strconv.Itoa(s.KeeperPid) + "/exe"); v != "" {
			return v
		}
	}
	return s.Program
}

// Upgrade makes every keeper execute the program at path in place: children, streams and
// connections stay. The error is FailedPrecondition if the program does not start, or reads
// another form of the state that is handed over; then nothing has changed. A keeper that fails to execute it continues as before.
func (c *Client) Upgrade(ctx context.Context, path string) error {
	if _, err := c.current(ctx); err != nil {
		return err
	}
	next, err := statedBy(ctx, path)
	if err != nil {
		return fmt.Errorf("upgrade of the keeper to %s: it does not say which formats it reads, so it is no longshore-keeper that works here, or too old: %w: %w", path, err, errdefs.ErrFailedPrecondition)
	}
	var errs []error
	for _, p := range c.all() {
		if err := p.mayBecome(ctx, next); err != nil {
			errs = append(errs, fmt.Errorf("upgrade of the keeper to %s: %w", path, err))
			continue
		}
		if err := p.become(ctx, path); err != nil {
			errs = append(errs, err)
			continue
		}
		p.renew()
	}
	return errors.Join(errs...)
}

// Shutdown ends every pair. It fails with FailedPrecondition while any of them has
// processes.
func (c *Client) Shutdown(ctx context.Context) error {
	var errs []error
	for _, p := range c.all() {
		p.retire()
		if _, err := p.call(ctx, wire.KindShutdown, nil, nil); err != nil {
			if !p.dead() {
				errs = append(errs, err)
			}
			continue
		}
		dropIfEmpty(p.dir)
	}
	return errors.Join(errs...)
}

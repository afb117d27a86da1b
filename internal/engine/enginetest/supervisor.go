package enginetest

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Supervisor is a fake core.Supervisor, together with its processes.
type Supervisor struct {
	fault
	lock     sync.Mutex    // guards changed, procs, era, heard, lastPid, programs; and every Process
	changed  chan struct{} // closed and replaced when a process ends or the keeper dies
	procs    map[core.Ref]*Process
	era      int // increased by the keeper's death
	heard    int // the era of the caller that listens for exits; -1 for none
	lastPid  int
	programs map[string]Program
	wg       sync.WaitGroup
}

// Program is a function in place of a program: it is called when a process with its name as first
// argument runs, and returns the exit code. It must return when p.Killed is closed.
type Program func(p *Process) int

// Process is one fake process.
type Process struct {
	Ref    core.Ref
	Pid    int
	Args   []string
	Env    []string
	Spec   *specs.Process // the runtime's process spec; nil without a container
	Stdin  io.Reader
	Killed <-chan struct{} // closed when the process has ended
	// Cgroup is the path of its cgroup.
	Cgroup string
	Size   core.Size // that of the last Resize

	sup     *Supervisor
	io      core.IO
	killed  chan struct{}
	stdin   *io.PipeWriter
	started bool
	ignores []int
	signals []int
	held    [2][]byte
	views   []*stream
	exit    *core.ProcessExit
	acked   bool
	reopens int
	kills   uint64
}

type stream struct {
	out, err  *pipe
	exclusive bool
}

var _ core.Supervisor = (*Supervisor)(nil)

func newSupervisor() *Supervisor {
	return &Supervisor{changed: make(chan struct{}), procs: map[core.Ref]*Process{}, programs: map[string]Program{}, lastPid: 1000, heard: -1}
}

// Program sets the function for processes with this name.
func (s *Supervisor) Program(name string, p Program) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.programs[name] = p
}

// broadcast wakes all goroutines that wait for a change. Preconditions: lock is held.
func (s *Supervisor) broadcast() {
	close(s.changed)
	s.changed = make(chan struct{})
}

// close ends all processes and waits for the programs.
func (s *Supervisor) close() {
	s.lock.Lock()
	for _, p := range s.procs {
		s.end(p, core.Exit{Signal: int(unix.SIGKILL)})
	}
	s.lock.Unlock()
	s.wg.Wait()
}

func (s *Supervisor) launch(ref core.Ref, proc *specs.Process, stdio core.IO, cgroup string) (*Process, error) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if s.procs[ref] != nil {
		return nil, fmt.Errorf("launch %v: %w", ref, errdefs.ErrAlreadyExists)
	}
	s.lastPid++
	p := &Process{Ref: ref, Pid: s.lastPid, sup: s, io: stdio, killed: make(chan struct{}), Cgroup: cgroup, Size: stdio.Size}
	p.Killed = p.killed
	if proc != nil {
		p.Args, p.Env, p.Spec = proc.Args, proc.Env, proc
	}
	r, w := io.Pipe()
	p.Stdin, p.stdin = r, w
	if stdio.Stdin == core.StdinClosed {
		_ = w.Close()
	}
	s.procs[ref] = p
	return p, nil
}

// Start launches a process that belongs to no container and runs prog.
func (s *Supervisor) Start(ctx context.Context, ref core.Ref, prog Program, stdio core.IO, attach *core.StreamOptions) (core.Launched, error) {
	name := fmt.Sprintf("program of %v", ref)
	s.Program(name, prog)
	p, err := s.launch(ref, &specs.Process{Args: []string{name}}, stdio, "")
	if err != nil {
		return core.Launched{}, err
	}
	l := core.Launched{Pid: p.Pid}
	if attach != nil {
		if l.Streams, err = s.Streams(ctx, ref, *attach); err != nil {
			return core.Launched{}, err
		}
	}
	s.run(p)
	return l, nil
}

// release runs a process, unless it already runs or has ended.
func (s *Supervisor) release(p *Process) error {
	s.lock.Lock()
	started, ended := p.started, p.exit != nil
	s.lock.Unlock()
	switch {
	case ended:
		return fmt.Errorf("release %v: %w: %w", p.Ref, core.ErrEnded, errdefs.ErrFailedPrecondition)
	case !started:
		s.run(p)
	}
	return nil
}

// run lets a launched process run its program.
func (s *Supervisor) run(p *Process) {
	s.lock.Lock()
	defer s.lock.Unlock()
	p.started = true
	args := p.Args
	if len(args) > 2 && args[1] == "init" {
		args = args[2:] // the arguments of the tiny init
	}
	if len(args) == 0 || s.programs[args[0]] == nil || p.exit != nil {
		return
	}
	prog := s.programs[args[0]]
	s.wg.Go(func() {
		code := prog(p)
		s.lock.Lock()
		defer s.lock.Unlock()
		s.end(p, core.Exit{Code: code})
	})
}

// end ends a process. Preconditions: its lock is held.
func (s *Supervisor) end(p *Process, exit core.Exit) {
	if p.exit != nil {
		return
	}
	if exit.At.IsZero() {
		exit.At = time.Now().Round(0).UTC()
	}
	p.exit = &core.ProcessExit{Ref: p.Ref, Pid: p.Pid, Exit: exit, OOMKills: []uint64{p.kills, p.kills}, OOMLocal: []uint64{0, 0}}
	close(p.killed)
	_ = p.stdin.CloseWithError(io.ErrClosedPipe)
	for _, v := range p.views {
		v.out.close()
		v.err.close()
	}
	s.broadcast()
}

// process returns a process, NotFound when there is none. Preconditions: lock is held.
func (s *Supervisor) process(ref core.Ref) (*Process, error) {
	p := s.procs[ref]
	if p == nil {
		return nil, fmt.Errorf("process %v: %w", ref, errdefs.ErrNotFound)
	}
	return p, nil
}

// Process returns a launched process; nil when there is none.
func (s *Supervisor) Process(ref core.Ref) *Process {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.procs[ref]
}

// Exit ends a process with a code.
func (s *Supervisor) Exit(ref core.Ref, code int) { s.ExitAs(ref, core.Exit{Code: code}) }

// ExitAs ends a process with an exit.
func (s *Supervisor) ExitAs(ref core.Ref, exit core.Exit) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if p := s.procs[ref]; p != nil {
		s.end(p, exit)
	}
}

// OOM kills a process as the kernel does when memory runs out: kills are the counters of its
// levels.
func (s *Supervisor) OOM(ref core.Ref, peak uint64, kills ...uint64) {
	s.lock.Lock()
	defer s.lock.Unlock()
	p := s.procs[ref]
	if p == nil || p.exit != nil {
		return
	}
	s.end(p, core.Exit{Signal: int(unix.SIGKILL)})
	p.exit.OOMKills, p.exit.Peak = kills, peak
}

// Ignore makes a process ignore signals, SIGKILL excepted.
func (s *Supervisor) Ignore(ref core.Ref, signals ...int) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if p := s.procs[ref]; p != nil {
		p.ignores = signals
	}
}

// Signals returns the signals that a process was sent.
func (s *Supervisor) Signals(ref core.Ref) []int {
	s.lock.Lock()
	defer s.lock.Unlock()
	if p := s.procs[ref]; p != nil {
		return slices.Clone(p.signals)
	}
	return nil
}

// Crash kills the keeper: every call of Exits ends. The next keeper offers the unacknowledged
// exits, and does not have the processes that gone selects.
func (s *Supervisor) Crash(gone func(core.Ref) bool) {
	s.lock.Lock()
	defer s.lock.Unlock()
	s.era++
	for ref, p := range s.procs {
		if gone != nil && gone(ref) {
			s.end(p, core.Exit{Lost: true})
			delete(s.procs, ref)
		}
	}
	s.broadcast()
}

func (s *Supervisor) killCgroup(path string) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, p := range s.procs {
		if p.Cgroup == path || strings.HasPrefix(p.Cgroup, path+"/") {
			s.end(p, core.Exit{Signal: int(unix.SIGKILL)})
		}
	}
}

// cgroupPids returns the pids of the processes that run in a cgroup.
func (s *Supervisor) cgroupPids(path string) (list []int) {
	s.lock.Lock()
	defer s.lock.Unlock()
	for _, p := range s.procs {
		if p.exit == nil && p.Cgroup == path {
			list = append(list, p.Pid)
		}
	}
	return list
}

// Signal ends a process unless it ignores the signal. Signals that usually do not end a process
// are only recorded.
func (s *Supervisor) Signal(ctx context.Context, ref core.Ref, signal int) error {
	if err := s.check(ctx, "Signal"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	p, err := s.process(ref)
	if err != nil {
		return err
	}
	if p.exit != nil {
		return fmt.Errorf("signal %v: it has ended: %w", ref, errdefs.ErrNotFound)
	}
	p.signals = append(p.signals, signal)
	deadly := []int{int(unix.SIGTERM), int(unix.SIGINT), int(unix.SIGQUIT), int(unix.SIGHUP)}
	if signal == int(unix.SIGKILL) || slices.Contains(deadly, signal) && !slices.Contains(p.ignores, signal) {
		s.end(p, core.Exit{Signal: signal})
	}
	return nil
}

// Resize records the size.
func (s *Supervisor) Resize(ctx context.Context, ref core.Ref, size core.Size) error {
	if err := s.check(ctx, "Resize"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	p, err := s.process(ref)
	if err != nil {
		return err
	}
	if !p.io.TTY {
		return fmt.Errorf("resize %v: no terminal: %w", ref, errdefs.ErrFailedPrecondition)
	}
	p.Size = size
	return nil
}

// CloseStdin ends the process's input.
func (s *Supervisor) CloseStdin(ctx context.Context, ref core.Ref) error {
	if err := s.check(ctx, "CloseStdin"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	p, err := s.process(ref)
	if err != nil {
		return err
	}
	return p.stdin.Close()
}

// ReopenSinks counts the calls.
func (s *Supervisor) ReopenSinks(ctx context.Context, ref core.Ref) error {
	if err := s.check(ctx, "ReopenSinks"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	p, err := s.process(ref)
	if err == nil {
		p.reopens++
	}
	return err
}

// Reopens returns how often a process's sinks were reopened.
func (s *Supervisor) Reopens(ref core.Ref) int {
	s.lock.Lock()
	defer s.lock.Unlock()
	if p := s.procs[ref]; p != nil {
		return p.reopens
	}
	return 0
}

// Processes returns the processes that were launched and not forgotten.
func (s *Supervisor) Processes(ctx context.Context) ([]core.Supervised, error) {
	if err := s.check(ctx, "Processes"); err != nil {
		return nil, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	var list []core.Supervised
	for _, p := range s.procs {
		list = append(list, core.Supervised{Ref: p.Ref, Pid: p.Pid, Running: p.exit == nil})
	}
	slices.SortFunc(list, func(a, b core.Supervised) int { return cmp.Compare(a.Pid, b.Pid) })
	return list, nil
}

var errKeeperGone = fmt.Errorf("exits: the keeper is gone: %w", errdefs.ErrUnavailable)

// Exits yields the exits that are not acknowledged.
func (s *Supervisor) Exits(ctx context.Context) iter.Seq2[core.ProcessExit, error] {
	return func(yield func(core.ProcessExit, error) bool) {
		s.lock.Lock()
		era := s.era
		s.heard = era
		s.broadcast()
		s.lock.Unlock()
		defer func() {
			s.lock.Lock()
			defer s.lock.Unlock()
			if s.heard == era {
				s.heard = -1
			}
		}()
		offered := map[int]bool{}
		for {
			s.lock.Lock()
			changed := s.changed
			var next []core.ProcessExit
			for _, p := range s.procs {
				if p.exit != nil && !p.acked && !offered[p.Pid] {
					next = append(next, *p.exit)
					offered[p.Pid] = true
				}
			}
			gone := s.era != era
			s.lock.Unlock()
			slices.SortFunc(next, func(a, b core.ProcessExit) int {
				return cmp.Or(a.Exit.At.Compare(b.Exit.At), cmp.Compare(a.Pid, b.Pid))
			})
			for _, x := range next {
				if ctx.Err() != nil || gone {
					break
				}
				if !yield(x, nil) {
					return
				}
			}
			if gone {
				yield(core.ProcessExit{}, errKeeperGone)
				return
			}
			select {
			case <-changed:
			case <-ctx.Done():
				return
			}
		}
	}
}

// Ack acknowledges an exit.
func (s *Supervisor) Ack(ctx context.Context, ref core.Ref) error {
	if err := s.check(ctx, "Ack"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	p, err := s.process(ref)
	if err == nil {
		p.acked = true
		s.broadcast()
	}
	return err
}

// listened waits until a caller listens for exits.
func (s *Supervisor) listened(ctx context.Context) error {
	for {
		s.lock.Lock()
		changed, ok := s.changed, s.heard == s.era
		s.lock.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// settled waits until every exit is acknowledged.
func (s *Supervisor) settled(ctx context.Context) error {
	for {
		s.lock.Lock()
		changed, pending := s.changed, 0
		for _, p := range s.procs {
			if p.exit != nil && !p.acked {
				pending++
			}
		}
		s.lock.Unlock()
		if pending == 0 {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("%d pending: %w", pending, context.Cause(ctx))
		}
	}
}

// Forget drops an ended process.
func (s *Supervisor) Forget(ctx context.Context, ref core.Ref) error {
	if err := s.check(ctx, "Forget"); err != nil {
		return err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	p := s.procs[ref]
	if p == nil {
		return nil
	}
	if p.exit == nil {
		return fmt.Errorf("forget %v: it runs: %w", ref, errdefs.ErrFailedPrecondition)
	}
	delete(s.procs, ref)
	s.broadcast()
	return nil
}

// Status returns the numbers of processes and exits.
func (s *Supervisor) Status(ctx context.Context) (core.SupervisorStatus, error) {
	if err := s.check(ctx, "Status"); err != nil {
		return core.SupervisorStatus{}, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	st := core.SupervisorStatus{Version: "fake", KeeperPid: 2 + s.era, NestPid: 1, Processes: len(s.procs)}
	for _, p := range s.procs {
		if p.exit != nil && !p.acked {
			st.Pending++
		}
	}
	return st, nil
}

// Kills adds to the out-of-memory counters in the process's exit record.
func (s *Supervisor) Kills(ref core.Ref, n uint64) {
	s.lock.Lock()
	defer s.lock.Unlock()
	if p := s.procs[ref]; p != nil {
		p.kills += n
	}
}

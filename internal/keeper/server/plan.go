package server

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// planned is a launch by a plan until its program runs. The child always parks
// before its program, so that nest and process table know it before it can do
// anything that must not be lost.
type planned struct {
	c      *conn
	id     uint64
	p      *proc
	launch *wire.Launch
	child  fork.Child
	names  []string // of the plan's operations, for an error
	err    error
}

// launchPlan begins a launch by a plan. The fork and what the child does until
// it parks are done beside the loop.
func (c *conn) launchPlan(s *Server, id uint64, p *proc, m *wire.Launch, child []int) {
	target := -1
	if m.Target.Container != "" {
		t := s.procs[m.Target]
		if t == nil || t.phase != running || t.pidfd < 0 {
			kernel.CloseAll(uniqueFDs(child))
			p.discard(s)
			c.fail(s, id, wire.NotFound, "launch "+p.key+": its target does not run")
			return
		}
		target = t.pidfd
	}
	files, mem, err := p.planFiles(m, child, target)
	if err != nil {
		kernel.CloseAll(uniqueFDs(child))
		p.discard(s)
		c.fail(s, id, wire.InvalidArgument, "launch "+p.key+": "+err.Error())
		return
	}
	s.begun++
	s.inFlight++
	go func() {
		l := &planned{c: c, id: id, p: p, launch: m}
		l.run(s, mem, files)
		kernel.CloseAll(uniqueFDs([]int{files.Stdin, files.Stdout, files.Stderr, files.Park, files.Console, files.Target}))
		_ = unix.Munmap(mem)
		s.post(func() { l.planStarted(s) })
	}()
}

// planFiles places the plan in memory of its own and makes the pipe that the
// child parks on and, for a terminal, the socket it sends its master by.
func (p *proc) planFiles(m *wire.Launch, child []int, target int) (f fork.Files, mem []byte, err error) {
	f = fork.Files{Stdin: child[0], Stdout: child[1], Stderr: child[2], Park: -1, Console: -1, Target: -1}
	if len(m.Plan) == 0 || len(m.Plan) > plan.MaxSize {
		return f, nil, plan.ErrShort
	}
	if mem, err = unix.Mmap(-1, 0, len(m.Plan), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS); err != nil {
		return f, nil, err
	}
	copy(mem, m.Plan)
	defer func() {
		if err != nil {
			kernel.CloseAll(uniqueFDs([]int{f.Park, f.Console, f.Target}))
			_ = unix.Munmap(mem)
		}
	}()
	if err := plan.Check(mem); err != nil {
		return f, mem, err
	}
	var pair [2]int
	if err := unix.Pipe2(pair[:], unix.O_CLOEXEC); err != nil {
		return f, mem, err
	}
	f.Park, p.park = pair[0], pair[1]
	if m.IO.TTY {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return f, mem, err
		}
		f.Console, p.console = ends[0], ends[1]
	}
	if target >= 0 {
		// A copy: the target may end, and be forgotten, while the child starts.
		if f.Target, err = unix.FcntlInt(uintptr(target), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return f, mem, err
		}
	}
	return f, mem, nil
}

// run forks and waits until the child is parked, has failed or is dead.
func (l *planned) run(s *Server, mem []byte, files fork.Files) {
	placed, err := plan.Place(mem)
	if err != nil {
		l.err = err
		return
	}
	if l.child, l.err = fork.Start(placed, files); l.err != nil {
		return
	}
	l.names = make([]string, len(placed.Ops))
	for i := range l.names {
		l.names[i] = placed.Name(i)
	}
	// Known to the loop at once, so that one that hangs can be given up.
	s.post(func() {
		if l.p.pid, l.p.pidfd = l.child.Pid, l.child.PidFD; l.p.forsaken {
			_ = kernel.PidfdSignal(l.p.pidfd, int(unix.SIGKILL))
		}
	})
	if l.err = l.child.Parked(placed); l.err != nil {
		// Whoever is told of the failure finds nothing left of the child.
		_ = kernel.PidfdSignal(l.child.PidFD, int(unix.SIGKILL))
		ended := []unix.PollFd{{Fd: int32(l.child.PidFD), Events: unix.POLLIN}}
		for {
			if _, err := unix.Poll(ended, patienceMillis); err != unix.EINTR {
				break
			}
		}
	}
}

// patienceMillis bounds the wait for a killed child, which the kernel may hold
// up in a file system that does not answer.
const patienceMillis = 5000

// planStarted goes on where the child is parked, or is not.
func (l *planned) planStarted(s *Server) {
	s.inFlight--
	p := l.p
	defer func() {
		s.waiter.Arm()
		if s.upgrade != nil && s.inFlight == 0 {
			s.doUpgrade()
		}
	}()
	if l.child.Pid == 0 {
		p.discard(s)
		l.c.fail(s, l.id, wire.Internal, "launch "+p.key+": "+l.err.Error())
		return
	}
	p.pid, p.pidfd, p.errs, p.names = l.child.Pid, l.child.PidFD, l.child.Errors(), l.names
	if l.err != nil || p.forsaken {
		if l.err == nil {
			l.err = unix.ECANCELED
		}
		f := p.planFailure(l.err)
		p.abandon(s)
		l.c.refuse(s, l.id, f)
		return
	}
	if p.io.TTY {
		if !p.takeTerminal(s) {
			p.abandon(s)
			l.c.fail(s, l.id, wire.Internal, "launch "+p.key+": no terminal came from the child")
			return
		}
	}
	p.phase = running
	s.byPid[p.pid] = p
	roles, _ := p.descriptors()
	p.save(s, roles...)
	p.watchOutput(s)
	p.watchEnd(s)
	if l.launch.Park {
		l.planAnswer(s)
		return
	}
	(&letGo{c: l.c, id: l.id, p: p, launched: l}).begin(s)
}

// takeTerminal receives the pty's master that the child sent before it parked.
func (p *proc) takeTerminal(s *Server) bool {
	_, fds, err := s.in.Recv(p.console, unix.MSG_DONTWAIT)
	s.drop(&p.console)
	if err != nil || len(fds) == 0 {
		return false
	}
	kernel.CloseAll(fds[1:])
	_ = unix.SetNonblock(fds[0], true)
	p.pty = fds[0]
	p.setSource(p.pty, false)
	return true
}

func (l *planned) planAnswer(s *Server) {
	ans := &wire.Launched{Pid: l.p.pid}
	var fds []int
	if l.launch.Attach && l.c != nil && l.c.fd >= 0 {
		var f *wire.Fail
		if ans.Opened, fds, f = l.c.openStream(s, l.p, l.launch.Want); f != nil {
			say("attach to " + l.p.key + ": " + f.Text)
		}
	}
	l.c.ok(s, l.id, ans, fds...)
}

// planFailure words a failed operation with a class that a caller can act on.
func (p *proc) planFailure(err error) *wire.Fail {
	f := &wire.Fail{Class: wire.Internal, Text: "launch " + p.key + ": " + err.Error()}
	failed, ok := err.(*fork.FailedError) //nolint:errorlint // fork wraps nothing, and errors.As pulls in reflection
	if !ok {
		return f
	}
	switch failed.Errno {
	case syscall.ENOENT, syscall.ENOTDIR:
		f.Class = wire.NotFound
	case syscall.E2BIG, syscall.ENAMETOOLONG:
		f.Class = wire.InvalidArgument
	case syscall.EACCES, syscall.EPERM, syscall.ENOEXEC, syscall.EINVAL, syscall.ELOOP, syscall.EROFS:
		f.Class = wire.FailedPrecondition
	case syscall.ENOMEM, syscall.EAGAIN, syscall.ENOSPC, syscall.EMFILE, syscall.ENFILE:
		f.Class = wire.ResourceExhausted
	}
	return f
}

// letGo waits for a child that was let go to run its program.
type letGo struct {
	c        *conn
	id       uint64
	p        *proc
	launched *planned // nil when it was asked for by itself
}

// release lets a parked process run its program.
func (c *conn) release(s *Server, id uint64, p *proc) {
	switch {
	case p.park < 0:
		c.fail(s, id, wire.FailedPrecondition, "release "+p.key+": it is not parked")
	case p.phase != running:
		c.fail(s, id, wire.NotFound, "release "+p.key+": it has ended")
	default:
		(&letGo{c: c, id: id, p: p}).begin(s)
	}
}

func (g *letGo) begin(s *Server) {
	_, err := unix.Write(g.p.park, []byte{1})
	s.drop(&g.p.park)
	if err != nil {
		g.c.fail(s, g.id, wire.NotFound, "release "+g.p.key+": "+err.Error())
		return
	}
	s.add(g.p.errs, g, unix.EPOLLIN)
}

// ready is told that the child's failure pipe has closed, which means that its
// program runs, or that something came by it.
func (g *letGo) ready(s *Server, _ uint32) {
	p := g.p
	if p.errs < 0 {
		return
	}
	err := fork.Failed(p.errs, func(i int) string {
		if i < len(p.names) {
			return p.names[i]
		}
		return "operation " + kernel.Itoa(i)
	})
	s.drop(&p.errs)
	p.names = nil
	p.save(s)
	switch {
	case err != nil && g.launched != nil:
		f := p.planFailure(err)
		p.phase, p.forsaken = starting, true
		delete(s.byPid, p.pid)
		p.abandon(s)
		g.c.refuse(s, g.id, f)
	case err != nil:
		f := p.planFailure(err)
		f.Text = "release " + f.Text[len("launch "):]
		g.c.refuse(s, g.id, f)
	case g.launched != nil:
		g.launched.planAnswer(s)
	default:
		g.c.ok(s, g.id, nil)
	}
}

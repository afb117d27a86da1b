package server

import (
	"os"
	"slices"
	"sync/atomic"
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
	mem    *planMem
	placed plan.Placed
	files  fork.Files
	child  fork.Child
	second bool   // its child has made another one to go on
	going  bool   // it was let go before it came to where it parks
	passed bool   // it has come there, and went on
	at     string // the operation at which it was given up
	err    error
}

// launchPlan begins a launch by a plan. The loop itself forks where that changes
// nothing of its thread, and never waits for a child.
func (c *conn) launchPlan(s *Server, id uint64, p *proc, l *planned, child []int) {
	l.c, l.id, l.p = c, id, p
	target, err := s.target(l.launch.Target)
	if err != nil {
		l.mem.free()
		kernel.CloseAll(uniqueFDs(child))
		p.discard(s)
		c.fail(s, id, wire.NotFound, "launch "+p.key+": "+err.Error())
		return
	}
	files, err := p.planFiles(l.launch, child, target)
	if err != nil {
		l.mem.free()
		kernel.CloseAll(append(uniqueFDs(child), uniqueFDs([]int{target})...))
		p.discard(s)
		c.fail(s, id, wire.Internal, "launch "+p.key+": "+err.Error())
		return
	}
	files.Progress = s.progress.take()
	s.begun++
	s.inFlight++
	s.plans[l] = struct{}{}
	l.files = files
	l.placed = plan.PlaceChecked(l.mem.mem)
	// A plan that does not go into its pid namespace by itself is put there.
	put := !l.placed.Forks() && (target >= 0 || l.placed.PidNS() != "")
	switch {
	case len(l.placed.Users()) == 0 && (!put || target >= 0):
		// A fork is shorter than handing it to another thread and back.
		l.fork(s, put)
		if l.child.Astray {
			// Ours is the one thread that cannot be given up. The nest makes
			// another keeper.
			say("launch " + p.key + ": the loop cannot leave its pid namespace")
			os.Exit(1)
		}
		l.forked(s)
	default: // it waits for others
		go func() {
			l.fork(s, put)
			s.post(func() { l.forked(s) })
		}()
	}
}

// fork makes the child: by the launcher, or where that cannot by a fork of our
// own.
func (l *planned) fork(s *Server, put bool) {
	defer l.closeFiles()
	if launcher := s.launcher.Load(); launcher != nil && !put && l.mem.blob >= 0 && l.files.Progress != nil {
		if l.child, l.err = launcher.Start(l.placed, l.mem.blob, l.files); l.err != fork.ErrNoLauncher { //nolint:errorlint // returned as it is
			return
		}
		s.post(func() { s.newLauncher(launcher) })
	}
	l.child, l.err = fork.Start(l.placed, l.files)
}

// newLauncher makes a launcher in place of one that has ended.
func (s *Server) newLauncher(old *fork.Launcher) {
	if s.launcher.Load() != old {
		return
	}
	if old != nil {
		say("the launcher has ended; another one is made")
		old.Close()
	}
	l, err := fork.NewLauncher(s.progress.words)
	if err != nil {
		say("launcher: " + err.Error())
	}
	s.launcher.Store(l)
	s.waiter.Arm()
}

func (l *planned) closeFiles() {
	f := l.files
	kernel.CloseAll(uniqueFDs([]int{f.Stdin, f.Stdout, f.Stderr, f.Park, f.Console, f.Target}))
}

// forked has the loop wait until the child is parked, has failed or is dead.
func (l *planned) forked(s *Server) {
	if l.err != nil {
		l.planStarted(s)
		return
	}
	// Known at once, so that one that hangs can be given up.
	if l.p.pid, l.p.pidfd = l.child.Pid, l.child.PidFD; l.p.forsaken {
		l.forsake()
	}
	if !l.placed.Forks() {
		l.goAhead(s)
	}
	s.add(l.child.Errors(), l, unix.EPOLLIN)
}

// forsake gives the launch up: its child is killed as soon as it is known.
func (l *planned) forsake() {
	l.p.forsaken = true
	if l.p.pidfd < 0 {
		return
	}
	_ = kernel.PidfdSignal(l.p.pidfd, int(unix.SIGKILL))
	// The child may have made the second one without having told. That one has the
	// failure pipe open and waits for us: without this, we would wait for each other.
	l.child.Release()
}

// goAhead spares the child its wait where it parks: process table and nest know
// it before it is there. The nest gets neither end of its pipes: should we die
// before the byte is written, it gives up.
func (l *planned) goAhead(s *Server) {
	p := l.p
	if l.launch.Park || p.io.TTY {
		return
	}
	park := p.park
	p.park = -1
	s.byPid[p.pid] = p
	p.phase = running // for our successor; to us it runs when its program does
	roles, _ := p.descriptors()
	p.save(s, roles...)
	p.phase = starting
	l.going = true
	_, _ = unix.Write(park, []byte{1}) // one that is dead already tells so by its pipe
	_ = unix.Close(park)
}

// ready is told that the child has said something by its failure pipe, or has
// closed it by running its program or ending.
func (l *planned) ready(s *Server, _ uint32) {
	told := fork.Failed(l.child.Errors(), l.placed.Name)
	if fork.IsForked(told) {
		l.second = true
		if told = l.child.Follow(told, func(pid, pidfd int) { l.p.follow(s, pid, pidfd) }); told == nil {
			l.goAhead(s)
			return
		}
	}
	f, failed := told.(*fork.FailedError) //nolint:errorlint // made right here
	switch parked := failed && f.Step == plan.StepParked; {
	case parked && l.going && !l.passed:
		l.passed = true
		return
	case parked && !l.going, told == nil && l.passed:
		l.err = nil
	case told == nil:
		l.err = fork.ErrDied
	default:
		l.err = told
	}
	s.remove(l.child.Errors())
	if l.err == nil {
		l.planStarted(s)
		return
	}
	l.at = stepName(l.placed, l.files.Progress)
	go func() {
		endOf(l.child.PidFD)
		s.post(func() { l.planStarted(s) })
	}()
}

// planFiles makes the pipe that the child parks on and, for a terminal, the
// socket it sends its master by.
func (p *proc) planFiles(m *wire.Launch, child []int, target int) (f fork.Files, err error) {
	f = fork.Files{Stdin: child[0], Stdout: child[1], Stderr: child[2], Park: -1, Console: -1, Target: target}
	var pair [2]int
	if err := unix.Pipe2(pair[:], unix.O_CLOEXEC); err != nil {
		return f, err
	}
	f.Park, p.park = pair[0], pair[1]
	if m.IO.TTY {
		ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			_ = unix.Close(f.Park)
			return f, err
		}
		f.Console, p.console = ends[0], ends[1]
	}
	return f, nil
}

// follow makes another child the process: the one that the first has made.
func (p *proc) follow(s *Server, pid, pidfd int) {
	// It has nothing left to do.
	_ = kernel.PidfdSignal(p.pidfd, int(unix.SIGKILL))
	s.drop(&p.pidfd)
	s.spent = append(s.spent, p.pid)
	if s.byPid[p.pid] == p {
		delete(s.byPid, p.pid)
		s.byPid[pid] = p
	}
	if p.pid, p.pidfd = pid, pidfd; p.forsaken {
		_ = kernel.PidfdSignal(p.pidfd, int(unix.SIGKILL))
	}
}

// reapSpent takes those away that have made others to go on, as far as they have
// ended.
func (s *Server) reapSpent() {
	s.spent = slices.DeleteFunc(s.spent, kernel.Reap)
}

// keepNames keeps the names of the operations that are still to come, for an
// error; the plan itself goes.
func (l *planned) keepNames() {
	first := 0
	if l.files.Progress != nil {
		first = int(atomic.LoadUint32(l.files.Progress))
	}
	if first >= len(l.placed.Ops) {
		return
	}
	l.p.namesFrom, l.p.names = first, make([]string, len(l.placed.Ops)-first)
	for i := range l.p.names {
		l.p.names[i] = l.placed.Name(first + i)
	}
}

// endOf kills a child and waits for its end: whoever is told of a failure finds
// nothing left of it.
func endOf(pidfd int) {
	_ = kernel.PidfdSignal(pidfd, int(unix.SIGKILL))
	ended := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(ended, patienceMillis); err != unix.EINTR {
			return
		}
	}
}

// patienceMillis bounds the wait for a killed child, which the kernel may hold
// up in a file system that does not answer.
const patienceMillis = 5000

// planStarted goes on where the child is parked, or is not.
func (l *planned) planStarted(s *Server) {
	s.inFlight--
	delete(s.plans, l)
	p := l.p
	defer func() {
		s.reapSpent()
		if p.second == nil { // else the words are still its
			s.progress.give(l.files.Progress)
			l.child.Release()
		}
		l.mem.free()
		l.mem, l.placed = nil, plan.Placed{}
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
	p.pid, p.pidfd, p.errs = l.child.Pid, l.child.PidFD, l.child.Errors()
	if l.err != nil || p.forsaken {
		f := &wire.Fail{Class: wire.Aborted, Text: "launch " + p.key + ": given up at " + l.at}
		if !p.forsaken { // else there may be no error: it was given up just after it had parked
			f = p.planFailure(l.err)
		}
		p.abandon(s)
		l.c.refuse(s, l.id, f)
		return
	}
	if l.going {
		s.drop(&p.errs)
		p.phase = running
		p.watchOutput(s)
		p.watchEnd(s)
		l.planAnswer(s)
		return
	}
	if p.io.TTY {
		if !p.takeTerminal(s) {
			p.abandon(s)
			l.c.fail(s, l.id, wire.Internal, "launch "+p.key+": no terminal came from the child")
			return
		}
	}
	l.keepNames()
	if l.placed.Forks() && !l.second { // it waits for hooks before it makes the other one
		p.second, p.words = &l.child, l.files.Progress
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
	(&letGo{askers: []asker{{l.c, l.id}}, p: p, kind: wire.KindRelease, launched: l}).begin(s)
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

// planFailure words a failed operation with a class that a caller can act on, and
// with the errno when it was to execute the program.
func (p *proc) planFailure(err error) *wire.Fail {
	f := planFail("launch "+p.key, err)
	if failed, ok := err.(*fork.FailedError); ok && failed.Exec { //nolint:errorlint // as in planFail
		f.Status = int(failed.Errno)
	}
	return f
}

func planFail(op string, err error) *wire.Fail {
	f := &wire.Fail{Class: wire.Internal, Text: op + ": " + err.Error()}
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

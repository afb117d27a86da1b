package server

import (
	"errors"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/runtime/native/plan"
)

// planned is a launch by a plan, until the program runs. The child always parks before
// it executes the program, so that the nest and the process table know it before it
// can do anything that must not be lost.
type planned struct {
	c             *conn
	id            uint64
	p             *proc
	launch        *wire.Launch
	mem           *planMem
	placed        plan.Placed
	files         fork.Files
	child         fork.Child
	second        bool   // the first child has made the second one
	releasedEarly bool   // it was released before it had parked
	wasParked     bool   // it has parked since, and went on
	stoppedAt     string // the operation of its cancellation
	err           error
}

// launchPlan begins a launch by a plan. The loop's thread forks itself if that does
// not change the thread's own namespaces, and it never waits for a child.
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
	files.Given = l.mem.given
	files.Progress = s.progress.take()
	s.begun++
	s.inFlight++
	s.plans[l] = struct{}{}
	l.files = files
	l.placed = plan.PlaceChecked(l.mem.mem)
	// The fork has to enter the pid namespace for a plan that does not do so itself.
	put := !l.placed.Forks() && (target >= 0 || l.placed.PidNS() != "")
	switch {
	case len(l.placed.Users()) == 0 && (!put || target >= 0):
		// Forking here is quicker than handing the fork to another thread.
		l.fork(s, put)
		if l.child.Astray {
			// The loop's thread cannot be discarded as another one could. Exit, and
			// let the nest start a new keeper.
			logLine("launch " + p.key + ": cannot return to the keeper's own pid namespace; exiting, the nest starts a new keeper")
			os.Exit(1)
		}
		l.forked(s)
	default: // setting up a user namespace waits for other processes
		go func() {
			l.fork(s, put)
			s.post(func() { l.forked(s) })
		}()
	}
}

// fork makes the child, by the launcher if that can do it, and else by a fork of this
// process.
func (l *planned) fork(s *Server, put bool) {
	defer l.closeFiles()
	if launcher := s.launcher.Load(); launcher != nil && !put && l.mem.file >= 0 && l.files.Progress != nil {
		l.child, l.err = launcher.Start(l.placed, l.mem.file, l.files)
		switch {
		case errors.Is(l.err, fork.ErrNoLauncher):
			s.post(func() { s.newLauncher(launcher) })
		case errors.Is(l.err, fork.ErrShort):
		default:
			return
		}
	}
	l.child, l.err = fork.Start(l.placed, l.files)
}

// newLauncher starts a launcher in place of old, which has ended. If that fails, it is tried again
// later, after a pause that doubles.
func (s *Server) newLauncher(old *fork.Launcher) {
	if s.launcher.Load() != old {
		return
	}
	if old != nil {
		logLine("the launcher has ended; starting another one")
		old.Close()
	}
	l, err := fork.NewLauncher(s.progress.words)
	if err != nil {
		if s.launcherPause = min(max(2*s.launcherPause, launcherPause), launcherPauseMax); s.launcherPause == launcherPause {
			logLine("start the launcher: " + err.Error() + "; the keeper forks by itself until that works")
		}
		s.delays.after(s.launcherPause, func() { s.newLauncher(nil) })
	} else {
		s.launcherPause = 0
	}
	s.launcher.Store(l)
	s.waiter.Arm()
}

// The pauses between attempts to start the launcher.
const (
	launcherPause    = time.Second
	launcherPauseMax = time.Minute
)

func (l *planned) closeFiles() {
	f := l.files
	l.mem.closeGiven()
	kernel.CloseAll(uniqueFDs([]int{f.Stdin, f.Stdout, f.Stderr, f.Park, f.Console, f.Target}))
}

// forked has the loop wait until the child has parked, has failed, or is dead.
func (l *planned) forked(s *Server) {
	if l.err != nil {
		l.planStarted(s)
		return
	}
	// Record the pid at once, so that a child that hangs can be killed.
	if l.p.pid, l.p.pidfd = l.child.Pid, l.child.PidFD; l.p.givenUp {
		l.giveUp()
	}
	if !l.placed.Forks() {
		l.releaseEarly(s)
	}
	s.add(l.child.Errors(), l, unix.EPOLLIN)
}

// giveUp cancels the launch. It kills the child as soon as it has its pid.
func (l *planned) giveUp() {
	l.p.givenUp = true
	if l.p.pidfd < 0 {
		return
	}
	_ = kernel.PidfdSignal(l.p.pidfd, int(unix.SIGKILL))
	// The child may have made the second one without having reported it. The second
	// child holds the failure pipe open and waits for the keeper: without this, each
	// would wait for the other.
	l.child.Release()
}

// releaseEarly releases the child before it has parked, which saves it the wait. The
// process table and the nest know the child by then. The nest does not get the pipes:
// if the keeper dies before it has written the byte, the child sees the pipe close and
// gives up.
func (l *planned) releaseEarly(s *Server) {
	p := l.p
	if l.launch.Park || p.io.TTY {
		return
	}
	park := p.park
	p.park = -1
	s.byPid[p.pid] = p
	p.early = true // this keeper sets running when the program runs
	roles, _ := p.descriptors()
	p.save(s, roles...)
	l.releasedEarly = true
	_, _ = unix.Write(park, []byte{1}) // the failure pipe reports a child that is already dead
	_ = unix.Close(park)
}

// ready reads the child's failure pipe: the child reports over it, and it closes when
// the child executes its program or ends.
func (l *planned) ready(s *Server, _ uint32) {
	failure := fork.Failed(l.child.Errors(), l.placed.Name)
	if fork.IsForked(failure) {
		l.second = true
		if failure = l.child.Follow(failure, func(pid, pidfd int) { l.p.follow(s, pid, pidfd) }); failure == nil {
			l.releaseEarly(s)
			return
		}
	}
	f, failed := failure.(*fork.FailedError) //nolint:errorlint // made right here
	switch parked := failed && f.Step == plan.StepParked; {
	case parked && l.releasedEarly && !l.wasParked:
		l.wasParked = true
		return
	case parked && !l.releasedEarly, failure == nil && l.wasParked:
		l.err = nil
	case failure == nil:
		l.err = fork.ErrDied
	default:
		l.err = failure
	}
	s.remove(l.child.Errors())
	if l.err == nil {
		l.planStarted(s)
		return
	}
	l.stoppedAt = stepName(l.placed, l.files.Progress)
	go func() {
		killAndWait(l.child.PidFD)
		s.post(func() { l.planStarted(s) })
	}()
}

// planFiles makes the pipe that the parked child reads and, for a terminal, the socket for the
// pty's master.
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

// follow puts the second child, which the first one has made, in the place of the
// process.
func (p *proc) follow(s *Server, pid, pidfd int) {
	// The first child has nothing left to do.
	_ = kernel.PidfdSignal(p.pidfd, int(unix.SIGKILL))
	s.drop(&p.pidfd)
	s.firstChildren = append(s.firstChildren, p.pid)
	if s.byPid[p.pid] == p {
		delete(s.byPid, p.pid)
		s.byPid[pid] = p
	}
	if p.pid, p.pidfd = pid, pidfd; p.givenUp {
		_ = kernel.PidfdSignal(p.pidfd, int(unix.SIGKILL))
	}
}

// reapFirstChildren reaps the first children, those that have made a second one, as far as
// they have ended.
func (s *Server) reapFirstChildren() {
	s.firstChildren = slices.DeleteFunc(s.firstChildren, kernel.Reap)
}

// keepNames keeps the names of the operations that are still to run, for error texts.
// The plan itself is freed.
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

// killAndWait kills a child and waits until it has ended, so that nothing of it is left when
// the failure is reported.
func killAndWait(pidfd int) {
	_ = kernel.PidfdSignal(pidfd, int(unix.SIGKILL))
	ended := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	for {
		if _, err := unix.Poll(ended, killWaitMillis); err != unix.EINTR {
			return
		}
	}
}

// killWaitMillis bounds the wait for a killed child: a file system that does not
// answer can hold it in the kernel.
const killWaitMillis = 5000

// planStarted completes a launch when its child has parked, or reports why it has not.
func (l *planned) planStarted(s *Server) {
	s.inFlight--
	delete(s.plans, l)
	p := l.p
	defer func() {
		s.reapFirstChildren()
		if p.second == nil { // otherwise the second child still writes to them
			s.progress.release(l.files.Progress)
			l.child.Release()
		}
		l.mem.free()
		l.mem, l.placed = nil, plan.Placed{}
		s.waiter.Arm()
		s.upgradeIfIdle()
	}()
	if l.child.Pid == 0 {
		p.discard(s)
		l.c.fail(s, l.id, wire.Internal, "launch "+p.key+": "+l.err.Error())
		return
	}
	p.pid, p.pidfd, p.errs = l.child.Pid, l.child.PidFD, l.child.Errors()
	if l.err != nil || p.givenUp {
		f := &wire.Fail{Class: wire.Aborted, Text: "launch " + p.key + ": given up at " + l.stoppedAt}
		if !p.givenUp { // otherwise err may be nil: a launch can be cancelled right after it has parked
			f = p.planFailure(l.err)
		}
		p.abandon(s)
		l.c.refuse(s, l.id, f)
		return
	}
	if l.releasedEarly {
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
			l.c.fail(s, l.id, wire.Internal, "launch "+p.key+": the child sent no terminal")
			return
		}
	}
	l.keepNames()
	if l.placed.Forks() && !l.second { // it parks for its hooks before it makes the second child
		p.second, p.progress = &l.child, l.files.Progress
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
	(&pendingRelease{requesters: []requester{{l.c, l.id}}, p: p, kind: wire.KindRelease, launched: l}).begin(s)
}

// takeTerminal receives the pty's master, which the child sent before it parked.
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
			logLine("attach to " + l.p.key + ": " + f.Text)
		}
	}
	l.c.ok(s, l.id, ans, fds...)
}

// planFailure turns a failed operation into an error with a class that the caller can
// act on, and with the errno if the operation was to execute the program.
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

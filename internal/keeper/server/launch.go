package server

import (
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/stdio"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// launch begins a launch; the answer is sent when the launch is complete. It takes
// ownership of mem, the launch's plan.
func (c *conn) launch(s *Server, id uint64, m *wire.Launch, mem *planMem) {
	if s.upgrade != nil {
		s.parked = append(s.parked, parkedRequest{c, func() { c.launch(s, id, m, mem) }})
		return
	}
	if f := s.checkLaunch(m); f != nil {
		mem.free()
		c.refuse(s, id, f)
		return
	}
	p := s.newProc(m.Ref, wire.Key(m.Ref), m.IO)
	s.serial++
	p.serial, p.levels, p.peak, p.pidFile = s.serial, m.Levels, m.Peak, m.PidFile
	p.base = readCounters(m.Levels)
	child, err := p.makeIO(s, m)
	if err != nil {
		mem.free()
		kernel.CloseAll(child)
		p.discard(s)
		c.fail(s, id, wire.Internal, "launch "+p.key+": streams: "+err.Error())
		return
	}
	p.register(s)
	if m.Kind == wire.LaunchPlan {
		c.launchPlan(s, id, p, &planned{launch: m, mem: mem}, child)
		return
	}
	// The nest holds the streams before the command runs: from here on, output
	// survives the keeper's death.
	roles, _ := p.descriptors()
	p.save(s, roles...)
	cmd := &command{c: c, id: id, p: p, launch: m}
	if m.IO.TTY {
		cmd.stderr = newCapture(maxStderr, true)
		kernel.CloseAll(child[2:])
		child[2] = cmd.stderr.write
	}
	cmd.child = child
	cmd.begin(s, &m.Command)
}

func (s *Server) checkLaunch(m *wire.Launch) *wire.Fail {
	bad := func(text string) *wire.Fail {
		return &wire.Fail{Class: wire.InvalidArgument, Text: "launch: " + text}
	}
	switch {
	case m.Kind != wire.LaunchCommand && m.Kind != wire.LaunchPlan:
		return bad("unknown kind")
	case m.Ref.Container == "":
		return bad("no container is given")
	case m.Kind == wire.LaunchPlan:
	case len(m.Command.Args) == 0 || m.Command.Args[0] == "" || m.Command.Args[0][0] != '/':
		return bad("the command's path is not absolute")
	case m.PidFile == "" || m.PidFile[0] != '/':
		return bad("the pid file's path is not absolute")
	case m.IO.TTY && (m.ConsoleSocket == "" || m.ConsoleSocket[0] != '/'):
		return bad("a terminal needs a console socket")
	}
	switch {
	case len(m.IO.Sinks) > stdio.MaxSinks:
		return bad("more than " + kernel.Itoa(stdio.MaxSinks) + " sinks")
	case m.IO.Hold && len(m.IO.Sinks) > 0:
		return bad("output is held or goes to sinks, not both")
	case m.Want.Exclusive && !m.IO.Hold:
		return bad("an exclusive stream needs held output")
	}
	for _, k := range m.IO.Sinks {
		if k.Path == "" || k.Path[0] != '/' {
			return bad("sink path " + k.Path + " is not absolute")
		}
	}
	if s.procs[m.Ref] != nil {
		return &wire.Fail{Class: wire.AlreadyExists, Text: "launch " + wire.Key(m.Ref) + ": already launched, and not forgotten yet"}
	}
	return nil
}

// makeIO makes a process's standard streams and opens its sinks. child are the three
// descriptors for the command or the plan's child.
func (p *proc) makeIO(s *Server, m *wire.Launch) (child []int, err error) {
	child = []int{-1, -1, -1}
	container := s.dir + "/io/" + wire.Escape(m.Ref.Container)
	if err := unix.Mkdir(container, 0o700); err != nil && err != unix.EEXIST {
		return child, err
	}
	dir := p.ioDir(s)
	if err := unix.Mkdir(dir, 0o700); err != nil && err != unix.EEXIST {
		return child, err
	}
	for _, k := range p.sinks {
		_ = k.Open() // a sink that fails never stops the container; the next write tries again
	}
	if m.Kind == wire.LaunchPlan && m.IO.TTY {
		return child, nil // the child makes its own streams
	}
	if m.PidFile != "" {
		_ = unix.Unlink(m.PidFile)
	}
	if m.IO.TTY {
		if p.console, err = listenConsole(m.ConsoleSocket); err != nil {
			return child, err
		}
		return nulls(child)
	}
	if m.IO.Stdin == wire.StdinClosed {
		if child[0], err = unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			return child, err
		}
	} else {
		path := dir + "/stdin"
		if child[0], err = fifo(path, unix.O_RDONLY|unix.O_NONBLOCK, m); err != nil {
			return child, err
		}
		if p.stdin, err = unix.Open(path, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err != nil {
			return child, err
		}
		if err := unix.SetNonblock(child[0], false); err != nil {
			return child, err
		}
	}
	for i, name := range []string{"/stdout", "/stderr"} {
		// Opened for reading and writing, the FIFO gives its writer no SIGPIPE when
		// keeper or nest die, and the open does not wait for a reader.
		if child[1+i], err = fifo(dir+name, unix.O_RDWR, m); err != nil {
			return child, err
		}
		fd, err := unix.Open(dir+name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err != nil {
			return child, err
		}
		p.setSource(fd, i == 1)
	}
	return child, nil
}

func nulls(child []int) ([]int, error) {
	for i := range child {
		fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
		if err != nil {
			return child, err
		}
		child[i] = fd
	}
	return child, nil
}

// fifo makes and opens a FIFO that belongs to the process's user, so that an
// unprivileged program can open /dev/stdout again.
func fifo(path string, mode int, m *wire.Launch) (int, error) {
	err := unix.Mkfifo(path, 0o600)
	if err == unix.EEXIST {
		_ = unix.Unlink(path)
		err = unix.Mkfifo(path, 0o600)
	}
	if err != nil {
		return -1, err
	}
	if m.UID != 0 || m.GID != 0 {
		if err := unix.Lchown(path, int(m.UID), int(m.GID)); err != nil {
			return -1, err
		}
	}
	return unix.Open(path, mode|unix.O_CLOEXEC, 0)
}

func listenConsole(path string) (int, error) {
	_ = unix.Unlink(path)
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, err
	}
	if err = unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err == nil {
		err = unix.Listen(fd, 1)
	}
	if err != nil {
		_ = unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// launched completes a launch after the end of its command.
func (cmd *command) launched(s *Server, status int) {
	p := cmd.p
	p.cmdPid = 0
	// The files that the command has left are not needed after this. Those of an exec
	// would otherwise stay as long as its container.
	defer func() {
		_ = unix.Unlink(p.pidFile)
		if cmd.launch != nil {
			_ = unix.Unlink(cmd.launch.ConsoleSocket)
		}
	}()
	if status != 0 || cmd.cancelled {
		cmd.launchFailed(s, status)
		return
	}
	if err := p.readResults(s); err != "" {
		p.givenUp = true
		p.abandon(s)
		cmd.c.fail(s, cmd.id, wire.Internal, "launch "+p.key+": "+err)
		return
	}
	if p.givenUp { // while it was being launched
		p.abandon(s)
		cmd.c.fail(s, cmd.id, wire.Aborted, "launch "+p.key+": forgotten while it was under way")
		return
	}
	p.phase = running
	s.byPid[p.pid] = p
	p.save(s, wire.RolePidfd, wire.RolePty)
	ans := &wire.Launched{Pid: p.pid}
	var fds []int
	if cmd.launch != nil && cmd.launch.Attach && cmd.c != nil && cmd.c.fd >= 0 {
		var f *wire.Fail
		if ans.Opened, fds, f = cmd.c.openStream(s, p, cmd.launch.Want); f != nil {
			logLine("attach to " + p.key + ": " + f.Text)
		}
	}
	cmd.c.ok(s, cmd.id, ans, fds...)
	p.watchOutput(s)
	p.watchEnd(s)
}

// readResults reads the command's results: the process's pid, which must be our child or the nest's, and
// the pty.
func (p *proc) readResults(s *Server) string {
	pid := readPid(p.pidFile)
	if pid <= 1 {
		return "pid file " + p.pidFile + ": no pid in it"
	}
	if s.byPid[pid] != nil || !s.isOurs(pid) {
		return "pid file " + p.pidFile + ": process " + kernel.Itoa(pid) + " is not a child of the keeper or its nest"
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return "pidfd of " + kernel.Itoa(pid) + ": " + err.Error()
	}
	p.pid, p.pidfd = pid, fd
	if !p.io.TTY {
		return ""
	}
	p.pty = s.receivePty(p.console)
	s.drop(&p.console)
	if p.pty < 0 {
		return "the command sent no terminal over the console socket"
	}
	p.setSource(p.pty, false)
	setSize(p.pty, p.io.Cols, p.io.Rows)
	return ""
}

func readPid(path string) int {
	b, err := kernel.ReadFile(path, 32)
	if err != nil {
		return 0
	}
	n := 0
	for _, c := range b {
		if c < '0' || c > '9' || n > 1<<24 {
			break
		}
		n = n*10 + int(c-'0')
	}
	return n
}

// receivePty receives the pty that the command sent. The command connected and sent
// before it ended, so all of it is here by now.
func (s *Server) receivePty(listen int) int {
	fd, _, err := unix.Accept4(listen, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		return -1
	}
	defer func() { _ = unix.Close(fd) }()
	_, fds, err := s.in.Recv(fd, unix.MSG_DONTWAIT)
	if err != nil || len(fds) == 0 {
		return -1
	}
	kernel.CloseAll(fds[1:])
	_ = unix.SetNonblock(fds[0], true)
	return fds[0]
}

// launchFailed answers with the command's error output, and undoes the launch.
func (cmd *command) launchFailed(s *Server, status int) {
	p := cmd.p
	f := &wire.Fail{Class: wire.CommandFailed, Text: "launch " + p.key, Status: status}
	switch {
	case cmd.cancelled:
		f.Class, f.Text = wire.Aborted, "launch "+p.key+": cancelled"
	case cmd.failure != "":
		f.Class, f.Text = wire.Internal, "launch "+p.key+": "+cmd.failure
	}
	if cmd.stderr != nil {
		f.Stderr = string(cmd.stderr.tail())
	} else if p.err != nil {
		// The source is not watched yet, so the command's whole error output is still
		// in the pipe.
		c := newTail(maxStderr)
		c.readFrom(p.err.FD)
		f.Stderr = string(c.tail())
	}
	p.givenUp = true
	if pid := readPid(p.pidFile); pid > 1 && s.byPid[pid] == nil && s.isOurs(pid) {
		if fd, err := unix.PidfdOpen(pid, 0); err == nil {
			p.pid, p.pidfd = pid, fd
		}
	}
	p.abandon(s)
	cmd.c.refuse(s, cmd.id, f)
}

// abandon kills the remnants of a failed launch, and drops it. The stray handler reaps it.
func (p *proc) abandon(s *Server) {
	if p.pidfd >= 0 {
		_ = kernel.PidfdSignal(p.pidfd, int(unix.SIGKILL))
		// A program that was started may have children. The kernel does not reuse its group's
		// number before we reap it; a child in the keeper's own group has not started a program.
		if group, err := unix.Getpgid(p.pid); err == nil && group > 1 && group != unix.Getpgrp() {
			_ = unix.Kill(-group, unix.SIGKILL)
		}
	}
	p.discard(s)
	s.waiter.Arm()
}

// discard closes and removes everything of a process.
func (p *proc) discard(s *Server) {
	for _, st := range p.streams {
		st.endStream(s, false)
	}
	if g := p.pending; g != nil {
		p.pending = nil
		g.refuse(s, &wire.Fail{Class: wire.Ended, Text: "release " + p.key + ": it has ended"})
	}
	s.drop(&p.stdin)
	s.drop(&p.console)
	s.drop(&p.park)
	s.drop(&p.errs)
	for _, src := range []*source{p.out, p.err} {
		if src != nil && src.FD != p.pty {
			s.drop(&src.FD)
		}
	}
	if p.out != nil && p.out.FD == p.pty {
		p.out.FD = -1
	}
	p.dropSecond(s)
	s.drop(&p.pty)
	s.drop(&p.pidfd)
	for _, k := range p.sinks {
		k.Close()
	}
	s.watch.forget(p)
	if s.procs[p.ref] == p {
		delete(s.procs, p.ref)
		delete(s.bySerial, p.serial)
		delete(s.byKey, p.key)
		s.nest.drop(s, p.key)
		p.stored = false
		s.changed(p.key)
	}
	if s.byPid[p.pid] == p {
		delete(s.byPid, p.pid)
	}
	s.lost += p.lost
	s.journal.ForgetLost(p.serial)
	dir := p.ioDir(s)
	for _, name := range []string{"/stdin", "/stdout", "/stderr"} {
		_ = unix.Unlink(dir + name)
	}
	_ = unix.Rmdir(dir)
	_ = unix.Rmdir(s.dir + "/io/" + wire.Escape(p.ref.Container)) // goes with its last process
}

// signal sends a signal by the pidfd, so that it cannot hit another process.
func (c *conn) signal(s *Server, id uint64, m *wire.SignalRequest) {
	p := s.procs[m.Ref]
	if p == nil || p.phase != running {
		c.fail(s, id, wire.NotFound, "signal "+wire.Key(m.Ref)+": the process is not running")
		return
	}
	switch err := kernel.PidfdSignal(p.pidfd, m.Signal); kernel.Errno(err) {
	case 0:
		c.ok(s, id, nil)
	case unix.ESRCH:
		c.fail(s, id, wire.NotFound, "signal "+p.key+": it has ended")
	case unix.EINVAL:
		c.fail(s, id, wire.InvalidArgument, "signal "+p.key+": no such signal")
	default:
		c.fail(s, id, wire.Internal, "signal "+p.key+": "+err.Error())
	}
}

func setSize(fd int, cols, rows uint16) {
	if cols == 0 && rows == 0 {
		return
	}
	_ = unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: cols, Row: rows})
}

func (c *conn) resize(s *Server, id uint64, m *wire.ResizeRequest) {
	p := s.procs[m.Ref]
	switch {
	case p == nil || p.phase == starting:
		c.fail(s, id, wire.NotFound, "resize "+wire.Key(m.Ref)+": no such process")
	case p.pty < 0:
		c.fail(s, id, wire.FailedPrecondition, "resize "+p.key+": it has no terminal")
	default:
		setSize(p.pty, m.Cols, m.Rows)
		c.ok(s, id, nil)
	}
}

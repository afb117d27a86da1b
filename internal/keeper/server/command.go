package server

import (
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
)

const (
	maxStdout = 1 << 20
	maxStderr = 4 << 10
)

// command is a program that the keeper runs, until it has ended. It runs on its own
// account when p is nil; otherwise it is the runtime's command line that launches p.
type command struct {
	c         *conn
	id        uint64
	p         *proc
	launch    *wire.Launch // nil if an earlier keeper began the launch
	child     []int        // its standard descriptors, until it is started
	mem       *planMem     // its plan; nil for a command line
	target    int          // pidfd of a process; the plan joins its namespaces
	path      string       // of its program; "" if the first argument is the path
	planErr   *wire.Fail   // why the plan failed
	seq       uint64       // position in the order of starts
	pid       int
	pidfd     int
	orphan    bool // a child of the nest instead of this process
	askedNest bool
	cancelled bool
	failure   string // why it could not be started
	stdout    *capture
	stderr    *capture
}

// run starts a command that launches no process.
func (c *conn) run(s *Server, id uint64, m *wire.Command) {
	if len(m.Args) == 0 || m.Args[0] == "" || m.Args[0][0] != '/' {
		c.fail(s, id, wire.InvalidArgument, "run: the command's path is not absolute")
		return
	}
	if s.upgrade != nil {
		s.parked = append(s.parked, parkedRequest{c, func() { c.run(s, id, m) }})
		return
	}
	cmd := &command{c: c, id: id, stdout: newCapture(maxStdout, false), stderr: newCapture(maxStderr, true)}
	null, err := unix.Open("/dev/null", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		null = -1
	}
	cmd.child = []int{null, cmd.stdout.write, cmd.stderr.write}
	cmd.begin(s, m)
}

// begin starts a command. It forks in a goroutine, because a fork takes about a millisecond and the
// event loop must continue to move output.
func (cmd *command) begin(s *Server, m *wire.Command) {
	s.begun++
	s.inFlight++
	s.unfinished[cmd] = struct{}{}
	cmd.seq = s.begun
	cmd.pidfd = -1
	files := make([]uintptr, len(cmd.child))
	for i, fd := range cmd.child {
		files[i] = uintptr(fd)
	}
	dir := m.Dir
	if dir == "" {
		dir = "/"
	}
	if cmd.mem != nil {
		go cmd.runPlan(s, s.progress.take())
		return
	}
	path := cmd.path
	if path == "" {
		path = m.Args[0]
	}
	go func() {
		var pid, pidfd int
		start := func() (err error) {
			pid, pidfd, err = kernel.StartIn(dir, path, m.Args, &syscall.ProcAttr{Env: m.Env, Files: files})
			return err
		}
		var err error
		if m.HideUnified {
			err = kernel.WithoutUnified(start)
		} else {
			err = start()
		}
		s.post(func() { cmd.started(s, pid, pidfd, err) })
	}()
}

func (cmd *command) started(s *Server, pid, pidfd int, err error) {
	kernel.CloseAll(uniqueFDs(cmd.child))
	cmd.child = nil
	for _, k := range []*capture{cmd.stdout, cmd.stderr} {
		if k != nil {
			k.write = -1
			s.add(k.read, k, unix.EPOLLIN)
		}
	}
	if err != nil {
		cmd.failure = "start: " + err.Error()
		cmd.done(s, 127)
		return
	}
	cmd.pid, cmd.pidfd = pid, pidfd
	s.commands[pid] = cmd
	if cmd.p != nil {
		cmd.p.cmdPid = pid
		cmd.p.savePids(s, cmd, nil)
	}
	s.add(pidfd, cmd, unix.EPOLLIN)
	s.waiter.Arm()
	if cmd.cancelled {
		cmd.kill()
	}
}

// kill kills a command that is not reaped yet. For the command of a launch it kills the whole
// process group: a process that the command has forked would continue unnoticed.
func (cmd *command) kill() {
	_ = kernel.PidfdSignal(cmd.pidfd, int(unix.SIGKILL))
	if cmd.p != nil {
		_ = unix.Kill(-cmd.pid, unix.SIGKILL)
	}
}

func uniqueFDs(fds []int) []int {
	var out []int
	for i, fd := range fds {
		seen := fd < 0
		for _, x := range fds[:i] {
			seen = seen || x == fd
		}
		if !seen {
			out = append(out, fd)
		}
	}
	return out
}

// adoptCommand watches the command of a launch that an earlier keeper began.
func (p *proc) adoptCommand(s *Server, pidfd int) {
	cmd := &command{p: p, pid: p.cmdPid, pidfd: pidfd, orphan: true}
	s.inFlight++
	if pidfd < 0 {
		// It died before its pidfd was stored with the nest: the launch failed.
		s.inFlight--
		s.post(func() { p.abandon(s) })
		return
	}
	s.commands[cmd.pid] = cmd
	s.add(pidfd, cmd, unix.EPOLLIN)
}

// ready handles the end of the command.
func (cmd *command) ready(s *Server, _ uint32) {
	if cmd.pidfd < 0 {
		return
	}
	if cmd.orphan {
		cmd.orphanReady(s)
		return
	}
	e, err := kernel.Peek(cmd.pid, false)
	if err != nil || e.Pid == 0 {
		return
	}
	cmd.ended(s, e.Wait)
}

// orphanReady handles the end of a command that an earlier keeper began.
func (cmd *command) orphanReady(s *Server) {
	switch {
	case cmd.askedNest || kernel.Revents(cmd.pidfd, unix.POLLIN) == 0:
	case s.nest.fd >= 0:
		cmd.askedNest = true
		s.remove(cmd.pidfd)
		s.nest.send(s, wire.KindNestAsk, &wire.Child{Pid: cmd.pid})
	default:
		w, _, final := strangersEnd(cmd.pid, cmd.pidfd)
		if !final {
			s.change(cmd.pidfd, 0)
			return
		}
		cmd.ended(s, w) // a status that nobody knows counts as 0, as when the nest does not know it: the pid file decides
	}
}

// ended completes a command that has ended and is not reaped yet.
func (cmd *command) ended(s *Server, w unix.WaitStatus) {
	delete(s.commands, cmd.pid)
	s.drop(&cmd.pidfd)
	status := w.ExitStatus()
	if w.Signaled() {
		status = 128 + int(w.Signal())
	}
	for _, k := range []*capture{cmd.stdout, cmd.stderr} {
		if k != nil && k.read >= 0 {
			k.readFrom(k.read)
		}
	}
	cmd.done(s, status)
	s.reap(cmd.pid)
}

func (cmd *command) done(s *Server, status int) {
	s.inFlight--
	delete(s.unfinished, cmd)
	switch {
	case cmd.p != nil:
		cmd.launched(s, status)
	case cmd.planErr != nil && (!cmd.cancelled || cmd.planErr.Class == wire.Aborted):
		cmd.c.refuse(s, cmd.id, cmd.planErr)
	case cmd.cancelled:
		cmd.c.fail(s, cmd.id, wire.Aborted, "run: cancelled")
	case cmd.failure != "":
		cmd.c.fail(s, cmd.id, wire.Internal, "run: "+cmd.failure)
	default:
		cmd.c.ok(s, cmd.id, &wire.Result{Status: status, Stdout: cmd.stdout.tail(), Stderr: string(cmd.stderr.tail())})
	}
	for _, k := range []*capture{cmd.stdout, cmd.stderr} {
		if k != nil {
			s.drop(&k.read)
		}
	}
	s.waiter.Arm()
	s.upgradeIfIdle()
}

// cancel kills the command of another request of the same client, or the child that runs its plan
// and has not parked yet.
func (c *conn) cancel(s *Server, id uint64) {
	for cmd := range s.unfinished {
		if cmd.c == c && cmd.id == id {
			cmd.cancelled = true
			if cmd.pidfd >= 0 { // otherwise started kills it
				cmd.kill()
			}
			return
		}
	}
	for l := range s.plans {
		if l.c == c && l.id == id {
			l.giveUp()
			return
		}
	}
}

// capture collects the first or the last bytes of a command's output.
type capture struct {
	read, write int
	limit       int
	last        bool
	b           []byte
}

func newCapture(limit int, last bool) *capture {
	k := &capture{read: -1, write: -1, limit: limit, last: last}
	var p [2]int
	if unix.Pipe2(p[:], unix.O_CLOEXEC) == nil {
		_ = unix.SetNonblock(p[0], true)
		k.read, k.write = p[0], p[1]
	}
	return k
}

func newTail(limit int) *capture { return &capture{read: -1, write: -1, limit: limit, last: true} }

func (k *capture) ready(s *Server, _ uint32) {
	if k.read >= 0 && !k.readFrom(k.read) {
		s.remove(k.read)
	}
}

// readFrom reads the available bytes, and reports whether more may come.
func (k *capture) readFrom(fd int) bool {
	var buf [8192]byte
	for {
		n, err := unix.Read(fd, buf[:])
		if err == unix.EINTR {
			continue
		}
		if n <= 0 || err != nil {
			return err == unix.EAGAIN
		}
		k.b = append(k.b, buf[:n]...)
		switch {
		case k.last && len(k.b) > 2*k.limit:
			k.b = append(k.b[:0], k.b[len(k.b)-k.limit:]...)
		case !k.last && len(k.b) > k.limit:
			k.b = k.b[:k.limit]
		}
	}
}

func (k *capture) tail() []byte {
	if k.last && len(k.b) > k.limit {
		return k.b[len(k.b)-k.limit:]
	}
	return k.b
}

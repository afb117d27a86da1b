package server

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// watchEnd waits for a process's end by its pidfd.
func (p *proc) watchEnd(s *Server) {
	if p.pidfd >= 0 {
		s.remove(p.pidfd)
		s.add(p.pidfd, p, unix.EPOLLIN)
	} else {
		p.unwitnessed(s)
	}
}

// ready is told that the process has ended.
func (p *proc) ready(s *Server, events uint32) {
	if p.phase != running || p.asking {
		return
	}
	if p.second != nil && p.errs >= 0 && kernel.Available(p.errs) > 0 {
		return // it has made another one to go on, and ended: that is told next
	}
	e, err := kernel.Peek(p.pid, false)
	switch {
	case err == nil && e.Pid != 0:
		p.finish(s, e.Wait, time.Now().UnixNano(), false)
	case err == nil:
		// a thread of it still runs
	case s.nest.fd >= 0:
		p.asking = true
		s.remove(p.pidfd)
		s.nest.send(s, wire.KindNestAsk, &wire.Child{Pid: p.pid}, nil)
	case events&unix.EPOLLHUP == 0 && kernel.Parent(p.pid) != 0:
		// Somebody else's zombie: once it is reaped, the kernel may tell.
		s.change(p.pidfd, 0)
	default:
		p.unwitnessed(s)
	}
}

// exited looks again at a process whose end the nest would have told.
func (p *proc) exited(s *Server) {
	if p.phase == running {
		p.watchEnd(s)
	}
}

// unwitnessed is for a process that ended as nobody's child that we know: the
// kernel may still tell, or it is lost.
func (p *proc) unwitnessed(s *Server) {
	w, ok := unix.WaitStatus(0), false
	if p.pidfd >= 0 {
		w, ok = kernel.PidfdExit(p.pidfd)
	}
	p.finish(s, w, time.Now().UnixNano(), !ok)
}

// finish records an end: output to the sinks, counters while the cgroup is still
// there, the record to the nest and to the disk, and only then the reaping. A
// death of ours in between makes the next keeper do the same again.
func (p *proc) finish(s *Server, w unix.WaitStatus, nanos int64, lost bool) {
	s.litter++
	s.remove(p.pidfd)
	p.drain(s)
	now := readCounters(p.levels)
	e := &wire.Exit{
		Ref: p.ref, Pid: p.pid, Nanos: nanos, Lost: lost, LostOut: p.lost,
		OOMKills: growth(p.base.kills, now.kills), OOMLocal: growth(p.base.local, now.local), Peak: readNumber(p.peak),
	}
	switch {
	case lost:
	case w.Signaled():
		e.Signal = int(w.Signal())
	default:
		e.Code = w.ExitStatus()
	}
	p.exit, p.phase = e, ended
	p.save(s)
	if err := kernel.WriteFile(p.exitFile(s), wire.Record(e), 0o600); err != nil {
		say("exit record of " + p.key + ": " + err.Error())
	}
	s.reap(p.pid)
	delete(s.byPid, p.pid)
	p.pid = 0
	s.drop(&p.stdin)
	s.drop(&p.park)
	for _, st := range p.streams {
		st.endTaps(s)
	}
	if !p.settle(s) {
		p.save(s)
	}
	for _, c := range s.conns {
		if c.exits != 0 {
			c.offer(s, p)
		}
	}
	s.waiter.Arm()
}

// drain takes what the process had written when it ended, and no more than
// that: a child of its may go on for ever.
func (p *proc) drain(s *Server) {
	if p.io.Hold {
		return
	}
	for _, src := range []*source{p.out, p.err} {
		if src == nil || src.FD < 0 {
			continue
		}
		src.AtOnce = true // nobody finishes a line any more
		left := kernel.Available(src.FD)
		if src.TTY {
			left = 1 << 20 // what is on its way through the line discipline is not counted
		}
		for left > 0 {
			n := src.move(s)
			if n == 0 {
				break
			}
			left -= n
		}
	}
}

// settle closes an ended process's outputs that can bring nothing more, and with
// the last one its sinks. It reports whether the nest was told of all that.
func (p *proc) settle(s *Server) bool {
	if p.io.Hold {
		return false
	}
	open := false
	for _, src := range []*source{p.out, p.err} {
		if src == nil || src.FD < 0 {
			continue
		}
		if !src.TTY && kernel.Available(src.FD) == 0 && hungUp(src.FD) {
			s.drop(&src.FD)
		} else if src.TTY && src.move(s) == 0 && kernel.Revents(src.FD, unix.POLLIN)&unix.POLLHUP != 0 {
			src.FD = -1
			s.drop(&p.pty)
		} else {
			open = true
		}
	}
	if open || p.ending {
		return false
	}
	p.ending = true
	p.endSinks(s)
	return true
}

// endSinks ends a process's sinks. Whether a FIFO has a reader shows only when
// the nest, too, has let go of its reading end.
func (p *proc) endSinks(s *Server) {
	waiting := s.pump.End(p.sinks)
	var fresh []wire.Role
	for i := range p.sinks {
		fresh = append(fresh, wire.RoleSink+wire.Role(i))
	}
	p.save(s, fresh...)
	if len(waiting) == 0 {
		return
	}
	s.nest.sync(s, func() {
		if s.procs[p.ref] != p {
			return
		}
		s.watch.waitFor(p, waiting)
		p.save(s)
	})
}

// hungUp reports whether a FIFO has no writer. It holds for descriptors opened
// while there was one, as all of ours were.
func hungUp(fd int) bool { return kernel.Revents(fd, unix.POLLIN)&unix.POLLHUP != 0 }

// offer tells an agent of an end.
func (c *conn) offer(s *Server, p *proc) {
	if !p.acked {
		c.send(s, answer{wire.Header{Kind: wire.KindExitEvent, ID: c.exits}, p.exit, nil})
	}
}

// ack says that an end is on record with the agent. The nest is told before the
// file goes, so that it is not offered again after a death in between.
func (p *proc) ack(s *Server) {
	if p.exit == nil || p.acked {
		return
	}
	p.acked = true
	p.save(s)
	_ = unix.Unlink(p.exitFile(s))
}

// forget drops a process that has ended.
func (p *proc) forget(s *Server) *wire.Fail {
	switch {
	case p == nil:
		return nil
	case p.phase == running:
		return &wire.Fail{Class: wire.FailedPrecondition, Text: "forget " + p.key + ": it runs"}
	case p.phase == starting:
		p.forsaken = true
		if cmd := s.commands[p.cmdPid]; cmd != nil {
			_ = kernel.PidfdSignal(cmd.pidfd, int(unix.SIGKILL))
		}
		for l := range s.plans {
			if l.p == p {
				l.forsake()
			}
		}
		return nil
	}
	p.drain(s)
	if !p.ending {
		s.pump.End(p.sinks)
	}
	_ = unix.Unlink(p.exitFile(s))
	p.discard(s)
	return nil
}

func (p *proc) exitFile(s *Server) string { return s.dir + "/exits/" + wire.RecordFile(p.key) }

// readExits takes over exit records that an earlier keeper wrote and could not
// tell the nest of any more.
func (s *Server) readExits() {
	for _, name := range kernel.ReadDir(s.dir + "/exits") {
		path := s.dir + "/exits/" + name
		b, err := kernel.ReadFile(path, 1<<20)
		var e wire.Exit
		if err != nil || !wire.ParseRecord(b, &e) {
			continue // half of one, never renamed into place
		}
		p := s.procs[e.Ref]
		if p == nil || p.acked {
			_ = unix.Unlink(path)
			continue
		}
		if p.exit == nil {
			p.exit, p.phase = &e, ended
		}
	}
}

// stray is the ended child that nobody claims while launches are under way,
// one of which may claim it yet.
type stray struct {
	pid   int
	until uint64 // commands begun when it was first seen
}

// ready reaps children that nobody knows. Known ones have their own pidfd and
// are left alone here.
func (y *stray) ready(s *Server, _ uint32) {
	kernel.Unpoke(s.waiter.FD)
	s.reapSpent()
	for {
		e, err := kernel.Peek(0, false)
		if err != nil {
			return // no children: the next fork arms again
		}
		if e.Pid == 0 {
			s.waiter.Arm()
			return
		}
		s.endSecond(e.Pid)
		if s.byPid[e.Pid] != nil || s.commands[e.Pid] != nil {
			return // its own handler arms again
		}
		if y.pid != e.Pid {
			y.pid, y.until = e.Pid, s.begun
		}
		if s.oldest() <= y.until {
			return // a command's end arms again
		}
		kernel.Reap(e.Pid)
		s.spent = slices.DeleteFunc(s.spent, func(pid int) bool { return pid == e.Pid })
		y.pid = 0
	}
}

// endSecond ends the second child of a launch whose first child, pid, has ended
// before it could tell of it: nobody will ever let it go on.
func (s *Server) endSecond(pid int) {
	for l := range s.plans {
		if l.p.pid == pid && !l.second && kernel.Available(l.child.Errors()) == 0 {
			l.child.Release()
		}
	}
}

// oldest is the number of the oldest command under way.
func (s *Server) oldest() uint64 {
	if s.inFlight == 0 {
		return s.begun + 1
	}
	first := s.begun + 1
	known := 0
	for _, cmd := range s.commands {
		known++
		first = min(first, cmd.seq)
	}
	if known < s.inFlight {
		return 0 // one is just being forked
	}
	return first
}

// readCounters reads the out-of-memory counters of all levels. What cannot be
// read counts as zero: a cgroup that is made later starts there.
func readCounters(levels []wire.Level) counters {
	var c counters
	for _, l := range levels {
		c.kills = append(c.kills, readKey(l.Path, "oom_kill "))
		c.local = append(c.local, readKey(l.Local, "oom "))
	}
	return c
}

// growth is how much counters have grown; one that shrank belongs to a cgroup
// made anew.
func growth(from, to []uint64) []uint64 {
	out := make([]uint64, len(to))
	for i := range to {
		out[i] = to[i]
		if i < len(from) && from[i] <= to[i] {
			out[i] -= from[i]
		}
	}
	return out
}

// readKey finds the line that begins with key and returns its number.
func readKey(path, key string) uint64 {
	if path == "" {
		return 0
	}
	b, err := kernel.ReadFile(path, 4096)
	if err != nil {
		return 0
	}
	for i := 0; i < len(b); {
		line := b[i:]
		if len(line) > len(key) && string(line[:len(key)]) == key {
			return number(line[len(key):])
		}
		for i < len(b) && b[i] != '\n' {
			i++
		}
		i++
	}
	return 0
}

func readNumber(path string) uint64 {
	if path == "" {
		return 0
	}
	b, err := kernel.ReadFile(path, 64)
	if err != nil {
		return 0
	}
	return number(b)
}

func number(b []byte) uint64 {
	var n uint64
	for _, c := range b {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + uint64(c-'0')
	}
	return n
}

package server

import (
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// watchEnd watches the process's pidfd for its end.
func (p *proc) watchEnd(s *Server) {
	if p.pidfd >= 0 {
		s.remove(p.pidfd)
		s.add(p.pidfd, p, unix.EPOLLIN)
	} else {
		p.finishUnknown(s)
	}
}

// ready handles the end of the process.
func (p *proc) ready(s *Server, _ uint32) {
	if p.phase != running || p.askedNest {
		return
	}
	if p.second != nil && p.errs >= 0 && kernel.Available(p.errs) > 0 {
		return // it has made the second child and ended; the failure pipe reports that next
	}
	e, err := kernel.Peek(p.pid, false)
	switch {
	case err == nil && e.Pid != 0:
		p.finish(s, e.Wait, time.Now().UnixNano(), false)
	case err == nil:
		// a thread of it still runs
	case s.nest.fd >= 0 && !p.stranger:
		p.askedNest = true
		s.remove(p.pidfd)
		s.nest.send(s, wire.KindNestAsk, &wire.Child{Pid: p.pid})
	case kernel.Revents(p.pidfd, unix.POLLIN) == 0:
		// It still runs.
	default:
		w, known, final := strangersEnd(p.pid, p.pidfd)
		if !final {
			s.change(p.pidfd, 0)
			return
		}
		p.finish(s, w, time.Now().UnixNano(), !known)
	}
}

// strangersEnd returns how a process has ended that is neither our child nor the nest's: an
// earlier keeper and then the nest have died, and it fell to another process. That may
// reap it at any time. final is false if its pidfd will hang up, after which there may be
// a status; known is false if nobody can tell the status.
func strangersEnd(pid, pidfd int) (w unix.WaitStatus, known, final bool) {
	if w, ok := kernel.ZombieStatus(pid, pidfd); ok {
		return w, true, true
	}
	reaped := kernel.PidfdSignal(pidfd, 0) != nil
	if w, ok := kernel.PidfdExit(pidfd); ok {
		return w, true, true
	}
	return 0, false, reaped || !kernel.PidfdHangsUp()
}

// exited checks a process again that waited for an answer of the nest, when the nest
// is gone.
func (p *proc) exited(s *Server) {
	if p.phase == running {
		p.watchEnd(s)
	}
}

// finishUnknown records the end of a process that is neither our child nor the nest's.
// The kernel may still have its status; otherwise the exit is lost.
func (p *proc) finishUnknown(s *Server) {
	w, ok := unix.WaitStatus(0), false
	if p.pidfd >= 0 {
		w, ok = kernel.PidfdExit(p.pidfd)
	}
	p.finish(s, w, time.Now().UnixNano(), !ok)
}

// finish records an exit. The order matters: output goes to the sinks, the counters
// are read while the cgroup exists, the record goes to the nest and to the disk, and
// only then the process is reaped. If the keeper dies in between, the next one does
// the same again.
func (p *proc) finish(s *Server, w unix.WaitStatus, nanos int64, lost bool) {
	s.sinceGC++
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
		if w.CoreDump() {
			e.Code = 1
		}
	default:
		e.Code = w.ExitStatus()
	}
	p.exit, p.phase = e, ended
	p.save(s)
	if err := kernel.WriteFile(p.exitFile(s), wire.CheckedRecord(e), 0o600); err != nil {
		logLine("write the exit record of " + p.key + ": " + err.Error() + "; it is lost if keeper and nest die before the agent has it")
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

// drain moves the output up to the process's end, and no more: a child of it may write for ever.
func (p *proc) drain(s *Server) {
	if p.io.Hold {
		return
	}
	for _, src := range []*source{p.out, p.err} {
		if src == nil || src.FD < 0 {
			continue
		}
		src.AtOnce = true // nobody will finish the line
		left := kernel.Available(src.FD)
		if src.TTY {
			left = 1 << 20 // bytes still in the line discipline are not counted as available
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

// settle closes those outputs of an ended process that can bring nothing more, and
// ends its sinks after the last one. It reports whether it stored the state with the
// nest.
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

// endSinks ends a process's sinks. The nest holds the FIFO sinks too, so whether
// another reader exists shows only after the nest has closed its descriptors.
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

// hungUp reports whether a FIFO has no writer. That is reliable only for descriptors
// that were opened while there was a writer, as all of the keeper's were.
func hungUp(fd int) bool { return kernel.Revents(fd, unix.POLLIN)&unix.POLLHUP != 0 }

// offer sends an exit record to an agent.
func (c *conn) offer(s *Server, p *proc) {
	if !p.acked {
		c.send(s, answer{wire.Header{Kind: wire.KindExitEvent, ID: c.exits}, p.exit, nil})
	}
}

// ack notes that the agent has stored the exit. The nest gets the news before the file is removed:
// if the keeper dies in between, the exit must not be offered again.
func (p *proc) ack(s *Server) {
	if p.exit == nil || p.acked {
		return
	}
	p.acked = true
	p.save(s)
	_ = unix.Unlink(p.exitFile(s))
}

// forget drops a process that has ended, and gives up one that is being launched.
func (p *proc) forget(s *Server) *wire.Fail {
	switch {
	case p == nil:
		return nil
	case p.phase == running:
		return &wire.Fail{Class: wire.FailedPrecondition, Text: "forget " + p.key + ": it is running"}
	case p.phase == starting:
		p.givenUp = true
		if cmd := s.commands[p.cmdPid]; cmd != nil {
			_ = kernel.PidfdSignal(cmd.pidfd, int(unix.SIGKILL))
		}
		for l := range s.plans {
			if l.p == p {
				l.giveUp()
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

// readExits takes over exit records that an earlier keeper wrote and could no longer
// send to the nest.
func (s *Server) readExits() {
	for _, name := range kernel.ReadDir(s.dir + "/exits") {
		path := s.dir + "/exits/" + name
		b, err := kernel.ReadFile(path, 1<<20)
		var e wire.Exit
		if err != nil || !wire.ParseChecked(b, &e) {
			continue // damaged, or a partial file, which was never renamed into place; the nest has all but the last
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

// stray is an ended child that belongs to no known process or command, while launches
// are under way: one of them may still turn out to be its owner.
type stray struct {
	pid   int
	until uint64 // commands begun when it was first seen
}

// ready reaps children that belong to nothing. The others are left alone here: their
// own pidfds report their ends.
func (y *stray) ready(s *Server, _ uint32) {
	kernel.Unpoke(s.waiter.FD)
	s.reapFirstChildren()
	for {
		e, err := kernel.Peek(0, false)
		if err != nil {
			return // no children: the next fork arms the waiter again
		}
		if e.Pid == 0 {
			s.waiter.Arm()
			return
		}
		s.endSecond(e.Pid)
		if s.byPid[e.Pid] != nil || s.commands[e.Pid] != nil {
			return // its own handler arms the waiter again
		}
		if y.pid != e.Pid {
			y.pid, y.until = e.Pid, s.begun
		}
		if s.oldest() <= y.until {
			return // the end of a command arms the waiter again
		}
		kernel.Reap(e.Pid)
		s.firstChildren = slices.DeleteFunc(s.firstChildren, func(pid int) bool { return pid == e.Pid })
		y.pid = 0
	}
}

// endSecond ends the second child of a launch after its first child, pid, has ended before it could
// report the second: nobody would ever release it.
func (s *Server) endSecond(pid int) {
	for l := range s.plans {
		if l.p.pid == pid && !l.second && kernel.Available(l.child.Errors()) == 0 {
			l.child.Release()
		}
	}
}

// oldest returns the number of the oldest command that is not done.
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
		return 0 // one is being forked
	}
	return first
}

// readCounters reads the out-of-memory counters of all levels. A counter that cannot
// be read is zero: a cgroup that is made later starts at zero.
func readCounters(levels []wire.Level) counters {
	var c counters
	for _, l := range levels {
		c.kills = append(c.kills, readKey(l.Path, "oom_kill "))
		c.local = append(c.local, readKey(l.Local, "oom "))
	}
	return c
}

// growth returns by how much counters have grown. A counter that has shrunk belongs to
// a new cgroup, and counts in full.
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

// readKey returns the number on the line that begins with key, or 0.
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

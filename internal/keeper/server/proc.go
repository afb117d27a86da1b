package server

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/stdio"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// phase is where a process stands with us.
type phase uint8

const (
	starting phase = iota + 1 // its command has not ended yet
	running
	ended // its end is on record
)

// proc is one process, from the launch until it is forgotten.
type proc struct {
	ref    wire.Ref
	serial uint64
	key    string // in the nest, and below io/ and exits/
	io     wire.IO
	levels []wire.Level
	peak   string
	base   counters // the levels' counters at the launch

	phase    phase
	pid      int
	pidfd    int
	pidFile  string
	console  int // listening socket for the pty, while starting
	cmdPid   int // the launch's command, while starting
	forsaken bool

	park int // a planned child waits for a byte from here; -1 once it was let go
	errs int // where it tells why it could not run its program
	// names are those of its plan's operations from namesFrom on, until it runs.
	names     []string
	namesFrom int

	// second, unless nil, is a child that waits for hooks and is to make another
	// one, which is the process then; words are what they share with us.
	second *fork.Child
	words  *uint32

	letting *letGo     // it was let go and has neither parked again nor run
	refused *wire.Fail // why its program did not run; it is about to end

	pty      int
	stdin    int // the end we write to
	out, err *source
	sinks    []*stdio.Sink
	ending   bool // its sinks wait for readers

	asking bool // the nest was asked how it ended
	exit   *wire.Exit
	acked  bool
	lost   uint64

	streams map[uint64]*stream
	holder  *stream // the exclusive one
	oncePut bool    // somebody has attached to a StdinOnce
}

// counters are out-of-memory counts, one per level.
type counters struct{ kills, local []uint64 }

// source is one output of a process, as the loop sees it.
type source struct {
	stdio.Source
	p       *proc
	watched bool
	edge    bool // it has hung up: only news are told
}

func (s *Server) newProc(ref wire.Ref, key string, io wire.IO) *proc {
	p := &proc{ref: ref, key: key, io: io, phase: starting, pidfd: -1, console: -1, park: -1, errs: -1, pty: -1, stdin: -1, streams: map[uint64]*stream{}}
	for _, k := range io.Sinks {
		sink := stdio.NewSink()
		sink.CRI, sink.MaxBytes, sink.MaxFiles = k.CRI, k.MaxBytes, k.MaxFiles
		sink.Below, sink.Path = wire.SplitPath(k.Path)
		if k.MaxFiles < 0 {
			sink.Numbered, sink.MaxFiles = true, -k.MaxFiles
		}
		p.sinks = append(p.sinks, sink)
	}
	return p
}

// waitsNoMore is for a process whose second child is known, or never will be.
func (p *proc) waitsNoMore(s *Server) {
	if p.second != nil {
		s.progress.give(p.words)
		p.second.Release()
		p.second, p.words = nil, nil
	}
}

// byPlan reports whether it was launched by a plan, and not by a command.
func (p *proc) byPlan() bool { return p.pidFile == "" }

func (p *proc) enter(s *Server) {
	s.procs[p.ref], s.bySerial[p.serial] = p, p
	if p.pid > 0 {
		s.byPid[p.pid] = p
	}
}

// setSource gives a process one of its outputs.
func (p *proc) setSource(fd int, stderr bool) {
	src := &source{p: p, Source: stdio.Source{FD: fd, TTY: p.io.TTY, Stderr: stderr, Serial: p.serial}}
	for i, k := range p.io.Sinks {
		var sink *stdio.Sink
		if k.Stdout && !stderr || k.Stderr && stderr {
			sink = p.sinks[i]
		}
		src.Sinks = append(src.Sinks, sink)
	}
	if stderr {
		p.err = src
	} else {
		p.out = src
	}
}

// source finds a source for the journal's recovery.
func (s *Server) source(serial uint64, stderr bool) *stdio.Source {
	p := s.bySerial[serial]
	switch {
	case p == nil:
	case stderr && p.err != nil:
		return &p.err.Source
	case !stderr && p.out != nil:
		return &p.out.Source
	}
	return nil
}

// record is what the nest holds of a process for our successor.
type record struct {
	serial  uint64
	ref     wire.Ref
	io      wire.IO
	levels  []wire.Level
	peak    string
	kills   []uint64
	local   []uint64
	phase   uint64
	pid     uint64
	cmdPid  uint64
	pidFile string
	hasExit bool
	exit    wire.Exit
	acked   bool
	once    bool
}

// Fields implements wire.Message.
func (r *record) Fields(c *wire.Codec) {
	c.Uint(&r.serial)
	r.ref.Fields(c)
	r.io.Fields(c)
	c.Levels(&r.levels)
	c.Str(&r.peak)
	c.Uints(&r.kills)
	c.Uints(&r.local)
	c.Uint(&r.phase)
	c.Uint(&r.pid)
	c.Uint(&r.cmdPid)
	c.Str(&r.pidFile)
	c.Bool(&r.hasExit)
	r.exit.Fields(c)
	c.Bool(&r.acked)
	c.Bool(&r.once)
}

func (p *proc) record(b []byte) []byte {
	r := &record{
		serial: p.serial, ref: p.ref, io: p.io, levels: p.levels, peak: p.peak, kills: p.base.kills, local: p.base.local,
		phase: uint64(p.phase), pid: uint64(p.pid), cmdPid: uint64(p.cmdPid), pidFile: p.pidFile,
		acked: p.acked, once: p.oncePut,
	}
	if p.exit != nil {
		r.hasExit, r.exit = true, *p.exit
	}
	return wire.AppendRecord(b, r)
}

// descriptors lists what the nest should hold of a process.
func (p *proc) descriptors() (roles []wire.Role, fds []int) {
	add := func(r wire.Role, fd int) {
		if fd >= 0 {
			roles, fds = append(roles, r), append(fds, fd)
		}
	}
	add(wire.RolePidfd, p.pidfd)
	add(wire.RoleStdin, p.stdin)
	add(wire.RoleConsole, p.console)
	add(wire.RolePark, p.park)
	add(wire.RoleErrors, p.errs)
	add(wire.RolePty, p.pty)
	if !p.io.TTY && p.out != nil {
		add(wire.RoleStdout, p.out.FD)
	}
	if p.err != nil {
		add(wire.RoleStderr, p.err.FD)
	}
	for i, k := range p.sinks {
		add(wire.RoleSink+wire.Role(i), k.FIFO())
	}
	return roles, fds
}

// save has the nest hold the process as it is now. fresh names the roles whose
// descriptors it has not seen yet.
func (p *proc) save(s *Server, fresh ...wire.Role) {
	p.savePids(s, nil, fresh)
}

func (p *proc) savePids(s *Server, extra *command, fresh []wire.Role) {
	s.blob = p.record(s.blob[:0])
	it := &wire.Item{Key: p.key, Blob: s.blob}
	if p.pid > 0 && p.exit == nil {
		it.Pids = append(it.Pids, p.pid)
	}
	var send []int
	roles, fds := p.descriptors()
	for i, r := range roles {
		if slices.Contains(fresh, r) {
			it.Roles, send = append(it.Roles, r), append(send, fds[i])
		} else {
			it.Keep = append(it.Keep, r)
		}
	}
	if extra != nil {
		it.Pids = append(it.Pids, extra.pid)
		it.Roles, send = append(it.Roles, wire.RoleCommand), append(send, extra.pidfd)
	}
	s.nest.put(s, it, send)
}

// adoptItem takes one item over from an earlier keeper. The nest holds it
// already.
func (s *Server) adoptItem(it *item) {
	if it.Key == socketKey {
		s.listenFD = it.take(wire.RoleSocket)
		return
	}
	var r record
	if !wire.ParseRecord(it.Blob, &r) {
		say("an item that cannot be read: " + it.Key)
		kernel.CloseAll(it.fds)
		return
	}
	p := s.newProc(r.ref, it.Key, r.io)
	p.serial, p.levels, p.peak = r.serial, r.levels, r.peak
	p.base = counters{r.kills, r.local}
	p.phase, p.pid, p.cmdPid, p.pidFile = phase(r.phase), int(r.pid), int(r.cmdPid), r.pidFile
	p.acked, p.oncePut = r.acked, r.once
	p.lost = s.journal.Lost(p.serial)
	s.journal.Restore(p.serial, p.sinks)
	if r.hasExit {
		e := r.exit
		p.exit, p.phase = &e, ended
	}
	p.pidfd = it.take(wire.RolePidfd)
	p.stdin = it.take(wire.RoleStdin)
	p.console = it.take(wire.RoleConsole)
	p.park = it.take(wire.RolePark)
	p.errs = it.take(wire.RoleErrors)
	if p.pty = it.take(wire.RolePty); p.pty >= 0 {
		p.setSource(p.pty, false)
	} else if fd := it.take(wire.RoleStdout); fd >= 0 {
		p.setSource(fd, false)
	}
	if fd := it.take(wire.RoleStderr); fd >= 0 {
		p.setSource(fd, true)
	}
	for i, k := range p.sinks {
		if fd := it.take(wire.RoleSink + wire.Role(i)); fd >= 0 {
			k.Adopt(fd)
		} else if p.phase != ended {
			_ = k.Open()
		}
	}
	s.serial = max(s.serial, p.serial)
	p.enter(s)
	if p.phase == starting {
		p.adoptCommand(s, it.take(wire.RoleCommand))
	}
	for _, fd := range it.fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// carryOn lets an inherited process's events in.
func (p *proc) carryOn(s *Server) {
	if p.oncePut && p.io.Stdin == wire.StdinOnce && s.thaw == nil {
		// The client that writes to it is the old keeper's: its own end is the
		// last now, and closes the input when it goes.
		p.closeStdin(s, false)
	}
	switch p.phase {
	case running:
		p.watchOutput(s)
		p.watchEnd(s)
	case ended:
		if p.pid > 0 {
			s.reap(p.pid)
		}
		p.watchOutput(s)
		p.settle(s)
	}
}

// watchOutput lets a process's output flow, unless it is held.
func (p *proc) watchOutput(s *Server) {
	if p.io.Hold {
		return
	}
	for _, src := range []*source{p.out, p.err} {
		if src != nil && src.FD >= 0 && !src.watched {
			src.watched = true
			src.AtOnce = p.phase == ended
			s.add(src.FD, src, unix.EPOLLIN)
		}
	}
}

// ready moves one chunk. A source that has hung up and is empty is watched by
// its edges from then on: it may be opened again, but not in a spin till then.
func (src *source) ready(s *Server, events uint32) {
	if src.FD < 0 {
		return
	}
	for {
		n := src.move(s)
		if _, waits := src.Part(); n == 0 && waits {
			if events&(unix.EPOLLHUP|unix.EPOLLERR) == 0 {
				src.keepPart(s)
				return
			}
			n = src.moveAll(s) // nobody is there who could finish the line
		}
		if src.edge && n > 0 {
			src.edge = false
			s.change(src.FD, unix.EPOLLIN)
		}
		if n > 0 || events&(unix.EPOLLHUP|unix.EPOLLERR) == 0 {
			return
		}
		if src.p.phase == ended {
			src.p.settle(s)
			return
		}
		if src.edge {
			return
		}
		// Armed by edges first, looked at again after: nothing falls between.
		src.edge = true
		s.change(src.FD, unix.EPOLLIN|unix.EPOLLET)
	}
}

// moveAll moves one chunk, unfinished lines too.
func (src *source) moveAll(s *Server) int {
	atOnce := src.AtOnce
	src.AtOnce = true
	n := src.move(s)
	src.AtOnce = atOnce
	return n
}

func (src *source) move(s *Server) int {
	n, lost := s.pump.Move(&src.Source)
	src.p.lost += lost
	return n
}

// dir is where a process's FIFOs are.
func (p *proc) ioDir(s *Server) string { return s.dir + "/io/" + p.key }

package server

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/fork"
	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/stdio"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// phase says how far a process has come.
type phase uint8

const (
	starting phase = iota + 1 // the launch is not complete yet
	running
	ended // the exit record is written
)

// proc is one process, from the launch until it is forgotten.
type proc struct {
	ref    wire.Ref
	serial uint64
	key    string // its name with the nest, and below io/ and exits/
	io     wire.IO
	levels []wire.Level
	peak   string
	base   counters // the levels' counters at the launch

	phase   phase
	stored  bool // the nest has an item of it
	early   bool // released before it had parked: for the next keeper it runs
	pid     int
	pidfd   int
	pidFile string
	console int // listening socket for the pty; open until the launch is complete
	cmdPid  int // the command that launches it; 0 afterwards
	givenUp bool

	park int // write end of the pipe that a parked child reads; -1 once released
	errs int // read end of its failure pipe
	// names are the names of its plan's operations from namesFrom on, until it runs.
	names     []string
	namesFrom int

	// second, unless nil, is a child that has parked for its hooks and will make a
	// second child, which is the process then. progress is where both write their
	// progress.
	second   *fork.Child
	progress *uint32

	pending *pendingRelease // released, and has neither parked again nor executed its program
	refused *wire.Fail      // why its program did not run; the process is about to end

	pty      int
	stdin    int // our write end
	out, err *source
	sinks    []*stdio.Sink
	ending   bool // its sinks wait for readers

	askedNest bool // a request for its exit is at the nest
	stranger  bool // it is neither our child nor the nest's
	exit      *wire.Exit
	acked     bool
	lost      uint64

	streams       map[uint64]*stream
	holder        *stream // the stream with exclusive access
	stdinOnceUsed bool    // a client has attached to its StdinOnce input
}

// counters are out-of-memory counters, one per cgroup level.
type counters struct{ kills, local []uint64 }

// source is an output of a process, with how the loop watches it.
type source struct {
	stdio.Source
	p       *proc
	watched bool
	edge    bool // watched edge-triggered, because its writers have closed it or a part of a line waits
}

func (s *Server) newProc(ref wire.Ref, key string, io wire.IO) *proc {
	p := &proc{ref: ref, key: key, io: io, phase: starting, pidfd: -1, console: -1, park: -1, errs: -1, pty: -1, stdin: -1, streams: map[uint64]*stream{}}
	for _, k := range io.Sinks {
		sink := stdio.NewSink()
		sink.CRI, sink.MaxBytes, sink.MaxFiles = k.CRI, k.MaxBytes, k.MaxFiles
		if k.MaxBytes < 0 {
			sink.Plain, sink.MaxBytes = k.CRI, 0
		}
		sink.Below, sink.Path = wire.SplitPath(k.Path)
		if k.MaxFiles < 0 {
			sink.Numbered, sink.MaxFiles = true, -k.MaxFiles
		}
		p.sinks = append(p.sinks, sink)
	}
	return p
}

// dropSecond releases the resources for a second child, once that was found or will never come.
func (p *proc) dropSecond(s *Server) {
	if p.second != nil {
		s.progress.release(p.progress)
		p.second.Release()
		p.second, p.progress = nil, nil
	}
}

// byPlan reports whether the process was launched by a plan instead of a command.
func (p *proc) byPlan() bool { return p.pidFile == "" }

func (p *proc) register(s *Server) {
	s.procs[p.ref], s.bySerial[p.serial], s.byKey[p.key] = p, p, p
	if p.pid > 0 {
		s.byPid[p.pid] = p
	}
}

// setSource makes fd the process's standard output or, if stderr is set, its standard
// error.
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

// source finds a process's output for the journal's recovery.
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

// record is the state of a process that the nest keeps for the next keeper.
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
		acked: p.acked, once: p.stdinOnceUsed,
	}
	if p.early && p.phase == starting {
		r.phase = uint64(running)
	}
	if p.exit != nil {
		r.hasExit, r.exit = true, *p.exit
	}
	return wire.AppendRecord(b, r)
}

// descriptors lists the process's descriptors that the nest should hold.
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

// save stores the current state of the process with the nest. fresh names the roles of descriptors
// that the nest does not have yet.
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
	p.stored = true
	s.nest.put(s, it, send)
	s.changed(p.key)
}

// item is the process as the nest is to hold it, with all of its descriptors.
func (p *proc) item(s *Server) (wire.Item, []int) {
	it := wire.Item{Key: p.key, Blob: p.record(nil)}
	roles, fds := p.descriptors()
	if p.pid > 0 && p.exit == nil {
		it.Pids = append(it.Pids, p.pid)
	}
	if cmd := s.commands[p.cmdPid]; cmd != nil && cmd.p == p && cmd.pidfd >= 0 {
		it.Pids = append(it.Pids, cmd.pid)
		roles, fds = append(roles, wire.RoleCommand), append(fds, cmd.pidfd)
	}
	it.Roles = roles
	return it, fds
}

// adoptItem takes over one item of an earlier keeper. The nest still holds it.
func (s *Server) adoptItem(it *item) {
	if it.Key == socketKey {
		s.listenFD = it.take(wire.RoleSocket)
		return
	}
	if name, ok := heldName(it.Key); ok {
		s.heldFiles[name] = it.fds
		return
	}
	var r record
	if !wire.ParseRecord(it.Blob, &r) {
		logLine("cannot read the record of " + it.Key + ": the process is not supervised any more")
		kernel.CloseAll(it.fds)
		return
	}
	p := s.newProc(r.ref, it.Key, r.io)
	p.serial, p.levels, p.peak = r.serial, r.levels, r.peak
	p.base = counters{r.kills, r.local}
	p.phase, p.pid, p.cmdPid, p.pidFile = phase(r.phase), int(r.pid), int(r.cmdPid), r.pidFile
	p.acked, p.stdinOnceUsed = r.acked, r.once
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
	p.stored = true
	p.register(s)
	if p.phase == starting {
		p.adoptCommand(s, it.take(wire.RoleCommand))
	}
	for _, fd := range it.fds {
		if fd >= 0 {
			_ = unix.Close(fd)
		}
	}
}

// resumeWatching starts to handle the events of an inherited process.
func (p *proc) resumeWatching(s *Server) {
	if p.stdinOnceUsed && p.io.Stdin == wire.StdinOnce && s.afterResume == nil {
		// The client that writes to it was connected to the old keeper. That client's
		// own end is the last one now, and closes the input when the client goes.
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

// watchOutput starts to move a process's output, unless it is held.
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

// ready moves one chunk. A source that is empty and has no writer is watched
// edge-triggered from then on: it may be opened again, and until then the hang-up must
// not wake the loop.
func (src *source) ready(s *Server, events uint32) {
	if src.FD < 0 {
		return
	}
	for {
		n := src.move(s)
		if _, waits := src.Part(); n == 0 && waits {
			if events&(unix.EPOLLHUP|unix.EPOLLERR) == 0 {
				src.keepPartialLine(s)
				return
			}
			n = src.moveAll(s) // there is no writer left to finish the line
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
		// Switch to edges first, then look once more, so that no byte in between is
		// missed.
		src.edge = true
		s.change(src.FD, unix.EPOLLIN|unix.EPOLLET)
	}
}

// moveAll moves one chunk, and does not keep an unfinished line back.
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

// ioDir is the directory of a process's FIFOs.
func (p *proc) ioDir(s *Server) string { return s.dir + "/io/" + p.key }

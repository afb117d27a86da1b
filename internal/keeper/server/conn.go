package server

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/shortage"
)

// maxQueued is how many answers may wait for a client that does not read. A client
// with more is disconnected.
const maxQueued = 8192

// listener accepts connections from agents.
type listener struct{}

func (listener) ready(s *Server, _ uint32) {
	for {
		fd, _, err := unix.Accept4(s.listenFD, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if shortage.Is(err) { // the agent waits in the queue
			s.change(s.listenFD, 0)
			s.delays.after(shortage.Pause, func() { s.change(s.listenFD, unix.EPOLLIN) })
			return
		}
		if err != nil {
			return
		}
		peer, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err != nil || peer.Uid != 0 {
			_ = unix.Close(fd)
			continue
		}
		s.addConn(fd)
	}
}

// answer is a frame that is still to be sent; it owns its descriptors.
type answer struct {
	h   wire.Header
	m   wire.Message
	fds []int
}

// conn is one connected agent.
type conn struct {
	fd      int
	greeted bool
	exits   uint64 // id of the request that subscribed to exits, 0 for none
	copies  *copies
	out     []answer
	streams map[uint64]*stream
}

func (s *Server) addConn(fd int) *conn {
	c := &conn{fd: fd, streams: map[uint64]*stream{}}
	s.conns[fd] = c
	s.add(fd, c, unix.EPOLLIN)
	return c
}

func (c *conn) closeConn(s *Server) {
	if c.fd < 0 {
		return
	}
	c.copies = nil
	delete(s.conns, c.fd)
	s.drop(&c.fd)
	for _, a := range c.out {
		kernel.CloseAll(a.fds)
	}
	c.out = nil
	for _, st := range c.streams {
		st.endStream(s, false)
	}
}

func (c *conn) ready(s *Server, events uint32) {
	if c.fd < 0 {
		return
	}
	if events&unix.EPOLLOUT != 0 {
		c.flush(s)
	}
	if c.fd < 0 || events&(unix.EPOLLIN|unix.EPOLLHUP|unix.EPOLLERR) == 0 {
		return
	}
	frame, fds, err := s.in.Recv(c.fd, unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) {
		return
	}
	if errors.Is(err, unix.EMFILE) {
		c.short(s, frame)
		return
	}
	if err != nil || len(frame) == 0 {
		c.closeConn(s)
		return
	}
	h, inline, ok := wire.ParseHeader(frame)
	if !ok {
		kernel.CloseAll(fds)
		c.closeConn(s)
		return
	}
	body, fds, err := kernel.Body(h, inline, fds)
	defer func() { kernel.CloseAll(fds) }()
	if err != nil {
		c.closeConn(s)
		return
	}
	if !c.greeted {
		c.greet(s, h, body)
		return
	}
	c.request(s, h, body, fds)
}

// short refuses a request that arrived without its descriptors, because this process can open no more.
func (c *conn) short(s *Server, frame []byte) {
	h, _, ok := wire.ParseHeader(frame)
	if !ok || !c.greeted {
		c.closeConn(s)
		return
	}
	c.fail(s, h.ID, wire.ResourceExhausted, "request: the keeper has no descriptors left: "+unix.EMFILE.Error())
}

// greet answers the first frame, the client's hello. A client with other versions gets an error
// with both.
func (c *conn) greet(s *Server, h wire.Header, body []byte) {
	mine := wire.Hello{Magic: wire.Magic, Version: wire.Newest(), Oldest: wire.OldestSpoken(), Program: Release}
	var theirs wire.Hello
	if h.Kind != wire.KindHello || !wire.Unmarshal(body, &theirs) || theirs.Magic != wire.Magic {
		c.closeConn(s)
		return
	}
	if wire.Agree(mine, theirs) == 0 {
		c.fail(s, h.ID, wire.FailedPrecondition, "hello: "+wire.Mismatch(mine, theirs))
		return
	}
	c.greeted = true
	c.ok(s, h.ID, &mine)
	if !s.renewal.tried.IsZero() {
		c.tellNestLost(s)
	}
}

// tellNestLost tells the client that this pair has lost its nest and could not start another
// one, so that it launches with another pair from now on.
func (c *conn) tellNestLost(s *Server) {
	c.send(s, answer{wire.Header{Kind: wire.KindNestLost}, nil, nil})
}

// ok answers a request. It takes ownership of the descriptors.
func (c *conn) ok(s *Server, id uint64, m wire.Message, fds ...int) {
	c.send(s, answer{wire.Header{Kind: wire.KindOK, ID: id}, m, fds})
}

func (c *conn) fail(s *Server, id uint64, class wire.Class, text string) {
	c.refuse(s, id, &wire.Fail{Class: class, Text: text})
}

func (c *conn) refuse(s *Server, id uint64, f *wire.Fail) {
	c.send(s, answer{wire.Header{Kind: wire.KindFail, ID: id}, f, nil})
}

func (c *conn) send(s *Server, a answer) {
	if c == nil || c.fd < 0 || len(c.out) > maxQueued {
		kernel.CloseAll(a.fds)
		if c != nil {
			c.closeConn(s)
		}
		return
	}
	c.out = append(c.out, a)
	if len(c.out) == 1 {
		c.flush(s)
	}
}

func (c *conn) flush(s *Server) {
	for len(c.out) > 0 {
		a := c.out[0]
		err := s.sender.Send(kernel.TrySend, c.fd, a.h, a.m, a.fds)
		if errors.Is(err, unix.EAGAIN) {
			s.change(c.fd, unix.EPOLLIN|unix.EPOLLOUT)
			return
		}
		if shortage.Is(err) {
			s.change(c.fd, unix.EPOLLIN)
			s.delays.after(shortage.Pause, func() { c.flush(s) })
			return
		}
		kernel.CloseAll(a.fds)
		c.out[0] = answer{}
		c.out = c.out[1:]
		if err != nil {
			c.closeConn(s)
			return
		}
	}
	c.out = nil
	s.change(c.fd, unix.EPOLLIN)
	if c.fd >= 0 && c.copies != nil && (len(c.copies.stale) > 0 || !c.copies.all) {
		s.copying, s.copyAt = true, time.Time{}
	}
}

// request decodes one request and carries it out. The caller keeps the descriptors.
func (c *conn) request(s *Server, h wire.Header, body []byte, fds []int) {
	s.sinceGC++
	var ref wire.Ref
	var m wire.Message
	switch h.Kind {
	case wire.KindLaunch, wire.KindLaunchPlan, wire.KindLaunchGiven:
		m = &wire.Launch{}
	case wire.KindTask:
		m = &wire.Task{}
	case wire.KindNamespaces:
		m = &wire.Namespaces{}
	case wire.KindRun:
		m = &wire.Command{}
	case wire.KindSignal:
		m = &wire.SignalRequest{}
	case wire.KindStreams:
		m = &wire.StreamsRequest{}
	case wire.KindStreamEnd:
		m = &wire.StreamEnd{}
	case wire.KindResize:
		m = &wire.ResizeRequest{}
	case wire.KindUpgrade:
		m = &wire.Upgrade{}
	case wire.KindCancel:
		m = &wire.Cancel{}
	case wire.KindHold, wire.KindHeld, wire.KindDropHeld:
		m = &wire.HeldName{}
	case wire.KindCloseStdin, wire.KindReopen, wire.KindAck, wire.KindForget, wire.KindRelease, wire.KindAdvance:
		m = &ref
	case wire.KindProcesses, wire.KindExits, wire.KindStatus, wire.KindShutdown, wire.KindHeldNames, wire.KindCopies:
	default:
		c.fail(s, h.ID, wire.InvalidArgument, "request: unknown kind "+kernel.Itoa(int(h.Kind)))
		return
	}
	if m != nil && !wire.Unmarshal(body, m) || m == nil && len(body) > 0 {
		c.fail(s, h.ID, wire.InvalidArgument, "request: malformed body of kind "+kernel.Itoa(int(h.Kind)))
		return
	}
	c.dispatch(s, h, m, fds)
}

func (c *conn) dispatch(s *Server, h wire.Header, m wire.Message, fds []int) {
	switch m := m.(type) {
	case *wire.Launch:
		mem, f := launchPlanOf(h.Kind, m, fds)
		if f != nil {
			c.refuse(s, h.ID, f)
			return
		}
		c.launch(s, h.ID, m, mem)
	case *wire.Task:
		mem, f := taskPlanOf(m, fds)
		if f != nil {
			c.refuse(s, h.ID, f)
			return
		}
		c.task(s, h.ID, m, mem)
	case *wire.Namespaces:
		c.namespaces(s, h.ID, m)
	case *wire.Command:
		c.run(s, h.ID, m)
	case *wire.SignalRequest:
		c.signal(s, h.ID, m)
	case *wire.StreamsRequest:
		c.attach(s, h.ID, m)
	case *wire.StreamEnd:
		if st := c.streams[m.Stream]; st != nil {
			st.endStream(s, m.StdinOnly)
		}
		c.ok(s, h.ID, nil)
	case *wire.ResizeRequest:
		c.resize(s, h.ID, m)
	case *wire.Upgrade:
		c.beginUpgrade(s, h.ID, m.Path)
	case *wire.Cancel:
		c.cancel(s, m.ID)
		c.ok(s, h.ID, nil)
	case *wire.HeldName:
		c.onHeld(s, h, m.Name, fds)
	case *wire.Ref:
		c.onProcess(s, h, *m)
	default:
		c.onKeeper(s, h)
	}
}

// onProcess handles the requests with only the name of a process as body.
func (c *conn) onProcess(s *Server, h wire.Header, ref wire.Ref) {
	p := s.procs[ref]
	switch {
	case h.Kind == wire.KindForget:
		if f := p.forget(s); f != nil {
			c.refuse(s, h.ID, f)
			return
		}
		c.ok(s, h.ID, nil)
		return
	case p == nil || p.phase == starting:
		c.fail(s, h.ID, wire.NotFound, "process "+ref.Container+"/"+ref.Process+": no such process")
		return
	}
	switch h.Kind {
	case wire.KindRelease:
		c.release(s, h.ID, p)
		return
	case wire.KindAdvance:
		c.unpark(s, h.ID, p, wire.KindAdvance)
		return
	case wire.KindAck:
		p.ack(s)
	case wire.KindCloseStdin:
		p.closeStdin(s, true)
	case wire.KindReopen:
		for _, k := range p.sinks {
			if err := k.Reopen(); err != nil {
				c.fail(s, h.ID, wire.FailedPrecondition, "reopen "+k.Path+": "+err.Error())
				return
			}
		}
	}
	c.ok(s, h.ID, nil)
}

// onKeeper carries out the requests that are about the keeper as a whole.
func (c *conn) onKeeper(s *Server, h wire.Header) {
	switch h.Kind {
	case wire.KindProcesses:
		var l wire.Processes
		for _, p := range s.procs {
			if p.phase != starting {
				l.List = append(l.List, wire.Supervised{Ref: p.ref, Pid: p.pid, Running: p.exit == nil, Lost: p.lost})
			}
		}
		c.ok(s, h.ID, &l)
	case wire.KindHeldNames:
		c.ok(s, h.ID, s.heldNames())
	case wire.KindStatus:
		c.ok(s, h.ID, s.status())
	case wire.KindExits:
		c.exits = h.ID
		for _, p := range s.procs {
			if p.exit != nil && !p.acked {
				c.offer(s, p)
			}
		}
	case wire.KindCopies:
		c.copyAll(s, h.ID)
	case wire.KindShutdown:
		if len(s.procs) > 0 || s.inFlight > 0 {
			c.fail(s, h.ID, wire.FailedPrecondition, "shutdown: there are still processes")
			return
		}
		if err := s.nest.trySend(s, wire.KindNestQuit, nil, nil); err != nil {
			c.fail(s, h.ID, wire.ResourceExhausted, "shutdown: tell the nest: "+err.Error())
			return
		}
		c.ok(s, h.ID, nil)
		_ = unix.Unlink(s.dir + "/keeper.sock")
		s.quit = true
	}
}

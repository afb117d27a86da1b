package server

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// nest is the link to the parent that holds everything a second time.
type nest struct {
	fd    int // -1 when the nest is gone
	pid   int
	in    kernel.Receiver // not the clients': a request may be under way
	inbox []wire.Child
	syncs []func() // what waits until the nest has done all it was told
}

// item is one thing handed over.
type item struct {
	wire.Item
	fds []int
}

func (it *item) take(r wire.Role) int {
	for i, x := range it.Roles {
		if x == r && it.fds[i] >= 0 {
			fd := it.fds[i]
			it.fds[i] = -1
			return fd
		}
	}
	return -1
}

// inherit reads what an earlier keeper left, from the nest or from the memory
// file of an upgrade.
func (s *Server) inherit(resume int) ([]item, error) {
	if resume >= 0 {
		return s.readResume(resume)
	}
	var items []item
	for {
		frame, fds, err := s.in.Recv(s.nest.fd, 0)
		if err != nil {
			return nil, err
		}
		if len(frame) == 0 {
			return nil, unix.ECONNRESET
		}
		h, inline, ok := wire.ParseHeader(frame)
		if !ok {
			return nil, unix.EBADMSG
		}
		body, fds, err := kernel.Body(h, inline, fds)
		if err != nil {
			return nil, err
		}
		switch h.Kind {
		case wire.KindNestHello:
			var m wire.NestHello
			if !wire.Unmarshal(body, &m) || m.Version != wire.NestVersion {
				return nil, unix.EPROTO
			}
			s.nest.pid = m.Pid
		case wire.KindNestItem:
			var m wire.Item
			if !wire.Unmarshal(append([]byte(nil), body...), &m) || len(m.Roles) != len(fds) {
				return nil, unix.EPROTO
			}
			items = append(items, item{m, fds})
		case wire.KindNestReady:
			return items, nil
		default:
			return nil, unix.EPROTO
		}
	}
}

// put has the nest hold an item. Once it is sent it is safe: what waits in the
// socket when we die is read by the nest.
func (n *nest) put(s *Server, it *wire.Item, fds []int) {
	n.send(s, wire.KindNestPut, it, fds)
}

// send waits for room if it must. It takes in what the nest tells meanwhile: the
// nest may be waiting for room to tell it, and then each would wait for the
// other.
func (n *nest) send(s *Server, k wire.Kind, m wire.Message, fds []int) {
	for n.fd >= 0 {
		err := s.outgo.Send(kernel.TrySend, n.fd, wire.Header{Kind: k}, m, fds)
		switch kernel.Errno(err) {
		case 0:
			return
		case unix.EAGAIN:
			if kernel.Wait(n.fd, unix.POLLIN|unix.POLLOUT, -1) == nil && n.hear(s) {
				s.post(func() { n.heed(s) })
			}
		default:
			say("nest: " + err.Error())
			n.gone(s)
		}
	}
}

// hear takes one thing that the nest tells, to be heeded later. It reports false
// when there is none now.
func (n *nest) hear(s *Server) bool {
	frame, fds, err := n.in.Recv(n.fd, unix.MSG_DONTWAIT)
	kernel.CloseAll(fds)
	if errors.Is(err, unix.EAGAIN) {
		return false
	}
	if err != nil || len(frame) == 0 {
		n.gone(s)
		return false
	}
	h, body, ok := wire.ParseHeader(frame)
	var c wire.Child
	if ok && h.Kind == wire.KindNestTold && wire.Unmarshal(body, &c) {
		n.inbox = append(n.inbox, c)
	}
	return true
}

// heed acts on what was heard.
func (n *nest) heed(s *Server) {
	for len(n.inbox) > 0 {
		c := n.inbox[0]
		n.inbox = n.inbox[1:]
		if c.Pid == 0 {
			n.synced(1)
		} else {
			s.told(&c)
		}
	}
	n.inbox = nil
}

// ready reads what the nest tells.
func (n *nest) ready(s *Server, _ uint32) {
	for n.fd >= 0 && n.hear(s) {
	}
	n.heed(s)
}

// sync calls fn when the nest has done all that it was told before.
func (n *nest) sync(s *Server, fn func()) {
	n.syncs = append(n.syncs, fn)
	n.send(s, wire.KindNestAsk, &wire.Child{}, nil)
	if n.fd < 0 {
		n.synced(len(n.syncs))
	}
}

// synced calls the first k of those that wait.
func (n *nest) synced(k int) {
	for ; k > 0 && len(n.syncs) > 0; k-- {
		fn := n.syncs[0]
		n.syncs = n.syncs[1:]
		fn()
	}
}

// gone carries on without a nest: a death of ours would now lose exits, and the
// agent sees that in the status.
func (n *nest) gone(s *Server) {
	if n.fd < 0 {
		return
	}
	say("the nest is gone")
	s.drop(&n.fd)
	n.pid = 0
	n.synced(len(n.syncs))
	for _, c := range s.conns {
		if c.greeted {
			c.tellNestLost(s)
		}
	}
	for _, p := range s.procs {
		if p.asking { // nobody will tell any more
			p.asking = false
			p.exited(s)
		}
	}
}

// told hears how a child of the nest ended.
func (s *Server) told(c *wire.Child) {
	if cmd := s.commands[c.Pid]; cmd != nil && cmd.orphan {
		if c.Ended || c.Gone {
			cmd.ended(s, unix.WaitStatus(c.Wait))
		}
		return
	}
	p := s.byPid[c.Pid]
	if p == nil || !p.asking {
		return
	}
	p.asking = false
	switch {
	case c.Gone:
		p.unwitnessed(s)
	case c.Ended:
		p.finish(s, unix.WaitStatus(c.Wait), c.Nanos, false)
	default:
		p.watchEnd(s)
	}
}

// reap takes an ended process away, whosever child it is.
func (s *Server) reap(pid int) {
	kernel.Reap(pid)
	s.nest.send(s, wire.KindNestReap, &wire.Child{Pid: pid}, nil)
}

// isOurs reports whether pid is a child of ours or of the nest, who inherits
// what we leave.
func (s *Server) isOurs(pid int) bool {
	parent := kernel.Parent(pid)
	return parent == os.Getpid() || s.nest.pid != 0 && parent == s.nest.pid
}

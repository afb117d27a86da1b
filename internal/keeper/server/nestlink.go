package server

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
	"github.com/longshore/longshore/internal/shortage"
)

// nest is the connection to the nest, the parent process that holds a copy of every
// descriptor and record.
type nest struct {
	fd  int // -1 when the nest is gone
	pid int
	// lostPid is the pid of the nest that is gone.
	lostPid int
	in      kernel.Receiver // separate from the clients' receivers, which may be in use
	inbox   []wire.Child
	syncs   []func() // called when the nest has handled all earlier messages
	unsent  unsent
}

// item is an item that was handed over, with its descriptors.
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

// inherit reads the items that an earlier keeper left, from the nest or from the
// memory file of an upgrade.
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

// trySend sends a message to the nest and waits for room if it must. While it waits it
// receives the nest's messages: the nest may itself be waiting for room, and each
// would wait for the other. It returns only the errors of a shortage.
func (n *nest) trySend(s *Server, k wire.Kind, m wire.Message, fds []int) error {
	for n.fd >= 0 {
		err := s.sender.Send(kernel.TrySend, n.fd, wire.Header{Kind: k}, m, fds)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, unix.EAGAIN):
			if kernel.Wait(n.fd, unix.POLLIN|unix.POLLOUT, -1) == nil && n.receive(s) {
				s.post(func() { n.handleInbox(s) })
			}
		case shortage.Is(err):
			return err
		default:
			logLine("send to the nest: " + err.Error())
			n.lost(s)
		}
	}
	return nil
}

// receive receives one message of the nest for handleInbox to handle later. It reports false
// when there is none now.
func (n *nest) receive(s *Server) bool {
	frame, fds, err := n.in.Recv(n.fd, unix.MSG_DONTWAIT)
	kernel.CloseAll(fds)
	if errors.Is(err, unix.EAGAIN) {
		return false
	}
	if err != nil || len(frame) == 0 {
		n.lost(s)
		return false
	}
	h, body, ok := wire.ParseHeader(frame)
	var c wire.Child
	var d wire.Drop
	switch {
	case ok && h.Kind == wire.KindNestEnd && wire.Unmarshal(body, &c):
		n.inbox = append(n.inbox, c)
	case ok && h.Kind == wire.KindNestLacks && wire.Unmarshal(body, &d):
		n.putAgain(s, d.Key)
	}
	return true
}

// handleInbox handles the messages that were received.
func (n *nest) handleInbox(s *Server) {
	for len(n.inbox) > 0 {
		c := n.inbox[0]
		n.inbox = n.inbox[1:]
		if c.Pid == 0 {
			n.synced(1)
		} else {
			s.childReport(&c)
		}
	}
	n.inbox = nil
}

// ready receives and handles the nest's messages.
func (n *nest) ready(s *Server, _ uint32) {
	for n.fd >= 0 && n.receive(s) {
	}
	n.handleInbox(s)
}

// sync calls fn when the nest has handled all earlier messages.
func (n *nest) sync(s *Server, fn func()) {
	n.syncs = append(n.syncs, fn)
	n.ask(s)
	if n.fd < 0 {
		n.synced(len(n.syncs))
	}
}

// synced calls the first k functions that wait for the nest.
func (n *nest) synced(k int) {
	for ; k > 0 && len(n.syncs) > 0; k-- {
		fn := n.syncs[0]
		n.syncs = n.syncs[1:]
		fn()
	}
}

// lost carries on without a nest, until this keeper becomes the nest at the end of the turn.
func (n *nest) lost(s *Server) {
	if n.fd < 0 {
		return
	}
	logLine("lost the nest: becoming the nest, and starting the next keeper")
	n.lostPid = n.pid
	s.drop(&n.fd)
	n.pid = 0
	n.unsent = unsent{}
	n.synced(len(n.syncs))
	for _, cmd := range s.commands {
		if cmd.askedNest { // no answer will come
			cmd.askedNest = false
			s.add(cmd.pidfd, cmd, unix.EPOLLIN)
		}
	}
	for _, p := range s.procs {
		if p.askedNest { // as above
			p.askedNest = false
			p.exited(s)
		}
	}
}

// childReport handles the nest's report on one of its children.
func (s *Server) childReport(c *wire.Child) {
	if cmd := s.commands[c.Pid]; cmd != nil && cmd.orphan {
		if c.Ended || c.Gone {
			cmd.ended(s, unix.WaitStatus(c.Wait))
		}
		return
	}
	p := s.byPid[c.Pid]
	if p == nil || !p.askedNest {
		return
	}
	p.askedNest = false
	switch {
	case c.Gone:
		if p.stranger = true; p.pidfd < 0 {
			p.finishUnknown(s)
			return
		}
		s.add(p.pidfd, p, unix.EPOLLIN)
		p.ready(s, unix.EPOLLIN)
	case c.Ended:
		p.finish(s, unix.WaitStatus(c.Wait), c.Nanos, false)
	default:
		p.watchEnd(s)
	}
}

// reap reaps an ended process, whether it is our child or the nest's.
func (s *Server) reap(pid int) {
	kernel.Reap(pid)
	s.nest.send(s, wire.KindNestReap, &wire.Child{Pid: pid})
}

// isOurs reports whether pid is our child or the nest's, because the nest inherits our children
// when we die.
func (s *Server) isOurs(pid int) bool {
	parent := kernel.Parent(pid)
	return parent == os.Getpid() || s.nest.pid != 0 && parent == s.nest.pid
}

package broker

import (
	"errors"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/grant/board"
	"github.com/longshore/longshore/internal/shortage"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/program"
)

// handle is the board's end of a handle.
type handle struct {
	fd      int
	of      *container
	handle  board.Handle
	room    int
	stalled bool    // its answers wait to be read
	asks    bool    // a request is being answered
	reached *server // by the request that is being answered
}

// newHandle makes a handle of a container, and returns the end that a program gets.
func (b *broker) newHandle(c *container, h board.Handle) (other int, err error) {
	labels := size(h.Labels())
	full := func() bool {
		return len(c.handles) >= maxHandles || c.labels+labels > maxLabels || b.aside[h.Realm()] >= maxAside
	}
	if full() {
		b.sweep(c)
	}
	if full() {
		return -1, errContainerFull
	}
	own, other, err := pair(unix.SOCK_SEQPACKET)
	if err != nil {
		return -1, err
	}
	if err := b.holdHandle(c, own, h); err != nil {
		_, _ = unix.Close(own), unix.Close(other)
		return -1, err
	}
	return other, nil
}

// holdHandle adds a handle to its container. fd is the board's end.
func (b *broker) holdHandle(c *container, fd int, h board.Handle) (err error) {
	n := &handle{fd: fd, of: c, handle: h}
	if n.room, err = room(fd); err != nil {
		return err
	}
	if err := b.add(fd, n, unix.EPOLLIN); err != nil {
		return err
	}
	c.handles[n], c.labels = true, c.labels+size(h.Labels())
	return nil
}

// sweep removes a container's closed handles and servers, even before epoll reports them, so that
// they no longer count.
func (b *broker) sweep(c *container) {
	var all []unix.PollFd
	for h := range c.handles {
		if !h.asks { // the one that asks is left until it is answered
			all = append(all, unix.PollFd{Fd: int32(h.fd)})
		}
	}
	for s := range c.servers {
		all = append(all, unix.PollFd{Fd: int32(s.fd)})
	}
	if _, err := unix.Poll(all, 0); err != nil {
		return
	}
	for _, p := range all {
		if p.Revents&unix.POLLHUP != 0 {
			b.peers[int(p.Fd)].ready(b, unix.EPOLLHUP)
		}
	}
}

func (h *handle) close(b *broker) {
	if !h.of.handles[h] {
		return
	}
	delete(h.of.handles, h)
	h.of.labels -= size(h.handle.Labels())
	delete(b.peers, h.fd)
	_ = unix.EpollCtl(b.ep, unix.EPOLL_CTL_DEL, h.fd, nil)
	b.closeAside(h.handle.Realm(), h.fd)
	b.left(h.of)
}

// ready reads one request and answers it.
func (h *handle) ready(b *broker, events uint32) {
	switch {
	case events&(unix.EPOLLHUP|unix.EPOLLERR) != 0:
		h.close(b)
		return
	case waits(h.fd) > h.room:
		if !h.stalled {
			h.stalled = true
			b.await(h.fd, unix.EPOLLOUT)
		}
		return
	case h.stalled:
		h.stalled = false
		b.await(h.fd, unix.EPOLLIN)
		return
	}
	// There is no room for descriptors. Receiving a message with descriptors would lose them here, so peek first.
	_, _, flags, _, err := unix.Recvmsg(h.fd, b.buf[:1], nil, unix.MSG_DONTWAIT|unix.MSG_PEEK)
	if err == nil && flags&unix.MSG_CTRUNC != 0 {
		h.close(b)
		return
	}
	n, _, flags, _, err := unix.Recvmsg(h.fd, b.buf[:program.MaxRequest+1], nil, unix.MSG_DONTWAIT)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return
	}
	if err != nil || n == 0 { // it is closed
		h.close(b)
		return
	}
	if flags&unix.MSG_TRUNC != 0 {
		n = program.MaxRequest + 1
	}
	h.asks = true
	answer, other := h.answer(b, b.buf[:n])
	h.asks = false
	body, err := program.Encode(answer)
	if err == nil {
		err = send(h.fd, body, other)
	}
	if other >= 0 && shortage.Is(err) && !weaken.Off(weaken.BoardShortage) { // mostly: too many descriptors are under way between processes of this user
		answer = program.Answer{ID: answer.ID, Error: &program.Error{Code: program.Full, Text: "no descriptor can be sent: " + err.Error()}}
		if body, err = program.Encode(answer); err == nil {
			err = send(h.fd, body, -1)
		}
	}
	switch {
	case other >= 0 && h.reached != nil:
		b.closeAside(h.reached.realm, other)
	case other >= 0:
		_ = unix.Close(other)
	}
	h.reached = nil
	if err != nil {
		h.close(b)
	}
}

// answer carries out a request. The descriptor is to be sent with the answer, and closed.
func (h *handle) answer(b *broker, message []byte) (a program.Answer, other int) {
	other = -1
	r, err := program.DecodeRequest(message)
	a.ID = r.ID
	if err != nil {
		a.Error = &program.Error{Code: program.Invalid, Text: clipped(err.Error())}
		return a, other
	}
	narrow, err := h.handle.Narrow(kept(r), r.Labels)
	if err == nil {
		switch r.Op {
		case program.OpConnect:
			var c board.Connection
			c, other, err = b.connect(narrow)
			a.Labels, h.reached = c.Labels, b.servers[c.Server]
		case program.OpServe:
			other, err = b.serve(h.of, narrow)
			a.Labels = narrow.Labels()
		case program.OpNarrow:
			other, err = b.newHandle(h.of, narrow)
			a.Labels, a.Rights = narrow.Labels(), rights(narrow)
		case program.OpShow:
			a.Labels, a.Rights = narrow.Labels(), rights(narrow)
		}
	}
	if err != nil {
		return program.Answer{ID: r.ID, Error: &program.Error{Code: code(err), Text: clipped(err.Error())}}, -1
	}
	return a, other
}

// kept are the rights that a request keeps.
func kept(r program.Request) board.Rights {
	if len(r.Rights) == 0 {
		return board.Serve | board.Connect
	}
	var all board.Rights
	for _, right := range r.Rights {
		if right == program.MayServe {
			all |= board.Serve
		} else {
			all |= board.Connect
		}
	}
	return all
}

func rights(h board.Handle) (all []program.Right) {
	if h.Rights()&board.Connect != 0 {
		all = append(all, program.MayConnect)
	}
	if h.Rights()&board.Serve != 0 {
		all = append(all, program.MayServe)
	}
	return all
}

var errContainerFull = errors.New("the container has as many handles, servers and labels as it may have")

func code(err error) program.Code {
	for _, c := range []struct {
		err  error
		code program.Code
	}{
		{board.ErrNoServer, program.NoServer},
		{board.ErrBusy, program.Busy},
		{board.ErrNotPermitted, program.NotPermitted},
		{board.ErrInvalid, program.Invalid},
		{board.ErrFull, program.Full},
		{errContainerFull, program.Full},
	} {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return program.Full // the process lacks something
}

// clipped is an error's text of a bounded length: it may name a program's labels.
func clipped(s string) string {
	const most = 4 << 10
	if len(s) > most {
		s = strings.ToValidUTF8(s[:most], "") + "…"
	}
	return s
}

// connect makes a connection, sends one end to the server, and returns the other one.
func (b *broker) connect(h board.Handle) (c board.Connection, other int, err error) {
	own, other, err := pair(unix.SOCK_STREAM)
	if err != nil {
		return c, -1, err
	}
	var dead []*server
	c, err = b.match.Connect(h, func(c board.Connection) bool {
		s := b.servers[c.Server]
		if b.aside[s.realm] >= maxAside {
			return false
		}
		gone, taken := s.offer(c, own)
		if gone {
			dead = append(dead, s)
		}
		return taken
	})
	_ = unix.Close(own)
	for _, s := range dead {
		s.close(b)
	}
	if err != nil {
		_ = unix.Close(other)
		if errors.Is(err, board.ErrBusy) && len(dead) > 0 { // those that are left decide
			return b.connect(h)
		}
		return c, -1, err
	}
	b.made++
	return c, other, nil
}

// server is the board's end of the socket over which a server gets its connections.
type server struct {
	fd     int
	id     board.ServerID
	of     *container
	realm  board.Realm
	handle board.Handle
	size   int // bytes of its labels
	room   int
}

// serve starts a server, and returns the end that the program gets.
func (b *broker) serve(c *container, h board.Handle) (other int, err error) {
	labels := size(h.Labels())
	full := func() bool {
		return len(c.servers) >= maxServers || c.labels+labels > maxLabels || b.aside[h.Realm()] >= maxAside
	}
	if full() {
		b.sweep(c)
	}
	if full() {
		return -1, errContainerFull
	}
	own, other, err := pair(unix.SOCK_SEQPACKET)
	if err != nil {
		return -1, err
	}
	if err := b.holdServer(c, own, h); err != nil {
		_, _ = unix.Close(own), unix.Close(other)
		return -1, err
	}
	return other, nil
}

// holdServer adds a server to its container. fd is the board's end.
func (b *broker) holdServer(c *container, fd int, h board.Handle) error {
	s := &server{fd: fd, of: c, realm: h.Realm(), handle: h, size: size(h.Labels())}
	// The board reads nothing from it, and waits for its end only.
	err := unix.Shutdown(fd, unix.SHUT_RD)
	if err == nil {
		s.room, err = room(fd)
	}
	if err == nil {
		s.id, err = b.match.Start(h)
	}
	if err != nil {
		return err
	}
	if err := b.add(fd, s, 0); err != nil {
		b.match.Stop(s.id)
		return err
	}
	b.servers[s.id] = s
	c.servers[s], c.labels = true, c.labels+s.size
	return nil
}

// ready is called when the server has closed its end.
func (s *server) ready(b *broker, events uint32) {
	if events&(unix.EPOLLHUP|unix.EPOLLERR) != 0 {
		s.close(b)
	}
}

func (s *server) close(b *broker) {
	if b.servers[s.id] != s {
		return
	}
	b.match.Stop(s.id)
	delete(b.servers, s.id)
	delete(s.of.servers, s)
	s.of.labels -= s.size
	b.remove(s.fd)
	b.left(s.of)
}

// offer sends a connection to the server, unless too many wait for it already.
func (s *server) offer(c board.Connection, fd int) (gone, taken bool) {
	if waits(s.fd) > s.room {
		return false, false
	}
	body, err := program.Encode(program.Arrival{Labels: c.Labels})
	if err != nil {
		return false, false
	}
	switch err := send(s.fd, body, fd); {
	case err == nil:
		return false, true
	case errors.Is(err, unix.EPIPE) || errors.Is(err, unix.ECONNRESET):
		return true, false
	default: // no room for it, here or in the whole node
		return false, false
	}
}

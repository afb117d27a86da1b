package server

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// copies has the items that one client has copies of. With them it starts the next pair when keeper
// and nest die together. The keeper never waits for it: an item that cannot be sent now is sent
// later, in its state then.
type copies struct {
	id    uint64 // of the request
	has   map[string][]sentCopy
	stale map[string]struct{} // the keys of items that have changed since
	all   bool                // all items of the time of the request have been sent
}

// sentCopy is a descriptor that the client has.
type sentCopy struct {
	role wire.Role
	fd   int // our number of it, which another file of the same role does not have
}

// copyAll answers a request for copies.
func (c *conn) copyAll(s *Server, id uint64) {
	c.copies = &copies{id: id, has: map[string][]sentCopy{}, stale: map[string]struct{}{}}
	for _, p := range s.procs {
		c.copies.stale[p.key] = struct{}{}
	}
	for name := range s.heldFiles {
		c.copies.stale[wire.HeldPrefix+name] = struct{}{}
	}
	s.copying, s.copyAt = true, time.Time{}
}

// changed has the item with this key copied soon.
func (s *Server) changed(key string) {
	for _, c := range s.conns {
		if c.copies == nil {
			continue
		}
		c.copies.stale[key] = struct{}{}
		if !s.copying {
			s.copying, s.copyAt = true, time.Now().Add(copyAfter)
		}
	}
}

// copyAfter is how long after a change its copy is sent. Most processes change several times within
// that time, and some have been forgotten by then.
const copyAfter = 10 * time.Millisecond

// copyNow sends copies at the end of this turn, for a change that the process waits for.
func copyNow(s *Server) { s.copyAt = time.Time{} }

// copyWait returns for how many milliseconds the loop may sleep until copies are to be sent; -1 means
// for ever.
func copyWait(s *Server) int {
	if !s.copying {
		return -1
	}
	return int(max(0, time.Until(s.copyAt)+time.Millisecond-1) / time.Millisecond)
}

// sendCopies sends the changed items. It comes after the answers of this turn, so that nobody waits
// for it.
func sendCopies(s *Server) {
	if !s.copying || time.Now().Before(s.copyAt) {
		return
	}
	s.copying = false
	for _, c := range s.conns {
		if c.copies != nil && len(c.out) == 0 {
			c.sendCopies(s)
		}
	}
}

func (c *conn) sendCopies(s *Server) {
	k := c.copies
	for key := range k.stale {
		if !c.trySend(s, k.send(s, c.fd, key)) {
			return
		}
		delete(k.stale, key)
	}
	if c.copies != nil && !k.all && c.trySend(s, s.sender.Send(kernel.TrySend, c.fd, wire.Header{Kind: wire.KindCopyDropped, ID: k.id}, &wire.Drop{}, nil)) {
		k.all = true
	}
}

// copyRetry is when a copy is sent again that a shortage has kept back.
const copyRetry = time.Second

// trySend reports whether a copy was sent. If it was not, it is sent when there is room, or later.
func (c *conn) trySend(s *Server, err error) bool {
	switch {
	case err == nil:
		return true
	case errors.Is(err, unix.EAGAIN):
		s.change(c.fd, unix.EPOLLIN|unix.EPOLLOUT)
	case errors.Is(err, unix.EPIPE), errors.Is(err, unix.ECONNRESET):
		c.closeConn(s)
	default: // a shortage of memory or of descriptors in flight
		logLine("send a copy: " + err.Error() + "; trying again")
		s.copying, s.copyAt = true, time.Now().Add(copyRetry)
	}
	return false
}

// send sends one item, or that there is none any more.
func (k *copies) send(s *Server, to int, key string) error {
	it, fds, ok := copyOf(s, key)
	if !ok {
		delete(k.has, key)
		return s.sender.Send(kernel.TrySend, to, wire.Header{Kind: wire.KindCopyDropped, ID: k.id}, &wire.Drop{Key: key}, nil)
	}
	var has []sentCopy
	var roles []wire.Role
	var send []int
	for i, r := range it.Roles {
		one := sentCopy{r, fds[i]}
		has = append(has, one)
		if k.knows(key, one) {
			it.Keep = append(it.Keep, r)
		} else {
			roles, send = append(roles, r), append(send, fds[i])
		}
	}
	it.Roles = roles
	err := s.sender.Send(kernel.TrySend, to, wire.Header{Kind: wire.KindCopy, ID: k.id}, &it, send)
	if err == nil {
		k.has[key] = has
	}
	return err
}

func (k *copies) knows(key string, one sentCopy) bool {
	for _, x := range k.has[key] {
		if x == one {
			return true
		}
	}
	return false
}

// copyOf is the item with this key, without the FIFOs that are sinks: their readers see the end
// only when the last descriptor has closed, which must not wait for a client.
func copyOf(s *Server, key string) (it wire.Item, fds []int, ok bool) {
	all, open, ok := itemOf(s, key)
	if _, held := heldName(key); held || !ok {
		return all, open, ok
	}
	it = all
	it.Roles = nil
	for i, r := range all.Roles {
		if r < wire.RoleSink {
			it.Roles, fds = append(it.Roles, r), append(fds, open[i])
		}
	}
	return it, fds, true
}

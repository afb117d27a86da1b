package hostvsock

import (
	"io"
	"net"
	"sync"
)

// conn is one connection. All of its fields but the first ones belong to the mux's mu.
type conn struct {
	*mux
	ports

	changed *sync.Cond // in, out or an end
	host    net.Conn   // nil: being dialed
	opened  chan struct{}
	ended   chan struct{}
	isOpen  bool
	gone    bool // it has ended, and is no longer among the mux's

	// From the host to the guest.
	in         []byte // read, and not yet sent
	queued     bool   // it is among the ready ones
	inEnd      bool   // the host has ended its output
	endSent    bool
	guestStops bool // the guest takes no more
	sent       uint32
	peerAlloc  uint32
	peerTook   uint32

	// From the guest to the host.
	out       []byte // received, and not yet written
	outEnd    bool   // the guest has ended its output
	flushed   bool   // and all of it is written
	came      uint32
	wrote     uint32
	announced uint32 // the part of wrote that the guest has received
}

func newConn(m *mux, p ports, host net.Conn) *conn {
	return &conn{mux: m, ports: p, host: host, changed: sync.NewCond(&m.mu), opened: make(chan struct{}), ended: make(chan struct{})}
}

// fillLocked completes the head of a packet. Preconditions: mu is held.
func (c *conn) fillLocked(h *header) {
	h.srcCID, h.dstCID, h.srcPort, h.dstPort, h.kind = hostCID, c.mux.guest, c.ports.host, c.ports.guest, stream
	h.bufAlloc, h.fwdCnt = buffer, c.wrote
	c.announced = c.wrote
}

// creditLocked stores the guest's report of its buffer. Preconditions: mu is held.
func (c *conn) creditLocked(h *header) { c.peerAlloc, c.peerTook = h.bufAlloc, h.fwdCnt }

// roomLocked is how much the guest may be sent. Preconditions: mu is held.
func (c *conn) roomLocked() uint32 {
	if used := c.sent - c.peerTook; used < c.peerAlloc {
		return c.peerAlloc - used
	}
	return 0
}

// receiveLocked takes a packet of the connection. Preconditions: mu is held.
func (c *conn) receiveLocked(h *header, payload []byte) {
	c.creditLocked(h)
	switch {
	case h.op == opResponse && !c.isOpen && c.host != nil:
		c.isOpen = true
		close(c.opened)
	case !c.isOpen:
		c.resetLocked()
	case h.op == opData && !c.outEnd && c.came-c.wrote+h.length <= buffer:
		c.came += h.length
		c.out = append(c.out, payload...)
	case h.op == opCreditUpdate:
	case h.op == opCreditRequest:
		c.sendLocked(c, opCreditUpdate, 0)
	case h.op == opShutdown:
		c.outEnd = c.outEnd || h.flags&noSend != 0
		c.guestStops = c.guestStops || h.flags&noReceive != 0
	default:
		c.resetLocked()
	}
	c.moveLocked()
	c.changed.Broadcast()
}

// moveLocked sends as much as possible to the guest. Preconditions: mu is held.
func (c *conn) moveLocked() {
	switch {
	case c.gone:
	case c.guestStops && c.outEnd:
		if c.flushed {
			c.resetLocked() // as the last one to close
		}
	case c.guestStops:
		c.in = nil
	case len(c.in) > 0 && !c.queued && c.roomLocked() > 0:
		c.queued = true
		c.ready = append(c.ready, c)
	case len(c.in) == 0 && c.inEnd && !c.endSent:
		c.endSent = true
		c.sendLocked(c, opShutdown, noSend)
	}
	if len(c.in) == 0 {
		c.changed.Broadcast()
	}
}

// resetLocked ends the connection, and tells the guest. Preconditions: mu is held.
func (c *conn) resetLocked() {
	if !c.gone {
		c.sendLocked(c, opReset, 0)
		c.dropLocked()
	}
}

// dropLocked ends the connection on this side. Preconditions: mu is held.
func (c *conn) dropLocked() {
	if c.gone {
		return
	}
	c.gone = true
	delete(c.conns, c.ports)
	close(c.ended)
	if c.host != nil {
		_ = c.host.Close()
	}
	c.changed.Broadcast()
}

// answer connects the guest's request to the host's listener.
func (c *conn) answer() {
	host, err := c.dial(c.ports.host)
	c.mu.Lock()
	switch {
	case c.gone && err == nil:
		_ = host.Close()
	case err != nil:
		c.resetLocked()
	default:
		c.host, c.isOpen = host, true
		c.sendLocked(c, opResponse, 0)
		close(c.opened)
		c.tasks.Go(func() { c.read(host) })
		c.tasks.Go(func() { c.write(host) })
	}
	c.mu.Unlock()
	c.wake()
}

// read passes the host's data to the guest.
func (c *conn) read(host io.Reader) {
	buf := make([]byte, maxPayload)
	for {
		n, err := host.Read(buf)
		c.mu.Lock()
		c.in = buf[:n]
		c.inEnd = err != nil
		c.moveLocked()
		c.mu.Unlock()
		c.wake()
		if err != nil {
			return
		}
		c.mu.Lock()
		for len(c.in) > 0 && !c.gone {
			c.changed.Wait()
		}
		gone := c.gone
		c.mu.Unlock()
		if gone {
			return
		}
	}
}

// write passes the guest's data to the host.
func (c *conn) write(host net.Conn) {
	for {
		c.mu.Lock()
		for len(c.out) == 0 && !c.outEnd && !c.gone {
			c.changed.Wait()
		}
		data, gone := c.out, c.gone
		c.out = nil
		c.mu.Unlock()
		if gone && len(data) == 0 {
			return
		}
		var err error
		if len(data) > 0 {
			_, err = host.Write(data)
		} else if half, ok := host.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite() // it may be gone
		}
		c.mu.Lock()
		c.wrote += uint32(len(data))
		switch {
		case err != nil:
			c.resetLocked()
		case len(data) == 0:
			c.flushed = true
			c.moveLocked()
		case c.wrote-c.announced >= buffer/4 && !c.gone:
			c.sendLocked(c, opCreditUpdate, 0)
			c.announced = c.wrote // one is enough
		}
		c.mu.Unlock()
		c.wake()
		if err != nil || len(data) == 0 {
			return
		}
	}
}

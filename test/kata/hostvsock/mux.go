package hostvsock

import (
	"errors"
	"net"
	"slices"
	"sync"
)

const (
	buffer     = 256 << 10 // the window of the guest on a connection
	maxConns   = 1024
	maxControl = 4096 // packets without data for a guest that takes none
	firstPort  = 1 << 20
)

// errFlood ends a device if its guest sends, but takes no answers.
var errFlood = errors.New("the guest takes no packets")

// mux is the host's end of all connections of a guest: it takes the guest's packets,
// and has those for the guest.
type mux struct {
	guest uint64 // its CID
	// dial connects to the listener at a port of the host.
	dial func(port uint32) (net.Conn, error)
	// wake says that next has something. It is called without mu.
	wake func()

	tasks sync.WaitGroup // reading from and writing to the host's side

	mu       sync.Mutex // guards serving, conns, control, ready, lastPort
	serving  bool       // the guest takes packets
	conns    map[ports]*conn
	control  []control
	ready    []*conn // that have data, in turn
	lastPort uint32
}

// ports tell a connection from others.
type ports struct{ host, guest uint32 }

// control is a packet without data.
type control struct {
	header

	of *conn // nil: of no connection
}

func newMux(guest uint64, dial func(uint32) (net.Conn, error), wake func()) *mux {
	return &mux{guest: guest, dial: dial, wake: wake, conns: map[ports]*conn{}, lastPort: firstPort}
}

// serve says whether the guest takes packets. When it does no longer, all connections end.
func (m *mux) serve(yes bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.serving = yes
	if !yes {
		for _, c := range m.conns {
			c.dropLocked()
		}
		m.control, m.ready = nil, nil
	}
}

// close ends all connections, and waits for their goroutines.
func (m *mux) close() {
	m.serve(false)
	m.tasks.Wait()
}

// open asks the guest for a connection of the host's end to one of its ports. The connection's
// opened or ended reports the result; on an error the end is closed.
func (m *mux) open(host net.Conn, port uint32) (*conn, error) {
	m.mu.Lock()
	if !m.serving || len(m.conns) >= maxConns {
		m.mu.Unlock()
		return nil, errors.Join(errors.New("the guest takes no connection"), host.Close())
	}
	for {
		m.lastPort = max(m.lastPort+1, firstPort)
		if m.conns[ports{m.lastPort, port}] == nil {
			break
		}
	}
	c := newConn(m, ports{m.lastPort, port}, host)
	m.conns[c.ports] = c
	m.sendLocked(c, opRequest, 0)
	m.mu.Unlock()
	m.wake()
	return c, nil
}

// receive takes a packet of the guest. It does not wait. Its error ends the device.
func (m *mux) receive(h *header, payload []byte) error {
	if h.srcCID != m.guest || h.dstCID != hostCID {
		return nil // to nobody
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.control) >= maxControl {
		return errFlood
	}
	c := m.conns[ports{h.dstPort, h.srcPort}]
	switch {
	case h.op == opReset:
		if c != nil {
			c.dropLocked()
		}
	case h.kind != stream:
		m.refuseLocked(h)
	case c != nil:
		c.receiveLocked(h, payload)
	case h.op == opRequest && len(m.conns) < maxConns:
		c = newConn(m, ports{h.dstPort, h.srcPort}, nil)
		c.creditLocked(h)
		m.conns[c.ports] = c
		m.tasks.Go(c.answer)
	default:
		m.refuseLocked(h)
	}
	return nil
}

// refuseLocked answers a packet that belongs to no connection. Preconditions: mu is held.
func (m *mux) refuseLocked(h *header) {
	m.control = append(m.control, control{header: header{srcCID: hostCID, dstCID: m.guest, srcPort: h.dstPort, dstPort: h.srcPort, kind: h.kind, op: opReset}})
}

// sendLocked sends a packet without data. Preconditions: mu is held.
func (m *mux) sendLocked(c *conn, op uint16, flags uint32) {
	m.control = append(m.control, control{header: header{op: op, flags: flags}, of: c})
}

// next gives the next packet for the guest to put, if there is one: its payload has at
// most the given length. put is called with mu held.
func (m *mux) next(most int, put func(h *header, payload []byte)) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.control) > 0 {
		p := m.control[0]
		m.control = slices.Delete(m.control, 0, 1)
		if p.of != nil {
			p.of.fillLocked(&p.header)
		}
		put(&p.header, nil)
		return true
	}
	for len(m.ready) > 0 {
		c := m.ready[0]
		m.ready = slices.Delete(m.ready, 0, 1)
		c.queued = false
		if n := min(len(c.in), int(c.roomLocked()), most); n > 0 && !c.gone {
			h := header{op: opData, length: uint32(n)}
			c.sent += uint32(n)
			c.fillLocked(&h)
			put(&h, c.in[:n])
			c.in = c.in[n:]
			c.moveLocked()
			return true
		}
	}
	return false
}

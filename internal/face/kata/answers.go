package kata

import (
	"context"
	"encoding/binary"
	"net"
	"sync"

	"github.com/longshore/longshore/internal/shortage"
)

// answers knows which requests on the connections of a server have no answer yet. The
// server itself does not: it learns that a connection has an open request only when
// another one there is answered, and its Shutdown then cuts the only answer off.
type answers struct {
	mu      sync.Mutex // guards open, conns, changed
	open    int        // requests without an answer
	conns   int        // connections that nobody has closed
	changed chan struct{}
}

// wait returns when every request that was read is answered, or its connection closed.
func (a *answers) wait(ctx context.Context) error {
	return a.until(ctx, func(open, _ int) bool { return open <= 0 })
}

// left returns when every connection is closed.
func (a *answers) left(ctx context.Context) error {
	return a.until(ctx, func(_, conns int) bool { return conns <= 0 })
}

// until waits for numbers of open requests and of connections.
func (a *answers) until(ctx context.Context, reached func(open, conns int) bool) error {
	for {
		a.mu.Lock()
		ok := reached(a.open, a.conns)
		if !ok && a.changed == nil {
			a.changed = make(chan struct{})
		}
		changed := a.changed
		a.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (a *answers) add(requests, conns int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open += requests
	a.conns += conns
	if a.changed != nil {
		close(a.changed)
		a.changed = nil
	}
}

// answeredListener counts the requests and the answers of its connections.
type answeredListener struct {
	net.Listener
	answers *answers
}

func (l answeredListener) Accept() (net.Conn, error) {
	c, err := shortage.Accept(l.Listener.Accept)
	if err != nil {
		return nil, err
	}
	l.answers.add(0, 1)
	return &answeredConn{Conn: c, answers: l.answers}, nil
}

// answeredConn counts a connection's messages. All calls of the agent are unary: each
// message in is a request and each message out the answer of one.
type answeredConn struct {
	net.Conn
	answers *answers

	mu     sync.Mutex // guards in, out, open, closed
	in     messages
	out    messages
	open   int
	closed bool
}

func (c *answeredConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.countLocked(c.in.feed(p[:n]))
	return n, err
}

func (c *answeredConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.countLocked(-c.out.feed(p[:n]))
	return n, err
}

// countLocked adds n requests that have no answer.
func (c *answeredConn) countLocked(n int) {
	if !c.closed && n != 0 {
		c.open += n
		c.answers.add(n, 0)
	}
}

// Close closes the connection. Nobody waits for its answers any more.
func (c *answeredConn) Close() error {
	err := c.Conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.closed {
		c.closed = true
		c.answers.add(-c.open, -1)
	}
	return err
}

// headerLength is how long the header of a ttrpc message is: four bytes of length, then
// stream, type and flags.
const headerLength = 10

// messages counts the messages of one direction.
type messages struct {
	header [headerLength]byte
	have   int    // bytes of header
	left   uint32 // bytes of the message behind it
}

// feed returns how many messages end in p.
func (m *messages) feed(p []byte) int {
	ended := 0
	for len(p) > 0 {
		if m.have < headerLength {
			n := copy(m.header[m.have:], p)
			m.have, p = m.have+n, p[n:]
			if m.have < headerLength {
				return ended
			}
			m.left = binary.BigEndian.Uint32(m.header[:4])
		}
		n := uint32(min(uint64(len(p)), uint64(m.left)))
		m.left, p = m.left-n, p[n:]
		if m.left == 0 {
			ended++
			m.have = 0
		}
	}
	return ended
}

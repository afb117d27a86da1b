package ca

import (
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/longshore/longshore/internal/connlimit/incomplete"
)

// maxIncomplete bounds the bytes of a node's incomplete messages, in all of its connections: four of the largest. A
// correct node finishes a message before it begins the next one.
const maxIncomplete = 16 << 20

// maxStranger is how many bytes a client without a certificate may send in one connection: it
// joins, and asks until somebody has accepted it. Without that bound each of its calls could hold
// a message of several MiB.
const maxStranger = 256 << 10

// stranger is the connection of such a client.
type stranger struct {
	net.Conn
	left int
}

var errStranger = errors.New("a client without a certificate has sent too much")

// Read implements net.Conn. One goroutine reads.
func (s *stranger) Read(p []byte) (int, error) {
	if s.left <= 0 {
		return 0, errStranger
	}
	n, err := s.Conn.Read(p[:min(len(p), s.left)])
	s.left -= n
	return n, err
}

// lapsing is the connection of a node. When the node is revoked, it may send as much as a stranger:
// its calls are refused, and its open streams end.
type lapsing struct {
	net.Conn
	allowed func() bool
	left    int
}

// Read implements net.Conn. One goroutine reads.
func (l *lapsing) Read(p []byte) (int, error) {
	n, err := l.Conn.Read(p)
	if !l.allowed() {
		if l.left -= n; l.left < 0 {
			return 0, errStranger
		}
	}
	return n, err
}

// maxConnections is how many connections one node may have. It needs one, and has more for a
// moment when it comes back before the hub has noticed that it was gone.
const maxConnections = 8

// connections are those that nodes have.
type connections struct {
	mu sync.Mutex // guards of
	of map[string]*ofNode
}

// ofNode has the connections of one node, and the buffered bytes of its incomplete messages.
type ofNode struct {
	raw  []net.Conn
	kept atomic.Int64
}

// begin counts a connection of a node, and closes its oldest one when it has too many.
func (c *connections) begin(node string, conn, raw net.Conn) net.Conn {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.of[node]
	if of == nil {
		of = new(ofNode)
		c.of[node] = of
	}
	if len(of.raw) >= maxConnections {
		_ = of.raw[0].Close()
		of.raw = of.raw[1:]
	}
	of.raw = append(slices.Clip(of.raw), raw)
	return &counted{incomplete.Limit(conn, &of.kept, maxIncomplete), sync.OnceFunc(func() { c.end(node, raw) })}
}

func (c *connections) end(node string, raw net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	of := c.of[node]
	if of == nil {
		return
	}
	if of.raw = slices.DeleteFunc(slices.Clone(of.raw), func(other net.Conn) bool { return other == raw }); len(of.raw) == 0 {
		delete(c.of, node)
	}
}

// counted is the connection of a node.
type counted struct {
	net.Conn
	end func()
}

// Close implements net.Conn.
func (c *counted) Close() error {
	c.end()
	return c.Conn.Close()
}

package ui

import (
	"net"
	"sync"

	"github.com/longshore/longshore/internal/shortage"
)

// maxConnections bounds the open connections. More wait in the kernel's queue.
const maxConnections = 128

// Bound returns a listener with a bound on its open connections. Put TLS above it: an HTTP server recognizes TLS by the type of the
// connection.
func Bound(l net.Listener) net.Listener {
	return &bounded{Listener: l, free: make(chan struct{}, maxConnections)}
}

// bounded is a listener with a bound on its open connections.
type bounded struct {
	net.Listener
	free chan struct{}
}

// Accept waits for a free place and a connection.
func (b *bounded) Accept() (net.Conn, error) {
	b.free <- struct{}{}
	c, err := shortage.Accept(b.Listener.Accept)
	if err != nil {
		<-b.free
		return nil, err
	}
	return &counted{Conn: c, release: sync.OnceFunc(func() { <-b.free })}, nil
}

type counted struct {
	net.Conn
	release func()
}

// Close closes the connection and frees its place.
func (c *counted) Close() error {
	defer c.release()
	return c.Conn.Close()
}

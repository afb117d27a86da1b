package connlimit

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"sync"
	"syscall"
)

// Listen bounds the connections that inner accepts.
func (l *Limit) Listen(inner net.Listener) net.Listener {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &listener{Listener: inner, limit: l, ctx: ctx, cancel: cancel}
}

type listener struct {
	net.Listener
	limit  *Limit
	ctx    context.Context //nolint:containedctx // ends with the listener
	cancel context.CancelCauseFunc
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			// Without a descriptor left an idle connection can go as well.
			if (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && l.limit.evictIdle(l.ctx) {
				continue
			}
			return nil, err
		}
		slot, err := l.limit.Admit(l.ctx, c.RemoteAddr(), func() { _ = c.Close() })
		if err == nil {
			return &conn{Conn: c, slot: slot}, nil
		}
		_ = c.Close()
		if !errors.Is(err, ErrRefused) {
			return nil, err
		}
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.cancel(net.ErrClosed)
	return l.Listener.Close()
}

// conn is a connection in its slot.
type conn struct {
	net.Conn
	slot *Slot
	once sync.Once
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.slot.touch()
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	if n > 0 {
		c.slot.touch()
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() error {
	c.once.Do(c.slot.Release)
	return c.Conn.Close()
}

// RemoteAddr implements net.Conn. The address leads to the slot: it is all that a
// gRPC server shows its interceptors of a connection.
func (c *conn) RemoteAddr() net.Addr { return addr{c.Conn.RemoteAddr(), c.slot} }

type addr struct {
	net.Addr
	*Slot
}

// slotOf is the slot of a connection that a Limit has admitted, which TLS may cover;
// nil for another.
func slotOf(c net.Conn) *Slot {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	if own, ok := c.(*conn); ok {
		return own.slot
	}
	return nil
}

// ConnState is for an http.Server: it keeps account of which connections have a
// request in flight. One that is hijacked counts as having one until it is closed.
func ConnState(c net.Conn, state http.ConnState) {
	s := slotOf(c)
	if s == nil {
		return
	}
	switch state {
	case http.StateActive, http.StateHijacked:
		s.calls.Store(1)
	case http.StateNew, http.StateIdle, http.StateClosed:
		s.calls.Store(0)
	}
}

type slotKey struct{}

// ConnContext is for an http.Server: it lets Authenticate find the connection of a
// request.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, slotKey{}, slotOf(c))
}

// Authenticate marks the client of a request's connection as authenticated.
func Authenticate(ctx context.Context) {
	if s, _ := ctx.Value(slotKey{}).(*Slot); s != nil {
		s.Authenticate()
	}
}

package connlimit

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/shortage"
)

// Listen limits the connections that inner accepts.
func (l *Limit) Listen(inner net.Listener) net.Listener {
	ctx, cancel := context.WithCancelCause(context.Background())
	return &listener{Listener: inner, limit: l, ctx: ctx, cancel: cancel}
}

// Lasting returns a listener without a limit that, as those with one, outlasts a shortage of descriptors
// or memory. Servers end when an accept fails with an error other than EMFILE and ENFILE.
func Lasting(l net.Listener) net.Listener { return lasting{l} }

type lasting struct{ net.Listener }

// Accept implements net.Listener.
func (l lasting) Accept() (net.Conn, error) { return shortage.Accept(l.Listener.Accept) }

type listener struct {
	net.Listener
	limit  *Limit
	ctx    context.Context //nolint:containedctx // ends with the listener
	cancel context.CancelCauseFunc
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := shortage.Accept(l.acceptOrEvict)
		if err != nil {
			return nil, err
		}
		slot, err := l.limit.Admit(l.ctx, c.RemoteAddr(), func() { _ = c.Close() })
		if err == nil {
			slot.cred = credOf(c)
			return &conn{Conn: c, slot: slot}, nil
		}
		_ = c.Close()
		if !errors.Is(err, ErrRefused) {
			return nil, err
		}
	}
}

// acceptOrEvict accepts a connection. When no descriptors are left, closing an idle connection helps as well.
func (l *listener) acceptOrEvict() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if (errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)) && l.limit.evictIdle(l.ctx) {
			continue
		}
		return c, err
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.cancel(net.ErrClosed)
	return l.Listener.Close()
}

// credOf returns the process at the other end of a unix socket, nil for other connections.
func credOf(c net.Conn) (cred *unix.Ucred) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil
	}
	_ = raw.Control(func(fd uintptr) {
		if got, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			cred = got
		}
	})
	return cred
}

// Peer describes the client: its process, or its address. It may be "".
func (s *Slot) Peer() string {
	if s.cred != nil {
		return fmt.Sprintf("uid %d, pid %d", s.cred.Uid, s.cred.Pid)
	}
	return s.address
}

// PeerOf returns Slot.Peer of a request's connection; see ConnContext.
func PeerOf(ctx context.Context) string {
	if s, _ := ctx.Value(slotKey{}).(*Slot); s != nil {
		return s.Peer()
	}
	return ""
}

// conn is a connection with its slot.
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

// NetConn returns the connection without the limit, as that of a tls.Conn does. Only Close of the outer one releases the slot.
func (c *conn) NetConn() net.Conn { return c.Conn }

// RemoteAddr implements net.Conn. The address leads to the slot, because it is all that a gRPC
// server shows to its interceptors of a connection.
func (c *conn) RemoteAddr() net.Addr { return addr{c.Conn.RemoteAddr(), c.slot} }

type addr struct {
	net.Addr
	*Slot
}

// slotOf returns the slot of a connection that a Limit has admitted, also below TLS; nil for
// others.
func slotOf(c net.Conn) *Slot {
	own, ok := c.(*conn)
	if t, above := c.(interface{ NetConn() net.Conn }); above && !ok { // *tls.Conn, which the guest agent does without
		own, ok = t.NetConn().(*conn)
	}
	if ok {
		return own.slot
	}
	return nil
}

// Busy records whether a request is in progress on a connection, for servers that have one at a
// time.
func Busy(c net.Conn, busy bool) {
	s := slotOf(c)
	switch {
	case s == nil:
	case busy:
		s.calls.Store(1)
	default:
		s.calls.Store(0)
	}
}

type slotKey struct{}

// ConnContext is for an http.Server: it lets Authenticate find a request's connection.
func ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, slotKey{}, slotOf(c))
}

// Authenticate marks the client of a request's connection as authenticated.
func Authenticate(ctx context.Context) {
	if s, _ := ctx.Value(slotKey{}).(*Slot); s != nil {
		s.Authenticate()
	}
}

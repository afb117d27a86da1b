package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/shortage"
)

// lingerTime is how long a client may take to close after we have.
const lingerTime = 5 * time.Second

// Why a connection's context ends.
var (
	errGone  = errors.New("the client has gone")                  //nolint:gochecknoglobals // an error value
	errIdle  = errors.New("the connection was idle")              //nolint:gochecknoglobals // an error value
	errRoom  = errors.New("its place went to another connection") //nolint:gochecknoglobals // an error value
	errStops = errors.New("the streaming server is ended")        //nolint:gochecknoglobals // an error value
)

// listener hands out conns, as many as limit lets in.
type listener struct {
	net.Listener
	ctx   context.Context //nolint:containedctx // the life of the connections
	idle  time.Duration
	limit *connlimit.Limit
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := shortage.Accept(l.Listener.Accept)
		if err != nil {
			return nil, err
		}
		wrapped, err := newConn(l.ctx, c, l.idle)
		if err != nil {
			_ = c.Close()
			continue
		}
		slot, err := l.limit.Admit(l.ctx, c.RemoteAddr(), func() { wrapped.abort(errRoom) })
		switch {
		case err == nil:
			wrapped.admitted(slot)
			return wrapped, nil
		case !errors.Is(err, connlimit.ErrRefused):
			wrapped.abort(err)
			return nil, net.ErrClosed
		}
		wrapped.abort(err)
	}
}

// conn is a client's connection that notices the end of the client even while nobody reads: the
// protocols above do not report it while earlier input is unread. Its Close lets the last output
// arrive.
type conn struct {
	*net.TCPConn
	ctx    context.Context //nolint:containedctx // the connection's life
	cancel context.CancelCauseFunc
	watch  *os.File // a second descriptor, to wait on while others read
	idle   time.Duration
	timer  *time.Timer
	stop   func() bool
	slot   atomic.Pointer[connlimit.Slot] // nil until it is admitted
	once   sync.Once
	closed sync.Once
}

func newConn(ctx context.Context, c net.Conn, idle time.Duration) (*conn, error) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return nil, fmt.Errorf("%T is no TCP connection", c)
	}
	watch, err := duplicate(tcp)
	if err != nil {
		return nil, err
	}
	w := &conn{TCPConn: tcp, watch: watch, idle: idle}
	w.ctx, w.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	w.timer = time.AfterFunc(idle, func() { w.abort(errIdle) })
	w.stop = context.AfterFunc(ctx, func() { w.abort(errStops) })
	return w, nil
}

// admitted gives the connection its slot, and has it end once its client has gone.
func (c *conn) admitted(slot *connlimit.Slot) {
	c.slot.Store(slot)
	if c.ctx.Err() != nil {
		slot.Release() // it ended in between
	}
	go c.waitGone()
}

func duplicate(c *net.TCPConn) (*os.File, error) {
	rc, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var derr error
	if err := rc.Control(func(own uintptr) { fd, derr = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if derr != nil {
		return nil, fmt.Errorf("duplicate a connection: %w", derr)
	}
	return os.NewFile(uintptr(fd), "client"), nil
}

// waitGone ends the connection when the client has closed its end.
func (c *conn) waitGone() {
	rc, err := c.watch.SyscallConn()
	if err == nil {
		err = rc.Read(hungUp)
	}
	if err == nil {
		c.abort(errGone)
	}
}

// hungUp reports whether nothing more will come.
func hungUp(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}

// context has parent's values and ends with the connection. The HTTP server ends
// its own when a read fails, which says less.
func (c *conn) context(parent context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(parent))
	stop := context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	return ctx, func() {
		stop()
		cancel(nil)
	}
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.TCPConn.Read(b)
	if n > 0 {
		c.timer.Reset(c.idle)
	}
	return n, err
}

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) {
	n, err := c.TCPConn.Write(b)
	if n > 0 {
		c.timer.Reset(c.idle)
	}
	return n, err
}

// Close ends the output and lets the client read it: closing a connection with unread input would
// discard the output.
func (c *conn) Close() error {
	c.closed.Do(func() {
		if c.ctx.Err() != nil || c.CloseWrite() != nil {
			c.abort(net.ErrClosed)
			return
		}
		end := time.AfterFunc(lingerTime, func() { c.abort(net.ErrClosed) })
		go func() {
			defer end.Stop()
			_, _ = io.Copy(io.Discard, c.TCPConn)
			c.abort(net.ErrClosed)
		}()
	})
	return nil
}

// abort ends the connection at once; readers and writers get an error.
func (c *conn) abort(cause error) {
	c.once.Do(func() {
		c.cancel(cause)
		c.timer.Stop()
		c.stop()
		_ = c.TCPConn.Close()
		_ = c.watch.Close()
		if slot := c.slot.Load(); slot != nil {
			slot.Release()
		}
	})
}

// underlying finds our connection below TLS.
func underlying(c net.Conn) *conn {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	own, _ := c.(*conn)
	return own
}

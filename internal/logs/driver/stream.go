package driver

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// dialPatience is the time for a connection, its handshake included.
	dialPatience = 10 * time.Second
	// stall is the time without any progress after which a connection counts as broken.
	stall = 30 * time.Second
)

// target is the address of a service.
type target struct {
	network, address string
	tls              *tlsFiles // nil without TLS
}

// tlsFiles are the files of a TLS client. They are read for each connection.
type tlsFiles struct {
	ca, cert, key string
	skip          bool
}

func (t *target) String() string { return t.network + "://" + t.address }

// dial connects to the service.
func (t *target) dial(ctx context.Context) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, t.network, t.address)
	if err != nil || t.tls == nil {
		return conn, err
	}
	conf, err := t.tls.config(t.address)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	c := tls.Client(conn, conf)
	if err := c.HandshakeContext(ctx); err != nil {
		return nil, errors.Join(fmt.Errorf("TLS with %s: %w", t.address, err), conn.Close())
	}
	return c, nil
}

func (f *tlsFiles) config(address string) (*tls.Config, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, InsecureSkipVerify: f.skip} //nolint:gosec // the user's option says so
	if f.ca != "" {
		pem, err := os.ReadFile(f.ca)
		if err != nil {
			return nil, err
		}
		conf.RootCAs = x509.NewCertPool()
		if !conf.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s has no certificate", f.ca)
		}
	}
	if f.cert != "" {
		pair, err := tls.LoadX509KeyPair(f.cert, f.key)
		if err != nil {
			return nil, err
		}
		conf.Certificates = []tls.Certificate{pair}
	}
	return conf, nil
}

// buffers are those of senders that send just now: an idle one has none.
var buffers = sync.Pool{New: func() any { return new([]byte) }} //nolint:gochecknoglobals // see there

// buffer returns an empty buffer, and a function that gives it back with its final size.
func buffer() (b []byte, release func([]byte)) {
	p, _ := buffers.Get().(*[]byte)
	return (*p)[:0], func(b []byte) {
		*p = b
		buffers.Put(p)
	}
}

// write writes b to a stream. It gives up when ctx ends, and after stall without progress.
func write(ctx context.Context, conn net.Conn, b []byte) error {
	const piece = 64 << 10
	for len(b) > 0 {
		n := min(piece, len(b))
		if err := writeOnce(ctx, conn, b[:n]); err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// writeOnce is write by one call: a datagram.
func writeOnce(ctx context.Context, conn net.Conn, b []byte) error {
	if err := conn.SetWriteDeadline(time.Now().Add(stall)); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	_, err := conn.Write(b)
	return err
}

var errPeerClosed = errors.New("the service has closed the connection")

// delivered waits until the peer's kernel has acknowledged every byte, or the peer has read them from a unix socket. Before that, a
// connection that breaks has lost them.
func delivered(ctx context.Context, conn net.Conn) error {
	best, since := -1, time.Now()
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 20*time.Millisecond) {
		left, err := outstanding(conn)
		if err != nil || left == 0 {
			return err
		}
		if best < 0 || left < best {
			best, since = left, time.Now()
		}
		if time.Since(since) > stall {
			return fmt.Errorf("the service has not read anything for %v", stall)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

// outstanding returns the number of sent bytes that have not arrived. It fails when they cannot arrive any more.
func outstanding(conn net.Conn) (left int, err error) {
	cerr := onSocket(conn, func(fd int) {
		if left, err = unix.IoctlGetInt(fd, unix.SIOCOUTQ); err != nil {
			err = os.NewSyscallError("SIOCOUTQ", err)
			return
		}
		code, serr := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR)
		if serr != nil || code != 0 || left > 0 && hungUp(fd) {
			err = errors.Join(errPeerClosed, serr)
		}
	})
	return left, errors.Join(cerr, err)
}

// onSocket calls fn with the descriptor of a connection.
func onSocket(conn net.Conn, fn func(fd int)) error {
	if c, ok := conn.(*tls.Conn); ok {
		conn = c.NetConn()
	}
	s, ok := conn.(syscall.Conn)
	if !ok {
		return fmt.Errorf("%T has no descriptor", conn)
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return err
	}
	return raw.Control(func(fd uintptr) { fn(int(fd)) })
}

// hungUp reports whether the peer has closed its end, so that it reads no more.
func hungUp(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&(unix.POLLRDHUP|unix.POLLHUP|unix.POLLERR) != 0
}

// closedByPeer reports whether the service has closed an idle connection.
func closedByPeer(conn net.Conn) bool {
	closed := false
	err := onSocket(conn, func(fd int) { closed = hungUp(fd) })
	return closed || err != nil
}

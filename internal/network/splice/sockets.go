package splice

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/egress"
)

// Pair has the sockets of one family in a network namespace: a listener, and a spare socket without a connection. Both have
// egress.Mark, which the sockets of accepted connections inherit.
type Pair struct {
	Listener, Spare *os.File
	Port            uint16
}

// Close closes both.
func (p Pair) Close() error { return errors.Join(p.Listener.Close(), p.Spare.Close()) }

// Open opens a pair in the namespace of the thread, at an address of its loopback and a port that the kernel chooses.
func Open(at netip.Addr) (p Pair, err error) {
	listener, err := marked(at)
	if err != nil {
		return p, err
	}
	err = unix.Bind(listener, sockaddr(netip.AddrPortFrom(at, 0)))
	if err == nil {
		err = unix.Listen(listener, backlog)
	}
	var local netip.AddrPort
	if err == nil {
		local, err = localOf(listener)
	}
	spare := -1
	if err == nil {
		spare, err = marked(at)
	}
	if err != nil {
		return p, errors.Join(fmt.Errorf("listen at %s: %w", at, err), unix.Close(listener))
	}
	return Pair{os.NewFile(uintptr(listener), "listener"), os.NewFile(uintptr(spare), "spare"), local.Port()}, nil
}

const backlog = 256

// marked returns a socket with the mark.
func marked(at netip.Addr) (int, error) {
	domain := unix.AF_INET
	if at.Is6() {
		domain = unix.AF_INET6
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return -1, fmt.Errorf("open a socket: %w", err)
	}
	if at.Is6() {
		err = unix.SetsockoptInt(fd, unix.SOL_IPV6, unix.IPV6_V6ONLY, 1)
	}
	if err = errors.Join(err, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, egress.Mark)); err != nil {
		return -1, errors.Join(fmt.Errorf("mark a socket: %w", err), unix.Close(fd))
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Addr: a.Addr().As4(), Port: int(a.Port())}
	}
	return &unix.SockaddrInet6{Addr: a.Addr().As16(), Port: int(a.Port())}
}

func localOf(fd int) (netip.AddrPort, error) {
	at, err := unix.Getsockname(fd)
	if err != nil {
		return netip.AddrPort{}, err
	}
	switch a := at.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(a.Addr), uint16(a.Port)), nil
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(a.Addr), uint16(a.Port)), nil
	}
	return netip.AddrPort{}, unix.EAFNOSUPPORT
}

// control calls f with the descriptor of a file or a connection.
func control(c syscall.RawConn, f func(fd int) error) error {
	var result error
	err := c.Control(func(fd uintptr) { result = f(int(fd)) })
	return errors.Join(err, result)
}

func within(file *os.File, f func(fd int) error) error {
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	return control(raw, f)
}

// family makes sockets in the namespace of a pair. The process is in another namespace and may not enter this one. The kernel
// makes one socket there for each connection that a listener accepts: so the spare one connects to the listener, both ends are
// disconnected, and there are two.
type family struct {
	listener *net.TCPListener
	at       netip.AddrPort // of the listener

	making sync.Mutex // serializes socket
	spare  *os.File   // used by socket and close only

	mu      sync.Mutex // guards awaited, made
	awaited netip.AddrPort
	made    chan *net.TCPConn // receives the connection from awaited
}

// makeTime bounds one connection over loopback.
const makeTime = 5 * time.Second

// newFamily takes the files over.
func newFamily(listener, spare *os.File) (*family, error) {
	l, err := net.FileListener(listener)
	_ = listener.Close()
	if err != nil {
		return nil, errors.Join(err, spare.Close())
	}
	tcp, ok := l.(*net.TCPListener)
	if !ok {
		return nil, errors.Join(errors.New("the listener is none of TCP"), l.Close(), spare.Close())
	}
	at, err := netip.ParseAddrPort(tcp.Addr().String())
	if err != nil {
		return nil, errors.Join(err, l.Close(), spare.Close())
	}
	return &family{listener: tcp, at: at, spare: spare}, nil
}

func (f *family) close() {
	_ = f.listener.Close()
	f.making.Lock()
	defer f.making.Unlock()
	if f.spare != nil {
		_ = f.spare.Close()
		f.spare = nil
	}
}

// take reports whether an accepted connection is the one that socket waits for, and passes it on then.
func (f *family) take(c *net.TCPConn) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	from, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil || f.made == nil || from != f.awaited {
		return false
	}
	f.made <- c
	f.made = nil
	return true
}

// socket returns a socket of the namespace without a connection.
func (f *family) socket(ctx context.Context) (*os.File, error) {
	f.making.Lock()
	defer f.making.Unlock()
	if f.spare == nil {
		return nil, net.ErrClosed
	}
	made := make(chan *net.TCPConn, 1)
	f.mu.Lock()
	err := within(f.spare, func(fd int) (err error) {
		if err := unix.Connect(fd, sockaddr(f.at)); err != nil && err != unix.EINPROGRESS {
			return err
		}
		f.awaited, err = localOf(fd)
		return err
	})
	f.made = made
	f.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, makeTime)
	defer cancel()
	var conn *net.TCPConn
	if err == nil {
		select {
		case conn = <-made:
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
	}
	f.mu.Lock()
	f.made = nil
	f.mu.Unlock()
	if conn == nil {
		select {
		case conn = <-made: // at the last moment
		default:
			return nil, errors.Join(fmt.Errorf("make a socket: %w", err), within(f.spare, f.renew))
		}
	}
	fresh, err := conn.File()
	_ = conn.Close()
	if err != nil {
		return nil, errors.Join(err, within(f.spare, f.renew))
	}
	if err := errors.Join(within(fresh, f.renew), within(f.spare, f.renew)); err != nil {
		return nil, errors.Join(fmt.Errorf("make a socket: %w", err), fresh.Close())
	}
	free := f.spare
	f.spare = fresh
	return free, nil
}

// renew ends the connection of a socket, and its binding to an address.
func (f *family) renew(fd int) error {
	none := unix.RawSockaddr{Family: unix.AF_UNSPEC}
	if _, _, e := unix.Syscall(unix.SYS_CONNECT, uintptr(fd), uintptr(unsafe.Pointer(&none)), unsafe.Sizeof(none)); e != 0 {
		return fmt.Errorf("disconnect a socket: %w", e)
	}
	_, _ = unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ERROR) // that of the connection that has ended
	if err := unix.SetsockoptInt(fd, unix.SOL_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1); err != nil {
		return err
	}
	unbound := netip.IPv4Unspecified()
	if f.at.Addr().Is6() {
		unbound = netip.IPv6Unspecified()
	}
	return unix.Bind(fd, sockaddr(netip.AddrPortFrom(unbound, 0)))
}

// connect connects a socket of the namespace.
func (f *family) connect(ctx context.Context, to netip.AddrPort) (*net.TCPConn, error) {
	file, err := f.socket(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	ctx, cancel := context.WithTimeout(ctx, connectTime)
	defer cancel()
	err = within(file, func(fd int) error {
		if err := unix.Connect(fd, sockaddr(to)); err != unix.EINPROGRESS {
			return err
		}
		return nil
	})
	if err == nil {
		err = connected(ctx, file)
	}
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	conn, err := net.FileConn(file)
	if err != nil {
		return nil, err
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errors.Join(unix.EPROTO, conn.Close())
	}
	return tcp, nil
}

// connected waits for the end of a socket's connect.
func connected(ctx context.Context, file *os.File) error {
	stop := context.AfterFunc(ctx, func() { _ = file.SetWriteDeadline(time.Unix(1, 0)) })
	defer stop()
	raw, err := file.SyscallConn()
	if err != nil {
		return err
	}
	var result error
	err = raw.Write(func(fd uintptr) bool {
		var code int
		if code, result = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ERROR); result == nil && code != 0 {
			result = unix.Errno(code)
		}
		if result != nil {
			return true
		}
		_, result = unix.Getpeername(int(fd))
		return result != unix.ENOTCONN
	})
	if err != nil {
		return err
	}
	return result
}

// original returns the destination of a connection before the rules redirected it.
func original(c *net.TCPConn, is4 bool) (to netip.AddrPort, err error) {
	const sockoptOriginal = 80 // SO_ORIGINAL_DST, and IP6T_SO_ORIGINAL_DST
	raw, err := c.SyscallConn()
	if err != nil {
		return to, err
	}
	err = control(raw, func(fd int) error {
		var addr [28]byte
		level, size := unix.SOL_IPV6, uint32(len(addr))
		if is4 {
			level, size = unix.SOL_IP, 16
		}
		if _, _, e := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), uintptr(level), sockoptOriginal, uintptr(unsafe.Pointer(&addr)), uintptr(unsafe.Pointer(&size)), 0); e != 0 {
			return e
		}
		port := uint16(addr[2])<<8 | uint16(addr[3])
		a := netip.AddrFrom4([4]byte(addr[4:8]))
		if !is4 {
			a = netip.AddrFrom16([16]byte(addr[8:24]))
		}
		to = netip.AddrPortFrom(a, port)
		return nil
	})
	return to, err
}

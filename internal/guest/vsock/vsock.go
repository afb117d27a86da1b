// Package vsock listens on sockets between a virtual machine and its host, as package
// net listens on others, which knows no such sockets.
//
// It knows no protocol. Start at Listen.
package vsock

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// Any is the CID that stands for all of this machine's.
	Any = unix.VMADDR_CID_ANY
	// Host is the CID of the machine on which a guest runs.
	Host = unix.VMADDR_CID_HOST
)

// backlog is how many connections may wait to be accepted.
const backlog = 128

// Addr is a port of a machine.
type Addr struct{ CID, Port uint32 }

var _ net.Addr = Addr{}

// Network implements net.Addr.
func (Addr) Network() string { return "vsock" }

// String implements net.Addr.
func (a Addr) String() string {
	cid := "-1"
	if a.CID != Any {
		cid = strconv.FormatUint(uint64(a.CID), 10)
	}
	return cid + ":" + strconv.FormatUint(uint64(a.Port), 10)
}

// Listen listens at a port. It fails when the kernel has no vsock.
func Listen(cid, port uint32) (net.Listener, error) {
	l, err := listen(unix.AF_VSOCK, &unix.SockaddrVM{CID: cid, Port: port}, Addr{CID: cid, Port: port})
	if err != nil {
		return nil, fmt.Errorf("listen at vsock %s: %w", Addr{CID: cid, Port: port}, err)
	}
	return l, nil
}

func listen(family int, at unix.Sockaddr, addr net.Addr) (*listener, error) {
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("socket: %w", err)
	}
	if err := unix.Bind(fd, at); err != nil {
		return nil, errors.Join(fmt.Errorf("bind: %w", err), unix.Close(fd))
	}
	if err := unix.Listen(fd, backlog); err != nil {
		return nil, errors.Join(err, unix.Close(fd))
	}
	file := os.NewFile(uintptr(fd), "listener") // Go's poller waits for it, since it does not block
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return &listener{file: file, raw: raw, addr: addr}, nil
}

// listener is a socket that listens.
type listener struct {
	file *os.File
	raw  syscall.RawConn
	addr net.Addr

	once   sync.Once
	closed atomic.Bool
	err    error // of the first Close
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	var fd int
	var from unix.Sockaddr
	var failure error
	err := l.raw.Read(func(at uintptr) bool {
		for {
			fd, from, failure = unix.Accept4(int(at), unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
			switch failure {
			case unix.EINTR, unix.ECONNABORTED:
				continue
			}
			return failure != unix.EAGAIN
		}
	})
	if err != nil && l.closed.Load() {
		err = net.ErrClosed // the poller's own error is nobody's to name
	}
	if err = errors.Join(err, failure); err != nil {
		return nil, &net.OpError{Op: "accept", Net: l.addr.Network(), Addr: l.addr, Err: err}
	}
	var remote net.Addr = Addr{}
	if vm, ok := from.(*unix.SockaddrVM); ok {
		remote = Addr{CID: vm.CID, Port: vm.Port}
	}
	return conn{File: os.NewFile(uintptr(fd), "connection"), local: l.addr, remote: remote}, nil
}

// Close implements net.Listener. An Accept that waits returns net.ErrClosed.
func (l *listener) Close() error {
	l.once.Do(func() {
		l.closed.Store(true)
		l.err = l.file.Close()
	})
	return l.err
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.addr }

// conn is a connection. A file has all that it needs but addresses.
type conn struct {
	*os.File
	local, remote net.Addr
}

var _ net.Conn = conn{}

// LocalAddr implements net.Conn.
func (c conn) LocalAddr() net.Addr { return c.local }

// RemoteAddr implements net.Conn.
func (c conn) RemoteAddr() net.Addr { return c.remote }

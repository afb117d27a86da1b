package nlwrap

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Monitor reports whether links, addresses or routes of a network namespace have changed. It is much
// cheaper than listing them.
type Monitor struct{ fd int }

// monitorBytes is the size of the receive buffer. The messages themselves do not matter, and a full
// buffer counts as a change.
const monitorBytes = 4096

// OpenMonitor returns a Monitor of the calling thread's network namespace.
func OpenMonitor() (*Monitor, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_ROUTE)
	if err != nil {
		return nil, os.NewSyscallError("open netlink monitor: socket", err)
	}
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE)
	err = errors.Join(
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, monitorBytes),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink monitor: %w", err), unix.Close(fd))
	}
	return &Monitor{fd: fd}, nil
}

// Changed reports whether something has changed since the last call, or may have.
func (m *Monitor) Changed() bool {
	changed := false
	var buf [1]byte
	for {
		_, _, err := unix.Recvfrom(m.fd, buf[:], unix.MSG_DONTWAIT)
		switch {
		case errors.Is(err, unix.EAGAIN):
			return changed
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ENOBUFS), err == nil:
			changed = true // continue until the buffer is empty
		default:
			return true
		}
	}
}

// Close closes the socket.
func (m *Monitor) Close() error { return os.NewSyscallError("close netlink monitor", unix.Close(m.fd)) }

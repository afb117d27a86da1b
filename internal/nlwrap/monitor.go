package nlwrap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"golang.org/x/net/bpf"
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
	filter, err := noPorts()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink monitor: %w", err), unix.Close(fd))
	}
	groups := uint32(unix.RTMGRP_LINK | unix.RTMGRP_IPV4_IFADDR | unix.RTMGRP_IPV6_IFADDR | unix.RTMGRP_IPV4_ROUTE | unix.RTMGRP_IPV6_ROUTE)
	err = errors.Join(
		unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, filter),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, monitorBytes),
		unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}),
	)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink monitor: %w", err), unix.Close(fd))
	}
	return &Monitor{fd: fd}, nil
}

// noPorts returns a filter that drops the messages about the state of a bridge's port. The bridge changes it by itself
// for half a minute after a link was added. A link that gets another bridge causes a message of its own.
func noPorts() (*unix.SockFprog, error) {
	newLink := binary.BigEndian.Uint16(binary.NativeEndian.AppendUint16(nil, unix.RTM_NEWLINK)) // the filter reads big-endian numbers
	const pass, drop = 1 << 16, 0
	list, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 4, Size: 2}, // the message's type
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: uint32(newLink), SkipTrue: 3},
		bpf.LoadAbsolute{Off: unix.SizeofNlMsghdr, Size: 1}, // the family
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.AF_BRIDGE, SkipTrue: 1},
		bpf.RetConstant{Val: drop},
		bpf.RetConstant{Val: pass},
	})
	if err != nil {
		return nil, err
	}
	filter := make([]unix.SockFilter, len(list))
	for i, r := range list {
		filter[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	return &unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}, nil
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

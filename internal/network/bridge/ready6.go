package bridge

import (
	"errors"
	"fmt"
	"net/netip"
	"syscall"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// ready6 waits until IPv6 addresses can be used. The kernel makes them ready from a queue, even
// when it does not look for duplicates; until then it drops packets to them, and senders retry only
// after a second.
type ready6 struct{ s *nl.NetlinkSocket }

// listen6 starts to listen. It must be called before the address is added.
func listen6(ns int) (ready6, error) {
	s, err := nl.SubscribeAt(netns.NsHandle(ns), netns.None(), unix.NETLINK_ROUTE, unix.RTNLGRP_IPV6_IFADDR)
	if err != nil {
		return ready6{}, fmt.Errorf("listen to addresses: %w", err)
	}
	// patience is how long to wait: an address that is not ready then is slow, not wrong.
	const patience = 2 // seconds
	if err := s.SetReceiveTimeout(&unix.Timeval{Sec: patience}); err != nil {
		s.Close()
		return ready6{}, fmt.Errorf("listen to addresses: %w", err)
	}
	return ready6{s}, nil
}

func (r ready6) close() { r.s.Close() }

// wait blocks until addr is ready.
func (r ready6) wait(addr netip.Addr) error {
	for {
		msgs, _, err := r.s.Receive()
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS):
			return nil
		case err != nil:
			return fmt.Errorf("wait for address %s: %w", addr, err)
		}
		for _, m := range msgs {
			if readyAddr(m) == addr {
				return nil
			}
		}
	}
}

// readyAddr returns the address that a message reports as ready, or none.
func readyAddr(m syscall.NetlinkMessage) netip.Addr {
	if m.Header.Type != unix.RTM_NEWADDR || len(m.Data) < unix.SizeofIfAddrmsg {
		return netip.Addr{}
	}
	msg := nl.DeserializeIfAddrmsg(m.Data)
	attrs, err := nl.ParseRouteAttr(m.Data[msg.Len():])
	if err != nil || msg.Flags&unix.IFA_F_TENTATIVE != 0 {
		return netip.Addr{}
	}
	for _, a := range attrs {
		if a.Attr.Type == unix.IFA_ADDRESS {
			ip, _ := netip.AddrFromSlice(a.Value)
			return ip
		}
	}
	return netip.Addr{}
}

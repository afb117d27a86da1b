package network

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/nlwrap"
)

// inside opens a netlink socket in the namespace at path. It must be closed at the end of the
// call: an open socket keeps the namespace alive.
func inside(path string) (nlwrap.Handle, *os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nlwrap.Handle{}, nil, fmt.Errorf("open network namespace: %w", err)
	}
	h, err := netlink.NewHandleAt(netns.NsHandle(f.Fd()), unix.NETLINK_ROUTE)
	if err != nil {
		_ = f.Close()
		return nlwrap.Handle{}, nil, fmt.Errorf("enter network namespace %s: %w", path, err)
	}
	return nlwrap.Handle{Handle: h}, f, nil
}

// loopback is the link that every network namespace has from the start.
func loopback() netlink.Link {
	return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}
}

// noneStatus sets loopback up and nothing else.
func noneStatus(path string) (core.NetworkStatus, error) {
	h, f, err := inside(path)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	defer func() { h.Close(); _ = f.Close() }()
	if err := h.LinkSetUp(loopback()); err != nil {
		return core.NetworkStatus{}, fmt.Errorf("set lo up: %w", err)
	}
	return core.NetworkStatus{Mode: statusNone}, nil
}

func checkLoopback(path string) error {
	h, f, err := inside(path)
	if err != nil {
		return err
	}
	defer func() { h.Close(); _ = f.Close() }()
	lo, err := h.LinkByName("lo")
	if err != nil {
		return fmt.Errorf("find lo: %w", err)
	}
	if lo.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("lo is down: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// hostStatus returns the host's own addresses, those of the default route's link first.
func hostStatus() (core.NetworkStatus, error) {
	h, err := hostHandle()
	if err != nil {
		return core.NetworkStatus{}, err
	}
	defer h.Close()
	st := core.NetworkStatus{Mode: statusHost}
	uplink, _ := defaultLink(h)
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return st, fmt.Errorf("list the host's addresses: %w", err)
	}
	for _, first := range []bool{true, false} {
		for _, a := range addrs {
			ip, ok := netip.AddrFromSlice(a.IP)
			if ip = ip.Unmap(); ok && ip.IsGlobalUnicast() && (a.LinkIndex == uplink) == first {
				st.Addrs = append(st.Addrs, ip)
			}
		}
	}
	return st, nil
}

// hostHandle opens a netlink socket in our own namespace.
func hostHandle() (nlwrap.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nlwrap.Handle{}, fmt.Errorf("open netlink: %w", err)
	}
	return nlwrap.Handle{Handle: h}, nil
}

// hostSocket is a netlink socket that is kept open, also for messages that the library cannot
// write.
type hostSocket struct {
	nlwrap.Handle
	raw     map[int]*nl.SocketHandle
	control int // of ioctls
}

func openHost() (hostSocket, error) {
	h, err := hostHandle()
	if err != nil {
		return hostSocket{}, err
	}
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return hostSocket{}, fmt.Errorf("open netlink: %w", err)
	}
	control, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		h.Close()
		s.Close()
		return hostSocket{}, fmt.Errorf("open socket: %w", err)
	}
	return hostSocket{h, map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}, control}, nil
}

func (h *hostSocket) close() {
	if h.raw == nil {
		return
	}
	h.Close()
	h.raw[unix.NETLINK_ROUTE].Close()
	_ = unix.Close(h.control)
	*h = hostSocket{}
}

// defaultLink returns the link of the default route and its MTU; 0, 0 when there is none.
func defaultLink(h nlwrap.Handle) (index, mtu int) {
	for _, fam := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := h.RouteList(nil, fam)
		if err != nil {
			continue
		}
		for _, r := range routes {
			if r.Dst != nil && !r.Dst.IP.IsUnspecified() {
				continue
			}
			index := r.LinkIndex
			if index == 0 && len(r.MultiPath) > 0 {
				index = r.MultiPath[0].LinkIndex
			}
			if link, err := h.LinkByIndex(index); err == nil {
				return index, link.Attrs().MTU
			}
		}
	}
	return 0, 0
}

// hostRoutes returns the destinations of the host's IPv4 routes and its addresses, except those
// of our own bridge.
func hostRoutes(bridge string) ([]netip.Prefix, error) {
	h, err := hostHandle()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	ours := 0
	if link, err := h.LinkByName(bridge); err == nil {
		ours = link.Attrs().Index
	}
	// All tables: a VPN's routes are often in one of their own.
	routes, err := h.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list the host's routes: %w", err)
	}
	var taken []netip.Prefix
	for _, r := range routes {
		if r.Dst == nil || ours != 0 && r.LinkIndex == ours {
			continue
		}
		if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			bits, _ := r.Dst.Mask.Size()
			taken = append(taken, netip.PrefixFrom(a.Unmap(), bits))
		}
	}
	addrs, err := h.AddrList(nil, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list the host's addresses: %w", err)
	}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok && a.LinkIndex != ours {
			bits, _ := a.Mask.Size()
			taken = append(taken, netip.PrefixFrom(ip.Unmap(), bits).Masked())
		}
	}
	return taken, nil
}

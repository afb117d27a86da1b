// Package kernel reads and changes the links, addresses and routes of network namespaces: the helpers that all
// drivers share. It keeps no state.
package kernel

import (
	"errors"
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
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/nlwrap"
)

// Inside opens a netlink socket in the namespace at path. It must be closed at the end of the
// call: an open socket keeps the namespace alive.
func Inside(path string) (nlwrap.Handle, *os.File, error) {
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

// Loopback is the link that every network namespace has from the start.
func Loopback() netlink.Link {
	return &netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: "lo", Index: 1}}
}

// NoneStatus sets loopback up and nothing else.
func NoneStatus(path string) (core.NetworkStatus, error) {
	h, f, err := Inside(path)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	defer func() { h.Close(); _ = f.Close() }()
	if err := h.LinkSetUp(Loopback()); err != nil {
		return core.NetworkStatus{}, fmt.Errorf("set lo up: %w", err)
	}
	return core.NetworkStatus{Mode: netconf.StatusNone}, nil
}

// CheckLoopback returns FailedPrecondition if the loopback link of a namespace is down.
func CheckLoopback(path string) error {
	h, f, err := Inside(path)
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

// HostStatus returns the host's own addresses, those of the default route's link first.
func HostStatus() (core.NetworkStatus, error) {
	h, err := Host()
	if err != nil {
		return core.NetworkStatus{}, err
	}
	defer h.Close()
	st := core.NetworkStatus{Mode: netconf.StatusHost}
	uplink, _ := DefaultLink(h)
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

// Host opens a netlink socket in our own namespace.
func Host() (nlwrap.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nlwrap.Handle{}, fmt.Errorf("open netlink: %w", err)
	}
	return nlwrap.Handle{Handle: h}, nil
}

// Socket is a netlink socket that is kept open, also for messages that the library cannot
// write.
type Socket struct {
	nlwrap.Handle
	Raw     map[int]*nl.SocketHandle
	control int // of ioctls
}

// Open opens a Socket in our own namespace.
func Open() (Socket, error) {
	h, err := Host()
	if err != nil {
		return Socket{}, err
	}
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		h.Close()
		return Socket{}, fmt.Errorf("open netlink: %w", err)
	}
	control, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		h.Close()
		s.Close()
		return Socket{}, fmt.Errorf("open socket: %w", err)
	}
	return Socket{h, map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}, control}, nil
}

// Close closes the sockets. It may be called again.
func (h *Socket) Close() {
	if h.Raw == nil {
		return
	}
	h.Handle.Close()
	h.Raw[unix.NETLINK_ROUTE].Close()
	_ = unix.Close(h.control)
	*h = Socket{}
}

// DefaultLink returns the link of the default route and its MTU; 0, 0 when there is none.
func DefaultLink(h nlwrap.Handle) (index, mtu int) {
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

// Routes returns the destinations of the host's IPv4 routes and its addresses, except those
// of our own bridge.
func Routes(bridge string) ([]netip.Prefix, error) {
	h, err := Host()
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

// Unlink deletes a link. It succeeds when there is none.
func Unlink(h nlwrap.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err == nil {
		err = h.LinkDel(link)
	}
	var none netlink.LinkNotFoundError
	if err == nil || errors.As(err, &none) || errors.Is(err, unix.ENODEV) {
		return nil
	}
	return fmt.Errorf("delete link %s: %w", name, err)
}

// Hint ignores the errors of adding a neighbour that may be ignored. The kernel's table, one for
// all network namespaces, may be full of entries that are as new, when 500 sandboxes are created
// within seconds; then the kernel asks for the neighbour when it needs it.
func Hint(err error) error {
	if errors.Is(err, unix.ENOBUFS) {
		return nil
	}
	return err
}

// Neighbour returns a reachable neighbour entry; the kernel verifies it later.
func Neighbour(link int, a netip.Addr, mac net.HardwareAddr) *netlink.Neigh {
	return &netlink.Neigh{LinkIndex: link, State: netlink.NUD_REACHABLE, IP: a.AsSlice(), HardwareAddr: mac}
}

// IPNet converts a prefix to the form of package net.
func IPNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Family returns the address family of IPv6, or of IPv4.
func Family(is6 bool) int {
	if is6 {
		return netlink.FAMILY_V6
	}
	return netlink.FAMILY_V4
}

// IsLinkGone reports that a sandbox has removed its own link.
func IsLinkGone(err error) bool {
	var none netlink.LinkNotFoundError
	return errors.As(err, &none)
}

// maxInterfaces bounds the interfaces of one sandbox.
const maxInterfaces = 64

// FreeName returns the first name of an interface that the sandbox does not have, neither from us
// nor made by itself.
func FreeName(req core.NetworkRequest) string {
	taken := map[string]bool{}
	for _, a := range req.Last.Interfaces {
		taken[a.Interface] = true
	}
	if h, f, err := Inside(req.Namespace); err == nil {
		if links, err := h.LinkList(); err == nil {
			for _, l := range links {
				taken[l.Attrs().Name] = true
			}
		}
		h.Close()
		_ = f.Close()
	}
	for i := range maxInterfaces {
		if name := fmt.Sprintf("eth%d", i); !taken[name] {
			return name
		}
	}
	return "" // refused as a name
}

// The limits of a burst, in bits: a tenth of a second's worth, at least a few full
// packets, at most the plugin's maximum.
const (
	MinBurst = 64 * 1024 * 8
	MaxBurst = 1<<31 - 1
)

// Burst returns the burst of a limit of bits per second.
func Burst(rate uint64) uint64 { return min(max(rate/10, MinBurst), MaxBurst) }

// Addrs returns the addresses of a list.
func Addrs(list []netip.Prefix) (addrs []netip.Addr) {
	for _, p := range list {
		addrs = append(addrs, p.Addr().Unmap())
	}
	return addrs
}

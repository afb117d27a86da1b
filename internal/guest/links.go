package guest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/nlwrap"
)

// Link is a network link as it is, or shall be.
type Link struct {
	Name      string
	MAC       string
	MTU       int // 0 leaves it
	Addresses []netip.Prefix
	NoARP     bool
	// PCI, unless empty, is the PCI path of the link, which may still be plugged in.
	PCI string
}

// routing opens the kernel's routing by netlink.
func routing() (nlwrap.Handle, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nlwrap.Handle{}, fmt.Errorf("netlink: %w", err)
	}
	return nlwrap.Handle{Handle: h}, nil
}

// UpdateLink finds a link by its PCI path, for which it waits, or by its MAC address, or
// else by its name, gives it its name, addresses and size, and sets it up. A link that has
// the name already gets the found one's. NotFound when there is no such link.
func (m *Machine) UpdateLink(ctx context.Context, want Link) error {
	if want.Name == "" {
		return invalid.Errorf("link: no name")
	}
	plugged := ""
	if want.PCI != "" {
		var err error
		if plugged, err = (disks{m.sysfs, m.dev, m.PlugTime}).linkAt(ctx, want.PCI); err != nil {
			return fmt.Errorf("link %s: %w", want.Name, err)
		}
	}
	h, err := routing()
	if err != nil {
		return err
	}
	defer h.Close()
	var link netlink.Link
	if plugged != "" {
		link, err = h.LinkByName(plugged)
	} else {
		link, err = findLink(h, want)
	}
	if err != nil {
		return err
	}
	if err := setLink(h, link, want); err != nil {
		return fmt.Errorf("link %s: %w", want.Name, err)
	}
	return nil
}

func findLink(h nlwrap.Handle, want Link) (netlink.Link, error) {
	list, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	mac, err := net.ParseMAC(want.MAC)
	if err != nil && want.MAC != "" {
		return nil, invalid.Errorf("link %s: MAC address %q", want.Name, want.MAC)
	}
	for _, l := range list {
		if want.MAC != "" && slices.Equal(l.Attrs().HardwareAddr, mac) {
			return l, nil
		}
	}
	for _, l := range list {
		if l.Attrs().Name == want.Name {
			return l, nil
		}
	}
	return nil, fmt.Errorf("there is no link with the address %q or the name %q: %w", want.MAC, want.Name, errdefs.ErrNotFound)
}

func setLink(h nlwrap.Handle, link netlink.Link, want Link) error {
	at := link.Attrs()
	if err := h.LinkSetDown(link); err != nil {
		return fmt.Errorf("set down: %w", err)
	}
	if mac, err := net.ParseMAC(want.MAC); err == nil && !slices.Equal(at.HardwareAddr, mac) {
		if err := h.LinkSetHardwareAddr(link, mac); err != nil {
			return fmt.Errorf("set MAC address: %w", err)
		}
	}
	if err := rename(h, link, want.Name); err != nil {
		return err
	}
	if want.MTU > 0 {
		if err := h.LinkSetMTU(link, want.MTU); err != nil {
			return fmt.Errorf("MTU %d: %w", want.MTU, err)
		}
	}
	if want.NoARP {
		if err := h.LinkSetARPOff(link); err != nil {
			return fmt.Errorf("switch ARP off: %w", err)
		}
	}
	if err := h.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	// IPv6 addresses go when a link is set down, so addresses come last.
	for _, p := range want.Addresses {
		if err := h.AddrReplace(link, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
			return fmt.Errorf("address %s: %w", p, err)
		}
	}
	return nil
}

// rename gives link a name. A link that has it gets link's.
func rename(h nlwrap.Handle, link netlink.Link, name string) error {
	old := link.Attrs().Name
	if old == name {
		return nil
	}
	holder, err := h.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		return h.LinkSetName(link, name)
	}
	if err != nil {
		return err
	}
	// A link that is up may have another name in newer kernels only.
	up := holder.Attrs().Flags&net.FlagUp != 0
	if up {
		if err := h.LinkSetDown(holder); err != nil {
			return err
		}
	}
	// The middle name is short: the kernel allows 15 bytes.
	if err := h.LinkSetName(holder, fmt.Sprintf("swap%d", holder.Attrs().Index)); err != nil {
		return fmt.Errorf("move %s, which has the name: %w", name, err)
	}
	if err := h.LinkSetName(link, name); err != nil {
		return errors.Join(err, h.LinkSetName(holder, name))
	}
	err = h.LinkSetName(holder, old)
	if up {
		err = errors.Join(err, h.LinkSetUp(holder))
	}
	return err
}

// Links returns the machine's links.
func (m *Machine) Links(context.Context) ([]Link, error) {
	h, err := routing()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	list, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []Link
	for _, l := range list {
		at := l.Attrs()
		one := Link{Name: at.Name, MAC: at.HardwareAddr.String(), MTU: at.MTU, NoARP: at.RawFlags&unix.IFF_NOARP != 0}
		addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return nil, fmt.Errorf("addresses of %s: %w", at.Name, err)
		}
		for _, a := range addrs {
			if p, ok := prefix(a.IPNet); ok {
				one.Addresses = append(one.Addresses, p)
			}
		}
		out = append(out, one)
	}
	return out, nil
}

// LinkStats returns what the machine's links have sent and received, but the loopback.
func (m *Machine) LinkStats(context.Context) ([]core.NetStats, error) {
	h, err := routing()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	list, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []core.NetStats
	for _, l := range list {
		at := l.Attrs()
		if at.Statistics == nil || at.Flags&net.FlagLoopback != 0 {
			continue
		}
		n := at.Statistics
		out = append(out, core.NetStats{
			Name: at.Name, RxBytes: n.RxBytes, RxPackets: n.RxPackets, RxErrors: n.RxErrors, RxDropped: n.RxDropped,
			TxBytes: n.TxBytes, TxPackets: n.TxPackets, TxErrors: n.TxErrors, TxDropped: n.TxDropped,
		})
	}
	return out, nil
}

// Route is a route of the main table.
type Route struct {
	// To is where it leads; the zero Prefix, with IPv6, everywhere.
	To      netip.Prefix
	IPv6    bool
	Gateway netip.Addr // the zero Addr: none
	Source  netip.Addr // of packets that take it; the zero Addr: the kernel's choice
	Link    string
	Scope   uint8
	Flags   uint32
	MTU     int
}

// UpdateRoutes adds routes, or replaces them: first those without a gateway, by which
// the gateways of the others are reached. Other routes stay.
func (m *Machine) UpdateRoutes(_ context.Context, routes []Route) error {
	h, err := routing()
	if err != nil {
		return err
	}
	defer h.Close()
	for _, gateway := range []bool{false, true} {
		for _, r := range routes {
			if r.Gateway.IsValid() != gateway {
				continue
			}
			if err := replaceRoute(h, r); err != nil {
				return fmt.Errorf("route to %s by %s: %w", r.To, r.Link, err)
			}
		}
	}
	return nil
}

func replaceRoute(h nlwrap.Handle, r Route) error {
	link, err := h.LinkByName(r.Link)
	if err != nil {
		return err
	}
	n := &netlink.Route{
		LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_MAIN, Protocol: unix.RTPROT_BOOT, Scope: netlink.Scope(r.Scope), Flags: int(r.Flags), MTU: r.MTU,
		Family: netlink.FAMILY_V4,
	}
	if r.IPv6 {
		n.Family = netlink.FAMILY_V6
	}
	if r.To.IsValid() && r.To.Bits() > 0 {
		n.Dst = ipNet(r.To)
	}
	if r.Gateway.IsValid() {
		n.Gw = r.Gateway.AsSlice()
	}
	if r.Source.IsValid() {
		n.Src = r.Source.AsSlice()
	}
	err = h.RouteReplace(n)
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// Routes returns the routes of the main table, IPv4's first.
func (m *Machine) Routes(context.Context) ([]Route, error) {
	h, err := routing()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Attrs().Index] = l.Attrs().Name
	}
	var out []Route
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := h.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range list {
			one := Route{IPv6: family == netlink.FAMILY_V6, Link: names[r.LinkIndex], Scope: uint8(r.Scope), Flags: uint32(r.Flags), MTU: r.MTU}
			if r.Dst != nil {
				one.To, _ = prefix(r.Dst)
			}
			one.Gateway, _ = netip.AddrFromSlice(r.Gw)
			one.Source, _ = netip.AddrFromSlice(r.Src)
			one.Gateway, one.Source = one.Gateway.Unmap(), one.Source.Unmap()
			out = append(out, one)
		}
	}
	return out, nil
}

// Neighbor is an address that is reached by a link without asking for it.
type Neighbor struct {
	Address netip.Addr
	MAC     string // "" for none
	Link    string
	State   int // the kernel's NUD_ value; 0 is permanent
	Flags   int
}

// AddNeighbors adds neighbours, or replaces them.
func (m *Machine) AddNeighbors(_ context.Context, list []Neighbor) error {
	h, err := routing()
	if err != nil {
		return err
	}
	defer h.Close()
	for _, n := range list {
		if err := setNeighbor(h, n); err != nil {
			return fmt.Errorf("neighbour %s of %s: %w", n.Address, n.Link, err)
		}
	}
	return nil
}

func setNeighbor(h nlwrap.Handle, n Neighbor) error {
	link, err := h.LinkByName(n.Link)
	if err != nil {
		return err
	}
	entry := &netlink.Neigh{LinkIndex: link.Attrs().Index, IP: n.Address.AsSlice(), State: n.State, Flags: n.Flags, Family: netlink.FAMILY_V4}
	if n.Address.Is6() {
		entry.Family = netlink.FAMILY_V6
	}
	if n.State == 0 {
		entry.State = netlink.NUD_PERMANENT
	}
	if n.MAC != "" {
		if entry.HardwareAddr, err = net.ParseMAC(n.MAC); err != nil {
			return invalid.Errorf("MAC address %q", n.MAC)
		}
	}
	return h.NeighSet(entry)
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func prefix(n *net.IPNet) (netip.Prefix, bool) {
	a, ok := netip.AddrFromSlice(n.IP)
	if !ok {
		return netip.Prefix{}, false
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), bits), true
}

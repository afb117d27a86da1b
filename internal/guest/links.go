package guest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/guest/rtnetlink"
	"github.com/longshore/longshore/internal/invalid"
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

// linkNamed returns the link with a name.
func linkNamed(list []rtnetlink.Link, name string) (rtnetlink.Link, error) {
	for _, l := range list {
		if l.Name == name {
			return l, nil
		}
	}
	return rtnetlink.Link{}, fmt.Errorf("there is no link %q", name)
}

// UpdateLink finds a link by its PCI path, waiting for it, or by its MAC address, or else by its
// name, sets its name, addresses and size, and sets it up. A link that has the name already gets
// the found one's. NotFound when there is no such link.
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
	h, err := rtnetlink.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	list, err := h.Links()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	var link rtnetlink.Link
	if plugged != "" {
		link, err = linkNamed(list, plugged)
	} else {
		link, err = findLink(list, want)
	}
	if err != nil {
		return err
	}
	if err := setLink(h, list, link, want); err != nil {
		return fmt.Errorf("link %s: %w", want.Name, err)
	}
	return nil
}

func findLink(list []rtnetlink.Link, want Link) (rtnetlink.Link, error) {
	mac, err := net.ParseMAC(want.MAC)
	if err != nil && want.MAC != "" {
		return rtnetlink.Link{}, invalid.Errorf("link %s: MAC address %q", want.Name, want.MAC)
	}
	for _, l := range list {
		if want.MAC != "" && bytes.Equal(l.MAC, mac) {
			return l, nil
		}
	}
	link, err := linkNamed(list, want.Name)
	if err != nil {
		return link, fmt.Errorf("there is no link with the address %q or the name %q: %w", want.MAC, want.Name, errdefs.ErrNotFound)
	}
	return link, nil
}

func setLink(h *rtnetlink.Conn, list []rtnetlink.Link, link rtnetlink.Link, want Link) error {
	if err := h.SetFlags(link.Index, 0, unix.IFF_UP); err != nil {
		return fmt.Errorf("set down: %w", err)
	}
	if mac, err := net.ParseMAC(want.MAC); err == nil && !bytes.Equal(link.MAC, mac) {
		if err := h.SetMAC(link.Index, mac); err != nil {
			return fmt.Errorf("set MAC address: %w", err)
		}
	}
	if err := rename(h, list, link, want.Name); err != nil {
		return err
	}
	if want.MTU > 0 {
		if err := h.SetMTU(link.Index, want.MTU); err != nil {
			return fmt.Errorf("MTU %d: %w", want.MTU, err)
		}
	}
	if want.NoARP {
		if err := h.SetFlags(link.Index, unix.IFF_NOARP, unix.IFF_NOARP); err != nil {
			return fmt.Errorf("switch ARP off: %w", err)
		}
	}
	if err := h.SetFlags(link.Index, unix.IFF_UP, unix.IFF_UP); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	// IPv6 addresses go when a link is set down, so addresses come last.
	for _, p := range want.Addresses {
		if err := h.ReplaceAddress(rtnetlink.Address{Link: link.Index, Prefix: p}); err != nil {
			return fmt.Errorf("address %s: %w", p, err)
		}
	}
	return nil
}

// rename gives link a name. A link that has it gets link's.
func rename(h *rtnetlink.Conn, list []rtnetlink.Link, link rtnetlink.Link, name string) error {
	old := link.Name
	if old == name {
		return nil
	}
	holder, err := linkNamed(list, name)
	if err != nil {
		return h.SetName(link.Index, name)
	}
	// A link that is up may have another name in newer kernels only.
	up := holder.Flags&unix.IFF_UP != 0
	if up {
		if err := h.SetFlags(holder.Index, 0, unix.IFF_UP); err != nil {
			return err
		}
	}
	// The middle name is short: the kernel allows 15 bytes.
	if err := h.SetName(holder.Index, fmt.Sprintf("swap%d", holder.Index)); err != nil {
		return fmt.Errorf("move %s, which has the name: %w", name, err)
	}
	if err := h.SetName(link.Index, name); err != nil {
		return errors.Join(err, h.SetName(holder.Index, name))
	}
	err = h.SetName(holder.Index, old)
	if up {
		err = errors.Join(err, h.SetFlags(holder.Index, unix.IFF_UP, unix.IFF_UP))
	}
	return err
}

// Links returns the machine's links.
func (m *Machine) Links(context.Context) ([]Link, error) {
	h, err := rtnetlink.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	list, err := h.Links()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	addresses, err := h.Addresses()
	if err != nil {
		return nil, fmt.Errorf("list addresses: %w", err)
	}
	var out []Link
	for _, l := range list {
		one := Link{Name: l.Name, MAC: net.HardwareAddr(l.MAC).String(), MTU: l.MTU, NoARP: l.Flags&unix.IFF_NOARP != 0}
		for _, a := range addresses {
			if a.Link == l.Index {
				one.Addresses = append(one.Addresses, a.Prefix)
			}
		}
		out = append(out, one)
	}
	return out, nil
}

// LinkStats returns the counters of the machine's links, except the loopback.
func (m *Machine) LinkStats(context.Context) ([]core.NetStats, error) {
	h, err := rtnetlink.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	list, err := h.Links()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var out []core.NetStats
	for _, l := range list {
		n := l.Stats
		if n == nil || l.Flags&unix.IFF_LOOPBACK != 0 {
			continue
		}
		out = append(out, core.NetStats{
			Name: l.Name, RxBytes: n.RxBytes, RxPackets: n.RxPackets, RxErrors: n.RxErrors, RxDropped: n.RxDropped,
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

// UpdateRoutes adds routes, or replaces them: first those without a gateway, because they lead to
// the gateways of the others. Other routes stay.
func (m *Machine) UpdateRoutes(_ context.Context, routes []Route) error {
	h, err := rtnetlink.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	links, err := h.Links()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, gateway := range []bool{false, true} {
		for _, r := range routes {
			if r.Gateway.IsValid() != gateway {
				continue
			}
			if err := replaceRoute(h, links, r); err != nil {
				return fmt.Errorf("route to %s by %s: %w", r.To, r.Link, err)
			}
		}
	}
	return nil
}

func replaceRoute(h *rtnetlink.Conn, links []rtnetlink.Link, r Route) error {
	link, err := linkNamed(links, r.Link)
	if err != nil {
		return err
	}
	err = h.ReplaceRoute(rtnetlink.Route{IPv6: r.IPv6, To: r.To, Gateway: r.Gateway, Source: r.Source, Link: link.Index, Scope: r.Scope, Flags: r.Flags, MTU: r.MTU})
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// Routes returns the routes of the main table, IPv4's first.
func (m *Machine) Routes(context.Context) ([]Route, error) {
	h, err := rtnetlink.Open()
	if err != nil {
		return nil, err
	}
	defer h.Close()
	links, err := h.Links()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	names := map[int]string{}
	for _, l := range links {
		names[l.Index] = l.Name
	}
	var out []Route
	for _, ipv6 := range []bool{false, true} {
		list, err := h.Routes(ipv6)
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range list {
			out = append(out, Route{To: r.To, IPv6: ipv6, Gateway: r.Gateway, Source: r.Source, Link: names[r.Link], Scope: r.Scope, Flags: r.Flags, MTU: r.MTU})
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
	h, err := rtnetlink.Open()
	if err != nil {
		return err
	}
	defer h.Close()
	links, err := h.Links()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, n := range list {
		if err := setNeighbor(h, links, n); err != nil {
			return fmt.Errorf("neighbour %s of %s: %w", n.Address, n.Link, err)
		}
	}
	return nil
}

func setNeighbor(h *rtnetlink.Conn, links []rtnetlink.Link, n Neighbor) error {
	link, err := linkNamed(links, n.Link)
	if err != nil {
		return err
	}
	entry := rtnetlink.Neighbor{Address: n.Address, Link: link.Index, State: uint16(n.State), Flags: uint8(n.Flags)}
	if n.State == 0 {
		entry.State = unix.NUD_PERMANENT
	}
	if n.MAC != "" {
		if entry.MAC, err = net.ParseMAC(n.MAC); err != nil {
			return invalid.Errorf("MAC address %q", n.MAC)
		}
	}
	return h.ReplaceNeighbor(entry)
}

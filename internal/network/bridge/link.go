package bridge

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"net"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/nlwrap"
)

// device is the bridge as the kernel knows it.
type device struct {
	index, mtu int
	mac        net.HardwareAddr
}

// Where a range is too small for a gateway (/31, /32), sandboxes use a link-local one.
var (
	linkGateway4 = netip.AddrFrom4([4]byte{169, 254, 1, 1})
	linkGateway6 = netip.MustParseAddr("fe80::1")
)

// linkPrefix starts the names of the host's ends of our veth pairs.
const linkPrefix = "ls"

// LinkName returns the name of the host's end of a sandbox's veth pair. It is derived from the
// ID, and the bridge where a sandbox may be on several, so that no record is needed to find it.
func (b *Bridge) LinkName(id core.ID) string {
	name := linkPrefix + string(id)
	if b.user {
		sum := fnv.New64a()
		_, _ = sum.Write([]byte(b.cfg.Bridge + "/" + string(id)))
		name = linkPrefix + hex.EncodeToString(sum.Sum(nil))
	}
	return name[:min(len(name), netconf.MaxLink)]
}

func gateway(addr netip.Prefix, gw netip.Addr) netip.Addr {
	switch {
	case gw.IsValid():
		return gw
	case addr.Addr().Is4():
		return linkGateway4
	default:
		return linkGateway6
	}
}

// connect makes the sandbox's link and configures it inside the namespace. After an error nothing
// of it is left.
func (b *Bridge) connect(req core.NetworkRequest, w wanted, lease ipam.Lease, stale []core.ID) (core.Attachment, error) {
	mac, err := macOf(w, lease)
	if err != nil {
		return core.Attachment{}, err
	}
	br, host, err := b.ensure()
	if err != nil {
		return core.Attachment{}, err
	}
	for _, id := range stale {
		// The previous holder of this address may have kept its namespace, and so its link.
		if id != req.Sandbox {
			if err := kernel.Unlink(host.Handle, b.LinkName(id)); err != nil {
				return core.Attachment{}, err
			}
		}
	}
	sb, ns, err := kernel.Inside(req.Namespace)
	if err != nil {
		return core.Attachment{}, err
	}
	defer func() { sb.Close(); _ = ns.Close() }()
	pair := vethPair{
		name: b.LinkName(req.Sandbox), peer: w.name, mac: mac, mtu: br.mtu, bridge: br, ns: int(ns.Fd()), noDefault: w.noDefault, routes: w.routes, isolated: b.isolated,
	}
	if w.mtu > 0 {
		pair.mtu = w.mtu
	}
	err = pair.create(host)
	if errors.Is(err, unix.EEXIST) {
		// A Setup that was interrupted may have left it.
		if err := kernel.Unlink(host.Handle, pair.name); err != nil {
			return core.Attachment{}, err
		}
		err = pair.create(host)
	}
	if isGone(err) {
		// The bridge was removed: make it again.
		b.Stale()
		if br, host, err = b.ensure(); err != nil {
			return core.Attachment{}, err
		}
		pair.bridge = br
		err = pair.create(host)
	}
	if err != nil {
		return core.Attachment{}, fmt.Errorf("make veth pair %s: %w", pair.name, err)
	}
	err = kernel.Within(ns, func() error { return deaf(w.name) })
	if err == nil {
		err = b.configure(host, sb, pair, lease, req.Config)
	}
	if err != nil {
		return core.Attachment{}, errors.Join(err, kernel.Unlink(host.Handle, pair.name))
	}
	return core.Attachment{
		Network: b.names[0], Interface: w.name, Addrs: lease.Addrs, MAC: mac.String(), MTU: pair.mtu, Routes: w.routes, NoDefault: w.noDefault,
	}, nil
}

// isGone reports whether err means that the bridge no longer exists.
func isGone(err error) bool {
	return errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENXIO)
}

// macOf derives the MAC address from the first address, so that an outdated ARP entry of a
// neighbour is right for the next holder of the address too.
func macOf(w wanted, lease ipam.Lease) (net.HardwareAddr, error) {
	if w.mac != "" {
		mac, err := net.ParseMAC(w.mac)
		if err != nil || len(mac) != 6 || mac[0]&1 == 1 {
			return nil, fmt.Errorf("mac address %q: %w", w.mac, errdefs.ErrInvalidArgument)
		}
		return mac, nil
	}
	return macFor(lease.Addrs[0].Addr()), nil
}

func macFor(a netip.Addr) net.HardwareAddr {
	mac := net.HardwareAddr{0x0a, 0x58, 0, 0, 0, 0}
	b := a.AsSlice()
	copy(mac[2:], b[len(b)-4:])
	return mac
}

// vethPair is created with one message: the host's end up and on the bridge, the other end inside
// the sandbox with its name and MAC address.
type vethPair struct {
	name, peer string
	mac        net.HardwareAddr
	mtu        int
	bridge     device
	ns         int
	routes     []core.Route
	// noDefault says that the default route does not lead over it.
	noDefault bool
	// isolated says that the bridge passes nothing from it to another isolated one.
	isolated bool
}

func (p vethPair) create(h kernel.Socket) error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWLINK, unix.NLM_F_CREATE|unix.NLM_F_EXCL|unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Flags, msg.Change = unix.IFF_UP, unix.IFF_UP
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(p.name)))
	req.AddData(nl.NewRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(p.mtu))))
	req.AddData(nl.NewRtAttr(unix.IFLA_MASTER, nl.Uint32Attr(uint32(p.bridge.index))))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("veth"))
	peer := info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.VETH_INFO_PEER, nil)
	nl.NewIfInfomsgChild(peer, unix.AF_UNSPEC)
	peer.AddRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(p.peer))
	peer.AddRtAttr(unix.IFLA_MTU, nl.Uint32Attr(uint32(p.mtu)))
	peer.AddRtAttr(unix.IFLA_ADDRESS, []byte(p.mac))
	peer.AddRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(p.ns)))
	req.AddData(info)
	req.Sockets = h.Raw
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// configure configures the host's end as a port, sets loopback and the link up inside, and adds
// addresses and routes.
func (b *Bridge) configure(host kernel.Socket, sb nlwrap.Handle, p vethPair, lease ipam.Lease, cfg core.NetworkConfig) error {
	if err := p.port(host); err != nil {
		return fmt.Errorf("set up port %s of the bridge: %w", p.name, err)
	}
	if err := sb.LinkSetUp(kernel.Loopback()); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	in, err := sb.LinkByName(p.peer)
	if err != nil {
		return fmt.Errorf("find %s inside: %w", p.peer, err)
	}
	if !slices.ContainsFunc(lease.Addrs, func(a netip.Prefix) bool { return a.Addr().Is6() }) {
		if err := silence(sb, in); err != nil {
			return fmt.Errorf("disable IPv6 on %s: %w", p.peer, err)
		}
	}
	if err := sb.LinkSetUp(in); err != nil {
		return fmt.Errorf("set %s up: %w", p.peer, err)
	}
	// The port first, because a bridge has a carrier when one of its ports has one.
	for _, link := range []string{p.name, b.cfg.Bridge} {
		if err := host.Settle(link); err != nil {
			return err
		}
	}
	for i, addr := range lease.Addrs {
		if err := p.route(host.Handle, sb, in, addr, lease.Gateways[i]); err != nil {
			return err
		}
	}
	for _, r := range p.routes {
		route := &netlink.Route{LinkIndex: in.Attrs().Index, Dst: kernel.IPNet(r.To.Masked()), Scope: netlink.SCOPE_LINK}
		if r.Via.IsValid() {
			route.Gw, route.Scope = r.Via.AsSlice(), netlink.SCOPE_UNIVERSE
		}
		if err := sb.RouteAdd(route); err != nil {
			return fmt.Errorf("add route to %s: %w", r.To, err)
		}
	}
	if err := kernel.CloseMetadata(sb, cfg); err != nil {
		return err
	}
	return p.limitRates(host.Handle, sb, in, cfg)
}

// route gives the sandbox an address and the default route. Both ends get the other as a
// neighbour, so that the first packet need not wait for an answer; in IPv6 that takes a second
// when the other side was not listening yet. The host's entry of the previous holder is replaced.
func (p vethPair) route(host, sb nlwrap.Handle, in netlink.Link, addr netip.Prefix, gw netip.Addr) error {
	if !gw.IsValid() {
		addr = netip.PrefixFrom(addr.Addr(), addr.Addr().BitLen())
	}
	a := &netlink.Addr{IPNet: kernel.IPNet(addr)}
	if addr.Addr().Is6() {
		a.Flags = unix.IFA_F_NODAD // leases exclude duplicates
	}
	add := func() error { return sb.AddrAdd(in, a) }
	if addr.Addr().Is6() {
		add = func() error { return p.add6(sb, in, a, addr.Addr()) }
	}
	if err := add(); err != nil {
		return fmt.Errorf("add address %s: %w", addr, err)
	}
	via := gateway(addr, gw)
	if !p.noDefault {
		if err := p.defaultRoute(sb, in, via, gw.IsValid()); err != nil {
			return err
		}
	}
	if err := kernel.Hint(sb.NeighSet(kernel.Neighbour(in.Attrs().Index, via, p.bridge.mac))); err != nil {
		return fmt.Errorf("add the gateway %s as a neighbour: %w", via, err)
	}
	if err := kernel.Hint(host.NeighSet(kernel.Neighbour(p.bridge.index, addr.Addr(), p.mac))); err != nil {
		return fmt.Errorf("add the sandbox %s as a neighbour: %w", addr.Addr(), err)
	}
	return nil
}

func (p vethPair) defaultRoute(sb nlwrap.Handle, in netlink.Link, via netip.Addr, inRange bool) error {
	route := &netlink.Route{LinkIndex: in.Attrs().Index, Gw: via.AsSlice()}
	if !inRange && via.Is4() {
		route.Flags = int(netlink.FLAG_ONLINK)
	}
	if err := sb.RouteReplace(route); err != nil {
		return fmt.Errorf("add default route by %s: %w", via, err)
	}
	return nil
}

// add6 adds an IPv6 address and waits until it can be used.
func (p vethPair) add6(sb nlwrap.Handle, in netlink.Link, a *netlink.Addr, addr netip.Addr) error {
	ready, err := listen6(p.ns)
	if err != nil {
		return err
	}
	defer ready.close()
	if err := sb.AddrAdd(in, a); err != nil {
		return err
	}
	return ready.wait(addr)
}

func (b *Bridge) unlink(name string) error {
	_, host, err := b.ensure()
	if err != nil {
		return err
	}
	return kernel.Unlink(host.Handle, name)
}

// ensure makes the bridge when it does not exist, gives it the gateways of all ranges in use, and
// adds the rules.
func (b *Bridge) ensure() (device, kernel.Socket, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.link.index != 0 {
		return b.link, b.host, nil
	}
	if b.host.Raw == nil {
		var err error
		if b.host, err = kernel.Open(); err != nil {
			return device{}, b.host, err
		}
	}
	link, err := b.makeLink()
	if err != nil {
		return device{}, b.host, err
	}
	nets := b.networks()
	is6 := slices.ContainsFunc(nets, func(r ipam.Range) bool { return r.Prefix.Addr().Is6() })
	if is6 {
		// Also on a host that has disabled IPv6 for its own links.
		if err := b.kernel.Set("net/ipv6/conf/"+b.cfg.Bridge+"/disable_ipv6", "0"); err != nil {
			return device{}, b.host, err
		}
	}
	if err := b.address(link, nets); err != nil {
		return device{}, b.host, err
	}
	// The host must be a router, as for every container network.
	if err := b.kernel.Router(b.cfg.Bridge, is6); err != nil {
		return device{}, b.host, err
	}
	if err := b.setPlain(link); err != nil {
		return device{}, b.host, err
	}
	if err := b.table.SetNets(ipam.Prefixes(nets)); err != nil {
		return device{}, b.host, err
	}
	if b.wall == nil {
		if b.wall, err = b.table.Watch(); err != nil {
			return device{}, b.host, err
		}
	}
	b.link = device{index: link.Attrs().Index, mtu: link.Attrs().MTU, mac: link.Attrs().HardwareAddr}
	return b.link, b.host, nil
}

// makeLink finds or creates the bridge and configures it. b.mu is held.
func (b *Bridge) makeLink() (netlink.Link, error) {
	name := b.cfg.Bridge
	link, err := b.host.LinkByName(name)
	var none netlink.LinkNotFoundError
	if errors.As(err, &none) {
		mtu := b.cfg.MTU
		if mtu == 0 {
			_, mtu = kernel.DefaultLink(b.host.Handle)
		}
		if mtu == 0 {
			mtu = 1500
		}
		// The bridge gets a MAC address of its own: otherwise it takes the lowest of its ports'
		// and changes it when they come and go. It is derived from the name, so that sandboxes
		// still know a bridge that had to be made again.
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MTU, attrs.HardwareAddr, attrs.Group = name, mtu, bridgeMAC(name), b.group
		if err := b.host.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return nil, fmt.Errorf("make bridge %s: %w", name, err)
		}
		link, err = b.host.LinkByName(name)
	}
	if err != nil {
		return nil, fmt.Errorf("find bridge %s: %w", name, err)
	}
	if link.Type() != "bridge" {
		return nil, fmt.Errorf("bridge %s: there is a %s of that name: %w", name, link.Type(), errdefs.ErrFailedPrecondition)
	}
	if b.group != 0 {
		if link.Attrs().HardwareAddr.String() != bridgeMAC(name).String() { // its addresses would be removed
			return nil, fmt.Errorf("bridge %s: another program has made a bridge of that name: %w", name, errdefs.ErrFailedPrecondition)
		}
		if link.Attrs().Group != b.group {
			if err := b.host.LinkSetGroup(link, int(b.group)); err != nil {
				return nil, fmt.Errorf("set the group of bridge %s: %w", name, err)
			}
		}
	}
	if mtu := b.cfg.MTU; mtu > 0 && link.Attrs().MTU != mtu {
		if err := b.host.LinkSetMTU(link, mtu); err != nil {
			return nil, fmt.Errorf("set mtu of bridge %s to %d: %w", name, mtu, err)
		}
		link.Attrs().MTU = mtu
	}
	if err := b.host.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("set bridge %s up: %w", name, err)
	}
	return link, nil
}

func bridgeMAC(name string) net.HardwareAddr {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(name))
	return binary.BigEndian.AppendUint32([]byte{0x0a, 0x59}, sum.Sum32())
}

// networks returns the configured ranges and former ranges that still have sandboxes.
func (b *Bridge) networks() []ipam.Range {
	nets := b.leases.Ranges()
	for _, lease := range b.leases.All() {
		for i, a := range lease.Addrs {
			r := ipam.Range{Prefix: a.Masked(), Gateway: lease.Gateways[i]}
			known := false
			for _, have := range nets {
				known = known || have.Prefix.Overlaps(r.Prefix) && have.Gateway == r.Gateway
			}
			if !known {
				nets = append(nets, r)
			}
		}
	}
	return nets
}

// bridgeAddrs returns the addresses of a bridge with these ranges.
func bridgeAddrs(nets []ipam.Range) map[netip.Prefix]bool {
	want := map[netip.Prefix]bool{}
	for _, r := range nets {
		is4 := r.Prefix.Addr().Is4()
		switch {
		case r.Gateway.IsValid():
			want[netip.PrefixFrom(r.Gateway, r.Prefix.Bits())] = true
		case is4:
			want[netip.PrefixFrom(linkGateway4, 32)] = true
		}
		if !is4 {
			// Also where it is nobody's gateway: the kernel asks for neighbours from a link-local
			// address, and its own is not ready at once each time the first sandbox gives the
			// bridge a carrier.
			want[netip.PrefixFrom(linkGateway6, 64)] = true
		}
	}
	return want
}

// address gives the bridge its gateways and removes those of ranges that are no longer used.
// Preconditions: mu is held.
func (b *Bridge) address(link netlink.Link, nets []ipam.Range) error {
	want := bridgeAddrs(nets)
	have, err := b.host.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("list addresses of %s: %w", b.cfg.Bridge, err)
	}
	for _, a := range have {
		ip, _ := netip.AddrFromSlice(a.IP)
		bits, _ := a.Mask.Size()
		p := netip.PrefixFrom(ip.Unmap(), bits)
		if want[p] {
			delete(want, p)
			continue
		}
		if ip.IsLinkLocalUnicast() {
			continue // the kernel's own
		}
		if err := b.host.AddrDel(link, &a); err != nil {
			return fmt.Errorf("remove address %s of %s: %w", p, b.cfg.Bridge, err)
		}
	}
	for p := range want {
		a := &netlink.Addr{IPNet: kernel.IPNet(p)}
		if p.Addr().Is6() {
			a.Flags = unix.IFA_F_NODAD
		}
		if err := b.host.AddrAdd(link, a); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("add address %s to %s: %w", p, b.cfg.Bridge, err)
		}
	}
	for _, r := range nets {
		if r.Gateway.IsValid() {
			continue
		}
		route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: kernel.IPNet(r.Prefix), Scope: netlink.SCOPE_LINK}
		if r.Prefix.Addr().Is6() {
			route.Scope = netlink.SCOPE_UNIVERSE
		}
		if err := b.host.RouteReplace(route); err != nil {
			return fmt.Errorf("add route %s to %s: %w", r.Prefix, b.cfg.Bridge, err)
		}
	}
	return nil
}

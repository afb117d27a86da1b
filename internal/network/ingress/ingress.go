// Package ingress leads ports of the host to backends on an overlay network, on this node and on others.
//
// Start at Ingress.
package ingress

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/network/ports"
	"github.com/longshore/longshore/internal/network/settings"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/nlwrap"
)

// Ingress leads ports of the host to backends on an overlay, on this node and on others. It is a
// network namespace between the two: a veth pair connects it to the host, and an interface of its
// own connects it to the overlay. The host's rules (nft.Table) forward the ports into it, as for
// sandboxes. There each connection gets a backend (nft.Balancer), which sees the node's address on
// the overlay. Neither the host nor another network can be reached from the overlay through it
// (nft.Gate).
//
// All of it is in the kernel: it works on while no agent runs, and the next agent adopts it.
type Ingress struct {
	path   string // of the pinned namespace
	claims *ports.Claims
	table  *nft.Table
	// used returns the ranges of addresses that this node has for something else.
	used func() ([]netip.Prefix, error)
	log  *slog.Logger
	// kernel has the host's kernel parameters that the link needs.
	kernel *settings.Host

	mu       sync.Mutex // guards is, subnets, inner, balancer, wall, led, taken; serializes all changes
	is       *core.Ingress
	subnets  []core.OverlaySubnet
	inner    netip.Addr // where the host's ports lead
	balancer *nft.Balancer
	wall     *nft.Wall
	led      map[ports.Claim]bool
	taken    []core.TakenPort
}

// The names of the host's end of the pair, of the other end, and of the interface on the overlay.
const (
	ingressLink  = "longshore-in0"
	ingressOuter = "host0"
	ingressInner = "net0"
)

// Key names the interface on the overlay. No sandbox's ID is so short.
const Key = "ingress"

// ingressRoutes is the number of the routing table for answers. It routes all of them to the host,
// because a client at the site may have an address in the overlay's range.
const ingressRoutes = 100

// New returns the ingress whose namespace is pinned at path. used returns the ranges that this node uses.
func New(path string, claims *ports.Claims, used func() ([]netip.Prefix, error), log *slog.Logger) *Ingress {
	return &Ingress{
		path: path, claims: claims, used: used, log: log, kernel: settings.NewHost(log),
		table: nft.New(nft.Options{Name: nft.TableName + "-ingress", Bridge: ingressLink, Entry: true, Logger: log}),
	}
}

// Open makes the ingress, or adopts it, on the network on. others are the networks that it may have
// been on before.
func (g *Ingress) Open(in core.Ingress, on *vxlan.Network, subnets []core.OverlaySubnet, others []*vxlan.Network) (err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	want, err := ingressAttachment(in, subnets)
	if err != nil {
		return err
	}
	if g.is != nil && (g.is.Network != in.Network || !slices.Equal(g.is.Addrs, in.Addrs) || g.is.MAC != in.MAC) {
		if err := g.closeLocked(append(others, on)); err != nil {
			return err
		}
	}
	fresh := !kernel.Pinned(g.path)
	if err := kernel.Pin(g.path); err != nil {
		return err
	}
	if err := g.buildLocked(want, on, subnets, others); err != nil {
		if fresh {
			err = errors.Join(err, g.closeLocked(append(others, on)))
		}
		return err
	}
	if g.balancer == nil {
		sum := fnv.New32a()
		_, _ = sum.Write([]byte(want.Addrs[0].Addr().String()))
		g.balancer = nft.NewBalancer(nft.BalancerOptions{Source: want.Addrs[0].Addr(), Ports: true, First: sum.Sum32(), Logger: g.log})
	}
	in.Addrs = slices.Clone(in.Addrs)
	g.is, g.subnets = &in, slices.Clone(subnets)
	return nil
}

// ingressAttachment is the interface on the overlay. Errors are InvalidArgument; the caller then
// keeps the present interface.
func ingressAttachment(in core.Ingress, subnets []core.OverlaySubnet) (vxlan.Attachment, error) {
	a := vxlan.Attachment{Key: Key, Interface: ingressInner, Addrs: in.Addrs}
	if len(in.Addrs) == 0 {
		return a, fmt.Errorf("it has no address: %w", errdefs.ErrInvalidArgument)
	}
	for _, p := range in.Addrs {
		i := slices.IndexFunc(subnets, func(s core.OverlaySubnet) bool { return s.Range.Contains(p.Addr()) && s.Range.Bits() == p.Bits() })
		if i < 0 || p.Addr() == subnets[i].Gateway || p.Addr() == subnets[i].Range.Addr() {
			return a, fmt.Errorf("address %s is not one of network %s: %w", p, in.Network, errdefs.ErrInvalidArgument)
		}
	}
	mac, err := net.ParseMAC(cmp.Or(in.MAC, vxlan.MACFor(in.Addrs[0].Addr())))
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 {
		return a, fmt.Errorf("mac %.40q is that of no interface: %w", in.MAC, errdefs.ErrInvalidArgument)
	}
	a.MAC = mac.String()
	return a, nil
}

// buildLocked makes the missing parts and does not change existing ones.
func (g *Ingress) buildLocked(want vxlan.Attachment, on *vxlan.Network, subnets []core.OverlaySubnet, others []*vxlan.Network) error {
	in, ns, err := kernel.Inside(g.path)
	if err != nil {
		return err
	}
	defer func() { in.Close(); _ = ns.Close() }()
	is6 := want.Addrs[0].Addr().Is6()
	if err := kernel.Within(ns, func() error { return settings.Ingress(is6) }); err != nil {
		return err
	}
	// Closed before there is anything that could come in.
	if err := nft.Gate(ns, ingressOuter, ingressInner); err != nil {
		return err
	}
	if err := in.LinkSetUp(kernel.Loopback()); err != nil {
		return fmt.Errorf("set lo up: %w", err)
	}
	if err := g.joinLocked(in, ns, subnets, is6); err != nil {
		return err
	}
	if err := g.attachLocked(in, want, on, others); err != nil {
		return err
	}
	if err := answersToHost(in, g.inner); err != nil {
		return err
	}
	led, err := g.table.Load(ports.Published)
	if err != nil {
		return err
	}
	if err := g.elsewhereLocked(led); err != nil {
		return err
	}
	if err := g.table.SetNets([]netip.Prefix{netip.PrefixFrom(g.inner, g.inner.BitLen())}); err != nil {
		return err
	}
	if g.wall == nil {
		g.wall, err = g.table.Watch()
	}
	return err
}

// elsewhereLocked removes ports that are forwarded to a former address of the namespace; the next
// Publish adds them again.
func (g *Ingress) elsewhereLocked(led []nft.Forward) error {
	stale := slices.DeleteFunc(led, func(f nft.Forward) bool { return f.Target.Addr() == g.inner })
	for _, f := range stale {
		claim := ports.Claim{Proto: protoName(f.Proto), Port: f.Port}
		g.claims.Give(ports.Published, claim)
		delete(g.led, claim)
	}
	return g.table.Remove(stale)
}

// joinLocked joins the namespace to the host by a pair of links with addresses of their own.
func (g *Ingress) joinLocked(in nlwrap.Handle, ns *os.File, subnets []core.OverlaySubnet, is6 bool) error {
	host, err := kernel.Open()
	if err != nil {
		return err
	}
	defer host.Close()
	outer, err := ingressPair(host.Handle, in)
	if err != nil {
		return err
	}
	if outer == nil {
		_, mtu := kernel.DefaultLink(host.Handle)
		if mtu == 0 {
			mtu = 1500
		}
		pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: ingressLink, MTU: mtu}, PeerName: ingressOuter, PeerMTU: uint32(mtu), PeerNamespace: netlink.NsFd(int(ns.Fd()))}
		if err := host.LinkAdd(pair); err != nil {
			return fmt.Errorf("make link %s: %w", ingressLink, err)
		}
		if outer, err = host.LinkByName(ingressLink); err != nil {
			return fmt.Errorf("find %s: %w", ingressLink, err)
		}
	}
	return g.addressLocked(host, in, outer, subnets, is6)
}

// ingressPair returns the host's end of the pair, nil when there is none. One that belongs to an
// earlier namespace is removed.
func ingressPair(host, in nlwrap.Handle) (netlink.Link, error) {
	outer, err := host.LinkByName(ingressLink)
	if kernel.IsLinkGone(err) {
		return nil, kernel.Unlink(in, ingressOuter)
	}
	if err != nil {
		return nil, fmt.Errorf("find %s: %w", ingressLink, err)
	}
	if outer.Type() != "veth" {
		return nil, fmt.Errorf("link %s: there is a %s of that name: %w", ingressLink, outer.Type(), errdefs.ErrFailedPrecondition)
	}
	inner, err := in.LinkByName(ingressOuter)
	if err == nil && inner.Attrs().ParentIndex == outer.Attrs().Index {
		return outer, nil
	}
	return nil, errors.Join(kernel.Unlink(host, ingressLink), kernel.Unlink(in, ingressOuter))
}

// addressLocked gives both ends their addresses, and sets them up.
func (g *Ingress) addressLocked(host kernel.Socket, in nlwrap.Handle, outer netlink.Link, subnets []core.OverlaySubnet, is6 bool) error {
	inner, err := in.LinkByName(ingressOuter)
	if err != nil {
		return fmt.Errorf("find %s inside: %w", ingressOuter, err)
	}
	off := "1"
	if is6 {
		off = "0"
	}
	if _, err := settings.Set("net/ipv6/conf/"+ingressLink+"/disable_ipv6", off); err != nil && (is6 || !errors.Is(err, fs.ErrNotExist)) {
		return err
	}
	gateway, err := ingressGateway(host.Handle, outer, is6)
	if err != nil {
		return err
	}
	if !gateway.IsValid() && g.inner.IsValid() && g.inner.Is6() == is6 { // lost: the host's rules lead there
		gateway = netip.PrefixFrom(g.inner.Prev(), g.inner.BitLen()-2)
	} else if !gateway.IsValid() {
		if gateway, err = g.choose(subnets, is6); err != nil {
			return err
		}
	}
	g.inner = gateway.Addr().Next()
	for _, end := range []struct {
		h    nlwrap.Handle
		link netlink.Link
		addr netip.Prefix
	}{{host.Handle, outer, gateway}, {in, inner, netip.PrefixFrom(g.inner, gateway.Bits())}} {
		if err := end.h.AddrReplace(end.link, &netlink.Addr{IPNet: kernel.IPNet(end.addr), Flags: unix.IFA_F_NODAD}); err != nil {
			return fmt.Errorf("add address %s to %s: %w", end.addr, end.link.Attrs().Name, err)
		}
		if err := end.h.LinkSetUp(end.link); err != nil {
			return fmt.Errorf("set %s up: %w", end.link.Attrs().Name, err)
		}
	}
	// The first packet does not wait for an answer, nor for a link-local address to ask from.
	if err := errors.Join(kernel.Hint(host.NeighSet(kernel.Neighbour(outer.Attrs().Index, g.inner, inner.Attrs().HardwareAddr))),
		kernel.Hint(in.NeighSet(kernel.Neighbour(inner.Attrs().Index, gateway.Addr(), outer.Attrs().HardwareAddr)))); err != nil {
		return fmt.Errorf("make the ends of %s neighbours: %w", ingressLink, err)
	}
	if err := host.Settle(ingressLink); err != nil {
		return err
	}
	if err := g.kernel.Router(ingressLink, is6); err != nil {
		return err
	}
	for _, table := range []int{unix.RT_TABLE_MAIN, ingressRoutes} {
		route := &netlink.Route{LinkIndex: inner.Attrs().Index, Gw: gateway.Addr().AsSlice(), Table: table}
		if err := in.RouteReplace(route); err != nil {
			return fmt.Errorf("add default route by %s: %w", gateway.Addr(), err)
		}
	}
	return nil
}

// ingressGateway returns the address that the host's end has, the zero Prefix for none.
func ingressGateway(host nlwrap.Handle, outer netlink.Link, is6 bool) (netip.Prefix, error) {
	have, err := host.AddrList(outer, kernel.Family(is6))
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("list addresses of %s: %w", ingressLink, err)
	}
	for _, a := range have {
		ip, _ := netip.AddrFromSlice(a.IP)
		bits, size := a.Mask.Size()
		if p := netip.PrefixFrom(ip.Unmap(), bits); !p.Addr().IsLinkLocalUnicast() && size-bits == 2 && p.Addr() == p.Masked().Addr().Next() {
			return p, nil
		}
	}
	return netip.Prefix{}, nil
}

// choose returns the address of the host's end: one of four that nobody uses.
func (g *Ingress) choose(subnets []core.OverlaySubnet, is6 bool) (netip.Prefix, error) {
	if is6 {
		return netip.PrefixFrom(ipam.ChooseULA().Gateway, 126), nil
	}
	used, err := g.used()
	if err != nil {
		return netip.Prefix{}, err
	}
	for _, s := range subnets {
		used = append(used, s.Range)
	}
	// Overlays usually are in this one.
	r, err := ipam.ChooseSmall(append(slices.Clone(used), netip.MustParsePrefix("10.0.0.0/8")))
	if err != nil {
		r, err = ipam.ChooseSmall(used)
	}
	return netip.PrefixFrom(r.Gateway, 30), err
}

// attachLocked gives the namespace its interface on the overlay.
func (g *Ingress) attachLocked(in nlwrap.Handle, want vxlan.Attachment, on *vxlan.Network, others []*vxlan.Network) error {
	for _, n := range others {
		if n != on && ingressOn(n) >= 0 {
			if err := n.Detach(Key); err != nil {
				return err
			}
		}
	}
	if i := ingressOn(on); i >= 0 {
		have := on.Attached()[i]
		err := on.CheckAttached(Key, g.path)
		if err == nil && slices.Equal(have.Addrs, want.Addrs) && have.MAC == want.MAC {
			return nil
		}
		if err != nil && !errdefs.IsFailedPrecondition(err) {
			return err
		}
		if err := on.Detach(Key); err != nil {
			return err
		}
	}
	// Of a network that is gone.
	if err := kernel.Unlink(in, ingressInner); err != nil {
		return err
	}
	_, err := on.Attach(g.path, want)
	return err
}

func ingressOn(n *vxlan.Network) int {
	return slices.IndexFunc(n.Attached(), func(a vxlan.Attachment) bool { return a.Key == Key })
}

// answersToHost routes packets from the overlay, and the namespace's own answers, to the host.
func answersToHost(in nlwrap.Handle, inner netip.Addr) error {
	byLink, byAddr := netlink.NewRule(), netlink.NewRule()
	byLink.IifName, byLink.Priority = ingressInner, ingressRoutes
	byAddr.Src, byAddr.Priority = kernel.IPNet(netip.PrefixFrom(inner, inner.BitLen())), ingressRoutes+1
	for _, r := range []*netlink.Rule{byLink, byAddr} {
		r.Table, r.Family = ingressRoutes, kernel.Family(inner.Is6())
		if err := in.RuleAdd(r); err != nil && !errors.Is(err, unix.EEXIST) {
			return fmt.Errorf("route answers to the host: %w", err)
		}
	}
	return nil
}

// Close removes the ingress, whether this process has opened it or an earlier one. It is idempotent.
func (g *Ingress) Close(nets []*vxlan.Network) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.closeLocked(nets)
}

func (g *Ingress) closeLocked(nets []*vxlan.Network) error {
	var errs []error
	if g.wall != nil {
		errs = append(errs, g.wall.Close())
		g.wall = nil
	}
	led, err := g.table.Load(ports.Published)
	errs = append(errs, err, g.table.Withdraw())
	for _, n := range nets {
		if ingressOn(n) >= 0 {
			errs = append(errs, n.Detach(Key))
		}
	}
	host, err := kernel.Host()
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	defer host.Close()
	errs = append(errs, kernel.Unlink(host, ingressLink))
	if kernel.Pinned(g.path) {
		// The kernel removes the links of a namespace some time after its end.
		if in, ns, err := kernel.Inside(g.path); err == nil {
			errs = append(errs, kernel.Unlink(in, ingressInner))
			in.Close()
			_ = ns.Close()
		}
	}
	errs = append(errs, kernel.Unpin(g.path), nft.Cut(nil, ended(led)))
	g.claims.Drop(ports.Published)
	g.is, g.balancer, g.led, g.taken, g.inner = nil, nil, nil, nil, netip.Addr{}
	return errors.Join(errs...)
}

// ended are the services of ports that lead nowhere any more.
func ended(led []nft.Forward) (list []nft.Service) {
	for _, f := range led {
		list = append(list, nft.Service{Proto: f.Proto, Port: f.Port})
	}
	return list
}

// Recover claims the ports that an earlier process has led, which are led on.
func (g *Ingress) Recover(context.Context, []core.NetworkRequest) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.is != nil || !kernel.Pinned(g.path) {
		return nil
	}
	led, err := g.table.Load(ports.Published)
	if err != nil {
		return err
	}
	g.led = map[ports.Claim]bool{}
	for _, f := range led {
		claim := ports.Claim{Proto: protoName(f.Proto), Port: f.Port}
		if err := g.claims.Take(ports.Published, []ports.Claim{claim}); err != nil {
			g.log.Warn("a published port is a sandbox's as well", "error", err.Error())
			continue
		}
		g.led[claim] = true
	}
	return nil
}

// Stop ends the watch of other programs' rules; all else stays.
func (g *Ingress) Stop() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.kernel.Close()
	var err error
	if g.wall != nil {
		err = g.wall.Close()
		g.wall = nil
	}
	return errors.Join(err, g.table.Close())
}

// Path is the path of the pinned namespace.
func (g *Ingress) Path() string { return g.path }

// Inner returns the address in the namespace that the host's ports lead to.
func (g *Ingress) Inner() netip.Addr {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.inner
}

// Opened returns the open ingress, nil if there is none.
func (g *Ingress) Opened() *core.Ingress {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.is
}

// Rebuild makes the rules on the host again.
func (g *Ingress) Rebuild() error { return g.table.Rebuild() }

// MendSettings restores the kernel parameters of the host that the link needs.
func (g *Ingress) MendSettings() []kernel.Change { return kernel.MendSettings(g.kernel) }

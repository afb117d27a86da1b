package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/network/ports"
	"github.com/longshore/longshore/internal/network/settings"
)

// bridge is the builtin network: a bridge, a veth pair per sandbox, one masquerade rule for all,
// and an element of a map per host port.
type bridge struct {
	cfg    netconf.Config
	log    *slog.Logger
	leases *ipam.Leases
	claims *ports.Claims // all bridges' together
	table  *nft.Table
	// names are the network names in a request that mean this network.
	names []string
	// internal says that there is no way out.
	internal bool
	// user says that a user has defined it. A sandbox may be on several of these networks.
	user  bool
	flows flows
	// kernel has the host's kernel parameters that the bridge needs.
	kernel *settings.Host
	// portsOn returns the name of the network that a sandbox's host ports lead to.
	portsOn func(core.NetworkRequest) string
	// plain returns the ranges within which nothing is masqueraded.
	plain func() []netip.Prefix

	mu sync.Mutex // guards link, host, wall; serializes the creation of the bridge
	// link is the bridge as it was last seen; zero makes the next user look again.
	link bridgeLink
	host kernel.Socket // socket in our own namespace, kept open
	wall *nft.Wall
}

func newBridge(cfg netconf.Config, leases *ipam.Leases, claims *ports.Claims, log *slog.Logger) *bridge {
	return &bridge{
		names: []string{core.NetworkDefault, "", string(netconf.ModeBuiltin), cfg.Bridge}, claims: claims,
		plain: func() []netip.Prefix {
			nets, _ := cfg.PlainNets(leases.Ranges()) // checked together with the configuration
			return nets
		},
		cfg: cfg, log: log, leases: leases, flows: flows{log: log}, kernel: settings.NewHost(log),
		table: nft.New(nft.Options{Bridge: cfg.Bridge, Masquerade: cfg.Masquerade, Logger: log}),
	}
}

// Stop ends the watch of other programs' rules; all else stays.
func (b *bridge) Stop() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.host.Close()
	b.flows.close()
	b.kernel.Close()
	var err error
	if b.wall != nil {
		err = b.wall.Close()
		b.wall = nil
	}
	b.link = bridgeLink{}
	return errors.Join(err, b.table.Close())
}

// stale makes the next Setup check the bridge again.
func (b *bridge) stale() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.link = bridgeLink{}
}

// trouble returns why other hosts cannot reach new sandboxes, "" if no reason is known.
func (b *bridge) trouble() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wall == nil {
		return ""
	}
	return b.wall.Trouble()
}

// lease leases the wanted addresses, or those that the sandbox had before it was stopped where
// they are free, or any.
func (b *bridge) lease(req core.NetworkRequest, wanted []netip.Addr) (ipam.Lease, []core.ID, error) {
	if i := req.Last.On(b.names[0]); len(wanted) == 0 && i >= 0 && len(req.Last.Interfaces[i].Addrs) > 0 {
		lease, stale, err := b.leases.Acquire(req.Sandbox, addrsOf(req.Last.Interfaces[i].Addrs))
		if !errdefs.IsAlreadyExists(err) && !errdefs.IsInvalidArgument(err) {
			return lease, stale, err
		}
	}
	return b.leases.Acquire(req.Sandbox, wanted)
}

// add gives a sandbox its link, addresses and ports.
func (b *bridge) add(_ context.Context, req core.NetworkRequest) (_ core.NetworkStatus, err error) {
	want, err := b.wanted(req.Config)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	lease, stale, err := b.lease(req, want.addrs)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.leases.Release(req.Sandbox))
		}
	}()
	claimed, err := b.claim(req.Sandbox, req.Config.Ports)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	defer func() {
		if err != nil {
			b.claims.Drop(req.Sandbox)
		}
	}()
	fwds, err := forwards(req.Sandbox, claimed, lease)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	iface, err := b.connect(req, want, lease, stale)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	if err := b.table.Add(fwds); err != nil {
		return core.NetworkStatus{}, errors.Join(err, b.unlink(b.linkName(req.Sandbox)))
	}
	b.flows.forget(fwds, false)
	st := core.NetworkStatus{
		Mode: string(netconf.ModeBuiltin), Interfaces: []core.Attachment{iface}, Ports: claimed,
		DNS: core.DNS{Servers: b.cfg.DNS.Servers, Searches: b.cfg.DNS.Searches, Options: b.cfg.DNS.Options},
	}
	for i, a := range lease.Addrs {
		st.Addrs = append(st.Addrs, a.Addr())
		st.Gateways = append(st.Gateways, gateway(a, lease.Gateways[i]))
	}
	return st, nil
}

func addrsOf(list []netip.Prefix) (addrs []netip.Addr) {
	for _, p := range list {
		addrs = append(addrs, p.Addr().Unmap())
	}
	return addrs
}

// wanted is one requested interface, checked.
type wanted struct {
	name   string
	addrs  []netip.Addr
	mac    string
	mtu    int
	routes []core.Route
	// noDefault says that the default route does not lead over it.
	noDefault bool
}

func (b *bridge) wanted(cfg core.NetworkConfig) (wanted, error) {
	if !slices.Contains(b.names, cfg.Name) {
		return wanted{}, fmt.Errorf("network %q: there is none of that name: %w", cfg.Name, errdefs.ErrNotFound)
	}
	if len(cfg.Attach) > 1 {
		return wanted{}, fmt.Errorf("%d interfaces: the builtin network makes one: %w", len(cfg.Attach), errdefs.ErrInvalidArgument)
	}
	if len(cfg.Attach) == 1 {
		a := cfg.Attach[0]
		if a.Network != "" && !slices.Contains(b.names, a.Network) {
			return wanted{}, fmt.Errorf("network %q: there is none of that name: %w", a.Network, errdefs.ErrNotFound)
		}
		return b.wants(a, firstInterface)
	}
	return wanted{name: firstInterface, noDefault: b.internal}, nil
}

// firstInterface is the name of an interface that is the only one.
const firstInterface = "eth0"

// wants checks a requested interface; name is its default name.
func (b *bridge) wants(a core.Attachment, name string) (wanted, error) {
	w := wanted{
		name: cmp.Or(a.Interface, name), addrs: addrsOf(a.Addrs), mac: a.MAC, mtu: a.MTU, routes: a.Routes, noDefault: a.NoDefault || b.internal,
	}
	invalid := func(format string, args ...any) (wanted, error) {
		return wanted{}, fmt.Errorf(format+": %w", append(args, errdefs.ErrInvalidArgument)...)
	}
	if len(w.name) > netconf.MaxLink || w.name == "lo" || w.name == "." || w.name == ".." || strings.ContainsAny(w.name, "/ :\t\n\x00") {
		return invalid("interface %q: not a valid name", w.name)
	}
	if len(a.Open) > 0 {
		return invalid("network %q: only an interface on an overlay may be closed but for some ports", a.Network)
	}
	if w.mtu != 0 && (w.mtu < 68 || w.mtu > 65535) {
		return invalid("mtu %d is out of range", w.mtu)
	}
	for _, r := range w.routes {
		if !r.To.IsValid() || r.To.Bits() == 0 || r.Via.IsValid() && r.Via.Is4() != r.To.Addr().Is4() {
			return invalid("route to %s via %s", r.To, r.Via)
		}
	}
	return w, nil
}

// forwards converts claimed ports to forwards.
func forwards(id core.ID, claimed []core.Port, lease ipam.Lease) ([]nft.Forward, error) {
	var fwds []nft.Forward
	for _, p := range claimed {
		proto, err := ports.Number(p.Proto)
		if err != nil {
			return nil, fmt.Errorf("host port %d: %w", p.Host, err)
		}
		if p.Host == 0 || p.Container == 0 {
			return nil, fmt.Errorf("host port %d to %d: a port is zero: %w", p.Host, p.Container, errdefs.ErrInvalidArgument)
		}
		found := false
		ip := p.HostIP.Unmap()
		if ip.Is6() && ip.IsLoopback() {
			return nil, fmt.Errorf("host port %d on ::1: the kernel does not forward IPv6 loopback: %w", p.Host, errdefs.ErrInvalidArgument)
		}
		for _, a := range lease.Addrs {
			if ip.IsValid() && ip.Is4() != a.Addr().Is4() {
				continue
			}
			found = true
			f := nft.Forward{
				Proto: proto, Port: p.Host, Target: netip.AddrPortFrom(a.Addr(), p.Container), Sandbox: id,
			}
			if ip.IsValid() && !ip.IsUnspecified() {
				f.HostIP = ip
			}
			fwds = append(fwds, f)
		}
		if !found {
			return nil, fmt.Errorf("host port %d on %s: the sandbox has no address of that family: %w", p.Host, ip, errdefs.ErrFailedPrecondition)
		}
	}
	return fwds, nil
}

// claim claims the host ports of a sandbox and chooses those that the request leaves open. It fails
// if a process of the host listens on one. It returns all, in their order. After an error the
// sandbox has none.
func (b *bridge) claim(id core.ID, want []core.Port) (_ []core.Port, err error) {
	if len(want) == 0 {
		return nil, nil
	}
	named := claims(want)
	if err := b.claims.Take(id, named); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.claims.Drop(id)
		}
	}()
	for _, c := range named {
		if err := ports.Probe(c); err != nil {
			return nil, err
		}
	}
	claimed := slices.Clone(want)
	if len(named) == len(want) {
		return claimed, nil
	}
	pool, err := b.cfg.Pool()
	if err != nil {
		return nil, err
	}
	for i, p := range claimed {
		if p.Host != 0 {
			continue
		}
		c, err := b.claims.Choose(id, claimOf(p), pool)
		if err != nil {
			return nil, err
		}
		claimed[i].Host = c.Port
	}
	return claimed, nil
}

// claims are those of ports that are named.
func claims(list []core.Port) (named []ports.Claim) {
	for _, p := range list {
		if p.Host != 0 {
			named = append(named, claimOf(p))
		}
	}
	return named
}

func claimOf(p core.Port) ports.Claim {
	c := ports.Claim{Proto: p.Proto, IP: p.HostIP.Unmap(), Port: p.Host}
	if c.Proto == "" {
		c.Proto = "tcp"
	}
	return c
}

// del releases the sandbox's addresses and host ports.
func (b *bridge) del(id core.ID) error {
	err := b.give(id)
	if err == nil {
		b.claims.Drop(id)
	}
	return err
}

// give releases the sandbox's rules, neighbour entries and lease on this bridge. Rules are removed
// first, so that no packet is sent to an address that is free.
func (b *bridge) give(id core.ID) error {
	if err := b.shut(id); err != nil {
		return err
	}
	b.forgetNeighbours(id)
	return b.leases.Release(id)
}

// shut removes the rules of the sandbox's host ports.
func (b *bridge) shut(id core.ID) error {
	fwds := b.table.Forwards(id)
	if err := b.table.Remove(fwds); err != nil {
		return err
	}
	b.flows.forget(fwds, true)
	return nil
}

// lead adds rules that forward claimed host ports to the sandbox.
func (b *bridge) lead(id core.ID, claimed []core.Port) error {
	lease, ok := b.leases.Held(id)
	if !ok {
		return fmt.Errorf("it holds no address: %w", errdefs.ErrFailedPrecondition)
	}
	fwds, err := forwards(id, claimed, lease)
	if err != nil {
		return err
	}
	if err := b.table.Add(fwds); err != nil {
		return err
	}
	b.flows.forget(fwds, false)
	return nil
}

// forgetNeighbours removes the host's neighbour entries of a sandbox's addresses. They would
// expire, but the kernel has room for only a thousand.
func (b *bridge) forgetNeighbours(id core.ID) {
	lease, held := b.leases.Held(id)
	b.mu.Lock()
	defer b.mu.Unlock()
	if !held || b.link.index == 0 {
		return
	}
	for _, a := range lease.Addrs {
		_ = b.host.NeighDel(kernel.Neighbour(b.link.index, a.Addr(), nil))
	}
}

// Withdraw removes the bridge and all rules.
func (b *bridge) Withdraw(context.Context) error {
	if held := b.leases.All(); len(held) > 0 {
		return fmt.Errorf("%d sandboxes hold addresses: %w", len(held), errdefs.ErrFailedPrecondition)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.link = bridgeLink{}
	if b.wall != nil {
		if err := b.wall.Close(); err != nil {
			return err
		}
		b.wall = nil
	}
	host, err := kernel.Host()
	if err != nil {
		return err
	}
	defer host.Close()
	// Links in namespaces that are being destroyed need no bridge.
	return errors.Join(b.table.Withdraw(), kernel.Unlink(host, b.cfg.Bridge))
}

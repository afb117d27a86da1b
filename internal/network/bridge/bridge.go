// Package bridge is the driver of the builtin network: a bridge of the host and a pair of links for each sandbox, made
// in-process. The networks that users define are such bridges, too.
//
// Start at Bridge.
package bridge

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

// Bridge is the builtin network: a bridge, a veth pair per sandbox, one masquerade rule for all,
// and an element of a map per host port.
type Bridge struct {
	cfg    netconf.Config
	log    *slog.Logger
	leases *ipam.Leases
	claims *ports.Claims // all bridges' together
	table  *nft.Table
	// names are the network names in a request that mean this network.
	names []string
	// internal says that there is no way out.
	internal bool
	// isolated says that its sandboxes do not reach each other.
	isolated bool
	// hostIP is the address of host ports that name none; zero is every address.
	hostIP netip.Addr
	// group is the group of the bridge's link; 0 is none.
	group uint32
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
	link device
	host kernel.Socket // socket in our own namespace, kept open
	wall *nft.Wall
}

// Options are the parameters of New and NewUser.
type Options struct {
	Config netconf.Config
	Leases *ipam.Leases
	Claims *ports.Claims // of the host's ports, all bridges' together
	// PortsOn returns the name of the network that the host ports of a sandbox lead to; nil: this one.
	PortsOn func(core.NetworkRequest) string
	Logger  *slog.Logger
}

// New returns the builtin network. It changes nothing on the host.
func New(o Options) *Bridge {
	cfg, leases := o.Config, o.Leases
	return &Bridge{
		names: []string{core.NetworkDefault, "", string(netconf.ModeBuiltin), cfg.Bridge}, claims: o.Claims, portsOn: o.PortsOn,
		plain: func() []netip.Prefix {
			nets, _ := cfg.PlainNets(leases.Ranges()) // checked together with the configuration
			return nets
		},
		cfg: cfg, log: o.Logger, leases: leases, flows: flows{log: o.Logger}, kernel: settings.NewHost(o.Logger),
		table: nft.New(nft.Options{Bridge: cfg.Bridge, Masquerade: cfg.Masquerade, Logger: o.Logger}),
	}
}

// UserPrefix starts the names of the bridges of networks that users have defined.
const UserPrefix = "lsu-"

// namedGroup is the link group of bridges with other names. One rule of each network separates it from that
// group.
const namedGroup = 0x6c737500

// NewUser returns a network that a user has defined, beside the builtin network that o.Config describes.
func NewUser(o Options, def core.NetworkDefinition) *Bridge {
	standard := o.Config
	o.Config.Bridge, o.Config.MTU, o.Config.Masquerade = def.Interface, cmp.Or(def.MTU, standard.MTU), !def.Internal && !def.NoMasquerade
	b := New(o)
	b.names, b.internal, b.user = []string{def.Name}, def.Internal, true
	b.isolated, b.hostIP = def.Isolated, def.HostIP
	if !strings.HasPrefix(def.Interface, UserPrefix) {
		b.group = namedGroup
	}
	b.plain = func() []netip.Prefix { return nil }
	b.table = nft.New(nft.Options{
		Name: nft.TableName + "-" + def.Interface, Bridge: def.Interface, Masquerade: o.Config.Masquerade, Internal: def.Internal, Logger: o.Logger,
		Others: []string{UserPrefix, standard.Bridge}, OtherGroup: namedGroup, Isolated: def.Isolated,
	})
	return b
}

// Names returns the names in a request that mean this network, first the one that NetworkStatus has.
func (b *Bridge) Names() []string { return b.names }

// Internal reports whether no route leads out of the network.
func (b *Bridge) Internal() bool { return b.internal }

// Holds reports whether a sandbox has an address.
func (b *Bridge) Holds(id core.ID) bool {
	_, held := b.leases.Held(id)
	return held
}

// Publishes reports whether host ports of a sandbox are forwarded to its address on this network.
func (b *Bridge) Publishes(id core.ID) bool { return len(b.table.Forwards(id)) > 0 }

// Stop ends the watch of other programs' rules; all else stays.
func (b *Bridge) Stop() error {
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
	b.link = device{}
	return errors.Join(err, b.table.Close())
}

// Stale makes the next Setup check the bridge again.
func (b *Bridge) Stale() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.link = device{}
}

// Trouble returns why other hosts cannot reach new sandboxes, "" if no reason is known.
func (b *Bridge) Trouble() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wall == nil {
		return ""
	}
	return b.wall.Trouble()
}

// lease leases the wanted addresses, or those that the sandbox had before it was stopped where
// they are free, or any.
func (b *Bridge) lease(req core.NetworkRequest, wanted []netip.Addr) (ipam.Lease, []core.ID, error) {
	if i := req.Last.On(b.names[0]); len(wanted) == 0 && i >= 0 && len(req.Last.Interfaces[i].Addrs) > 0 {
		lease, stale, err := b.leases.Acquire(req.Sandbox, kernel.Addrs(req.Last.Interfaces[i].Addrs))
		if !errdefs.IsAlreadyExists(err) && !errdefs.IsInvalidArgument(err) {
			return lease, stale, err
		}
	}
	return b.leases.Acquire(req.Sandbox, wanted)
}

// add gives a sandbox its link, addresses and ports.
func (b *Bridge) add(_ context.Context, req core.NetworkRequest) (_ core.NetworkStatus, err error) {
	want, err := wantedFirst(b, req.Config)
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
	claimed, err := b.claim(req.Sandbox, placed(req.Config.Ports, b.hostIP))
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
		return core.NetworkStatus{}, errors.Join(err, b.unlink(b.LinkName(req.Sandbox)))
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

func wantedFirst(b *Bridge, cfg core.NetworkConfig) (wanted, error) {
	if !slices.Contains(b.names, cfg.Name) {
		return wanted{}, fmt.Errorf("network %q: no network has that name: %w", cfg.Name, errdefs.ErrNotFound)
	}
	if len(cfg.Attach) > 1 {
		return wanted{}, fmt.Errorf("%d interfaces: the builtin network makes one: %w", len(cfg.Attach), errdefs.ErrInvalidArgument)
	}
	if len(cfg.Attach) == 1 {
		a := cfg.Attach[0]
		if a.Network != "" && !slices.Contains(b.names, a.Network) {
			return wanted{}, fmt.Errorf("network %q: no network has that name: %w", a.Network, errdefs.ErrNotFound)
		}
		return b.wants(a, firstInterface)
	}
	return wanted{name: firstInterface, noDefault: b.internal}, nil
}

// firstInterface is the name of an interface that is the only one.
const firstInterface = "eth0"

// wants checks a requested interface; name is its default name.
func (b *Bridge) wants(a core.Attachment, name string) (wanted, error) {
	w := wanted{
		name: cmp.Or(a.Interface, name), addrs: kernel.Addrs(a.Addrs), mac: a.MAC, mtu: a.MTU, routes: a.Routes, noDefault: a.NoDefault || b.internal,
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
func (b *Bridge) claim(id core.ID, want []core.Port) (_ []core.Port, err error) {
	if len(want) == 0 {
		return nil, nil
	}
	named := Claims(want)
	if err := b.claims.Take(id, named); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			b.claims.Drop(id)
		}
	}()
	if err := b.claims.Open(named); err != nil {
		return nil, err
	}
	claimed, err := b.choose(id, want)
	if err == nil {
		b.claims.Hold(id)
	}
	return claimed, err
}

// choose claims ports of the ranges that the request names, and of the pool where it names none. It returns all ports.
func (b *Bridge) choose(id core.ID, want []core.Port) ([]core.Port, error) {
	claimed := slices.Clone(want)
	for i, p := range claimed {
		var c ports.Claim
		var err error
		switch {
		case p.Host == 0:
			var pool ports.Pool
			if pool, err = b.cfg.Pool(); err == nil {
				c, err = b.claims.Choose(id, claimOf(p), pool)
			}
		case p.HostLast > p.Host:
			c, err = b.claims.First(id, claimOf(p), p.HostLast)
		default:
			continue
		}
		if err != nil {
			return nil, err
		}
		claimed[i].Host, claimed[i].HostLast = c.Port, 0
	}
	return claimed, nil
}

// placed returns the ports with a network's own address, if it has one, in those that name none.
func placed(list []core.Port, hostIP netip.Addr) []core.Port {
	if !hostIP.IsValid() {
		return list
	}
	list = slices.Clone(list)
	for i := range list {
		if !list[i].HostIP.IsValid() {
			list[i].HostIP = hostIP
		}
	}
	return list
}

func claimOf(p core.Port) ports.Claim {
	c := ports.Claim{Proto: p.Proto, IP: p.HostIP.Unmap(), Port: p.Host}
	if c.Proto == "" {
		c.Proto = "tcp"
	}
	return c
}

// Claims are the claims of those of the ports that name a host port.
func Claims(list []core.Port) (named []ports.Claim) {
	for _, p := range list {
		if p.Host != 0 && p.HostLast <= p.Host {
			named = append(named, claimOf(p))
		}
	}
	return named
}

// del releases the sandbox's addresses and host ports.
func (b *Bridge) del(id core.ID) error {
	err := b.release(id)
	if err == nil {
		b.claims.Drop(id)
	}
	return err
}

// release removes the sandbox's rules, neighbour entries and lease on this bridge. Rules are removed
// first, so that no packet is sent to an address that is free.
func (b *Bridge) release(id core.ID) error {
	if err := b.Unpublish(id); err != nil {
		return err
	}
	b.forgetNeighbours(id)
	return b.leases.Release(id)
}

// Unpublish removes the rules of the sandbox's host ports.
func (b *Bridge) Unpublish(id core.ID) error {
	fwds := b.table.Forwards(id)
	if err := b.table.Remove(fwds); err != nil {
		return err
	}
	b.flows.forget(fwds, true)
	return nil
}

// Publish adds rules that forward claimed host ports to the sandbox.
func (b *Bridge) Publish(id core.ID, claimed []core.Port) error {
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

// ClaimAndPublish claims host ports for a sandbox that has an address on b, and adds their rules. After an error it has none.
func ClaimAndPublish(b *Bridge, id core.ID, want []core.Port) ([]core.Port, error) {
	claimed, err := b.claim(id, placed(want, b.hostIP))
	if err != nil {
		return nil, err
	}
	if err := b.Publish(id, claimed); err != nil {
		b.claims.Drop(id)
		return nil, err
	}
	return claimed, nil
}

// forgetNeighbours removes the host's neighbour entries of a sandbox's addresses. They would
// expire, but the kernel has room for only a thousand.
func (b *Bridge) forgetNeighbours(id core.ID) {
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
func (b *Bridge) Withdraw(context.Context) error {
	if held := b.leases.All(); len(held) > 0 {
		return fmt.Errorf("%d sandboxes hold addresses: %w", len(held), errdefs.ErrFailedPrecondition)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.link = device{}
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

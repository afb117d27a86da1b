package enginetest

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// FirstChosenPort is the first of the host ports that a Network chooses from.
const FirstChosenPort = 61000

// FurtherNetworks are those that the fake Network has besides the default one.
func FurtherNetworks() []string { return []string{"app", "back"} }

// Network is a fake core.Network, with addresses in order and exclusive ports.
type Network struct {
	fault
	overlays *Overlays

	lock   sync.Mutex // guards held, stats, ranges, stubborn
	held   map[core.ID]core.NetworkStatus
	stats  map[core.ID][]core.NetStats
	ranges []netip.Prefix
	// stubborn says that wishes for addresses are not heeded.
	stubborn bool
}

var _ core.Network = (*Network)(nil)

func newNetwork() *Network {
	return &Network{held: map[core.ID]core.NetworkStatus{}, stats: map[core.ID][]core.NetStats{}, ranges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/16")}}
}

// GiveOthers makes n give other addresses than those that are wanted, as CNI plugins may.
func (n *Network) GiveOthers() {
	n.lock.Lock()
	defer n.lock.Unlock()
	n.stubborn = true
}

// Setup leases the first free address.
func (n *Network) Setup(ctx context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	if err := n.check(ctx, "Setup"); err != nil {
		return core.NetworkStatus{}, err
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	switch {
	case req.Namespace == "":
		return core.NetworkStatus{Mode: "host"}, nil
	case req.Config.Name == core.NetworkNone:
		return core.NetworkStatus{Mode: core.NetworkNone}, nil
	}
	if st, ok := n.held[req.Sandbox]; ok {
		return st, nil
	}
	if err := n.freePorts(req.Config.Ports); err != nil {
		return core.NetworkStatus{}, err
	}
	chosen, err := n.choosePorts(req.Config.Ports)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	st := core.NetworkStatus{Mode: "builtin", Ports: chosen, Egress: req.Config.Egress}
	n.held[req.Sandbox] = st
	for _, a := range req.Config.Attached() {
		if st, err = n.attach(req.Sandbox, st, a); err != nil {
			delete(n.held, req.Sandbox)
			return core.NetworkStatus{}, fmt.Errorf("setup network %s: %w", a.Network, err)
		}
	}
	return st, nil
}

// Attach leases the first free address, or the one that is wanted.
func (n *Network) Attach(ctx context.Context, req core.NetworkRequest, a core.Attachment) (core.NetworkStatus, error) {
	if err := n.check(ctx, "Attach"); err != nil {
		return core.NetworkStatus{}, err
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	st := req.Last
	if st.Mode == "host" || req.Namespace == "" {
		return core.NetworkStatus{}, fmt.Errorf("attach: %w", errdefs.ErrFailedPrecondition)
	}
	st.Mode = "builtin"
	st, err := n.attach(req.Sandbox, st, a)
	if err != nil {
		return core.NetworkStatus{}, fmt.Errorf("attach to %s: %w", a.Network, err)
	}
	return st, nil
}

// attach adds an interface to a sandbox. Preconditions: lock is held.
func (n *Network) attach(id core.ID, st core.NetworkStatus, a core.Attachment) (core.NetworkStatus, error) {
	if a.Network = cmp.Or(a.Network, core.NetworkDefault); a.Network != core.NetworkDefault && !slices.Contains(FurtherNetworks(), a.Network) {
		if err := n.overlays.has(a.Network, a.Addrs); err != nil {
			return st, err
		}
	}
	if st.On(a.Network) >= 0 {
		return st, errdefs.ErrAlreadyExists
	}
	for _, other := range n.held {
		for _, p := range a.Addrs {
			if slices.Contains(other.Addrs, p.Addr()) {
				return st, errdefs.ErrAlreadyExists
			}
		}
	}
	if len(a.Addrs) == 0 || n.stubborn {
		addr, err := n.freeAddr()
		if err != nil {
			return st, err
		}
		a.Addrs = []netip.Prefix{netip.PrefixFrom(addr, 16)}
	}
	if a.Interface == "" {
		a.Interface = fmt.Sprintf("eth%d", len(st.Interfaces))
	}
	st.Interfaces = append(slices.Clone(st.Interfaces), a)
	st.Addrs = slices.Clone(st.Addrs)
	for _, p := range a.Addrs {
		st.Addrs = append(st.Addrs, p.Addr())
	}
	n.held[id] = st
	return st, nil
}

// Detach releases the address of one interface.
func (n *Network) Detach(ctx context.Context, req core.NetworkRequest, network string) (core.NetworkStatus, error) {
	if err := n.check(ctx, "Detach"); err != nil {
		return core.NetworkStatus{}, err
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	st := req.Last.Without(network)
	if len(st.Interfaces) > 0 {
		n.held[req.Sandbox] = st
		return st, nil
	}
	delete(n.held, req.Sandbox)
	return st, nil
}

// anyList is a core.EgressPolicy that permits every list.
type anyList struct{}

func (anyList) Complete(core.Owner, *core.SandboxConfig) error { return nil }

func (anyList) Narrow(_ core.Owner, _ map[string]string, list []string) ([]string, error) {
	return list, nil
}

// Restrict records the list of a sandbox.
func (n *Network) Restrict(ctx context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	if err := n.check(ctx, "Restrict"); err != nil {
		return req.Last, err
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	st, ok := n.held[req.Sandbox]
	if !ok {
		return req.Last, fmt.Errorf("it has no network: %w", errdefs.ErrFailedPrecondition)
	}
	st.Egress = req.Config.Egress
	n.held[req.Sandbox] = st
	return st, nil
}

// Publish replaces the ports.
func (n *Network) Publish(ctx context.Context, req core.NetworkRequest, want []core.Port) (core.NetworkStatus, error) {
	if err := n.check(ctx, "Publish"); err != nil {
		return req.Last, err
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	st := req.Last
	st.Ports = nil
	n.held[req.Sandbox] = st
	err := n.freePorts(want)
	if err == nil {
		st.Ports, err = n.choosePorts(want)
	}
	if err == nil {
		n.held[req.Sandbox] = st
	}
	return st, err
}

// Recover removes interfaces that are not in the request of their sandbox. The addresses of
// sandboxes that have none are for the engine to find.
func (n *Network) Recover(ctx context.Context, live []core.NetworkRequest) error {
	n.lock.Lock()
	defer n.lock.Unlock()
	for _, req := range live {
		if delete(n.held, req.Sandbox); len(req.Last.Interfaces) > 0 {
			req.Last.Egress = req.Config.Egress
			n.held[req.Sandbox] = req.Last
		}
	}
	return n.check(ctx, "Recover")
}

// freePorts returns an error when one of ports is in use. Preconditions: lock is held.
func (n *Network) freePorts(ports []core.Port) error {
	for _, p := range ports {
		if !slices.Contains([]string{"tcp", "udp", "sctp"}, p.Proto) {
			return fmt.Errorf("setup network: protocol %q: %w", p.Proto, errdefs.ErrInvalidArgument)
		}
		for _, st := range n.held {
			if slices.ContainsFunc(st.Ports, func(q core.Port) bool {
				return p.Host != 0 && p.HostLast <= p.Host && p.Host == q.Host && p.Proto == q.Proto
			}) {
				return fmt.Errorf("setup network: host port %d is taken: %w", p.Host, errdefs.ErrFailedPrecondition)
			}
		}
	}
	return nil
}

// choosePorts returns ports with those chosen that are left to the network. Preconditions: lock is
// held.
func (n *Network) choosePorts(ports []core.Port) ([]core.Port, error) {
	ports = slices.Clone(ports)
	for i, p := range ports {
		if p.HostLast > p.Host {
			for p.HostLast = 0; p.Host < ports[i].HostLast && n.freePorts([]core.Port{p}) != nil; {
				p.Host++
			}
			if err := n.freePorts([]core.Port{p}); err != nil {
				return nil, fmt.Errorf("%w: %w", err, errdefs.ErrResourceExhausted)
			}
			ports[i] = p
		}
		for next := uint16(FirstChosenPort); ports[i].Host == 0; next++ {
			if p.Host = next; n.freePorts([]core.Port{p}) == nil && !slices.ContainsFunc(ports, func(q core.Port) bool { return q.Host == next }) {
				ports[i] = p
			}
		}
	}
	return ports, nil
}

// freeAddr returns a free address, but for network, gateway and broadcast. Preconditions: lock is
// held.
func (n *Network) freeAddr() (netip.Addr, error) {
	taken := map[netip.Addr]bool{}
	for _, st := range n.held {
		for _, a := range st.Addrs {
			taken[a] = true
		}
	}
	for _, r := range n.ranges {
		for a := r.Addr().Next().Next(); r.Contains(a.Next()); a = a.Next() {
			if !taken[a] {
				return a, nil
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("setup network: no address left: %w", errdefs.ErrResourceExhausted)
}

// Check reports whether the interfaces of Setup still exist.
func (n *Network) Check(ctx context.Context, req core.NetworkRequest) error {
	if err := n.check(ctx, "Check"); err != nil {
		return err
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	st, ok := n.held[req.Sandbox]
	if !ok && req.Last.Mode != "host" && req.Last.Mode != core.NetworkNone {
		return fmt.Errorf("check network: %w", errdefs.ErrNotFound)
	}
	for _, a := range req.Last.Interfaces {
		if st.On(a.Network) < 0 {
			return fmt.Errorf("check network %s: %w", a.Network, errdefs.ErrNotFound)
		}
	}
	return nil
}

// Teardown releases the address.
func (n *Network) Teardown(ctx context.Context, req core.NetworkRequest) error {
	if err := n.check(ctx, "Teardown"); err != nil {
		return err
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	delete(n.held, req.Sandbox)
	return nil
}

// Info returns that the network is ready.
func (n *Network) Info(ctx context.Context) (core.NetworkInfo, error) {
	n.lock.Lock()
	defer n.lock.Unlock()
	return core.NetworkInfo{Mode: "builtin", Ready: true, Ranges: n.ranges}, n.check(ctx, "Info")
}

// SetRanges sets the ranges.
func (n *Network) SetRanges(ctx context.Context, cidrs []string) error {
	if err := n.check(ctx, "SetRanges"); err != nil {
		return err
	}
	var ranges []netip.Prefix
	for _, c := range cidrs {
		p, err := netip.ParsePrefix(c)
		if err != nil {
			return fmt.Errorf("set ranges: %w: %w", err, errdefs.ErrInvalidArgument)
		}
		if slices.ContainsFunc(ranges, p.Overlaps) {
			return fmt.Errorf("set ranges: %s overlaps another: %w", c, errdefs.ErrInvalidArgument)
		}
		ranges = append(ranges, p.Masked())
	}
	if len(ranges) == 0 {
		return fmt.Errorf("set ranges: none: %w", errdefs.ErrInvalidArgument)
	}
	n.lock.Lock()
	defer n.lock.Unlock()
	n.ranges = ranges
	return nil
}

// Sandboxes returns those that have an address or a port.
func (n *Network) Sandboxes(ctx context.Context) ([]core.ID, error) {
	n.lock.Lock()
	defer n.lock.Unlock()
	return slices.Sorted(maps.Keys(n.held)), n.check(ctx, "Sandboxes")
}

// reboot gives up all addresses. A boot loses namespaces and leases.
func (n *Network) reboot() {
	n.lock.Lock()
	defer n.lock.Unlock()
	clear(n.held)
}

// SetStats sets the result of Stats for a sandbox with an address.
func (n *Network) SetStats(sandbox core.ID, stats ...core.NetStats) {
	n.lock.Lock()
	defer n.lock.Unlock()
	n.stats[sandbox] = stats
}

// Stats returns the values of SetStats, or an eth0 without traffic.
func (n *Network) Stats(ctx context.Context, reqs []core.NetworkRequest) (map[core.ID][]core.NetStats, error) {
	n.lock.Lock()
	defer n.lock.Unlock()
	out := map[core.ID][]core.NetStats{}
	for _, req := range reqs {
		held, ok := n.held[req.Sandbox]
		if !ok {
			continue
		}
		for _, a := range held.Interfaces {
			out[req.Sandbox] = append(out[req.Sandbox], core.NetStats{Name: a.Interface})
		}
		if st, ok := n.stats[req.Sandbox]; ok {
			out[req.Sandbox] = st
		}
	}
	return out, n.check(ctx, "Stats")
}

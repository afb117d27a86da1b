package network

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/netconf"
)

// A sandbox may be on several networks: the default one, made by our bridge or by CNI plugins, and
// any of those that users have defined. Its default route and its host ports are with the first
// of its interfaces that leads out.

// on returns the bridge of a network by the name that NetworkStatus has for it.
func (n *Network) on(network string) (*bridge, bool) {
	if u, ok := n.users.get(network); ok {
		return u.bridge, true
	}
	return n.bridge, n.mode == netconf.ModeBuiltin && slices.Contains(n.bridge.names, network)
}

// bridges returns all, whether they exist in the kernel or not.
func (n *Network) bridges() []*bridge {
	list := []*bridge{n.bridge}
	for _, u := range n.users.all() {
		list = append(list, u.bridge)
	}
	return list
}

// split divides the interfaces of a request: first has the one on a user-defined network, or those
// that the bridge or CNI plugins make in one call; more are attached afterwards.
func split(n *Network, cfg core.NetworkConfig) (first core.NetworkConfig, more []core.Attachment) {
	first = cfg
	all := cfg.Attached()
	if u, ok := n.users.get(all[0].Network); ok {
		first.Name, first.Attach = u.def.Name, all[:1]
		return first, all[1:]
	}
	first.Attach = nil
	for i, a := range all {
		switch _, ok := n.users.get(a.Network); {
		case ok:
			more = append(more, a)
		case i < len(cfg.Attach):
			first.Attach = append(first.Attach, cfg.Attach[i])
		}
	}
	return first, more
}

// setupAll makes the first interface, with the host's ports, and attaches the others.
func (n *Network) setupAll(ctx context.Context, req core.NetworkRequest) (st core.NetworkStatus, err error) {
	first, more := split(n, req.Config)
	one := req
	one.Config = first
	switch u, ok := n.users.get(first.Name); {
	case ok:
		st, err = n.addUser(ctx, u, one)
	case n.mode == netconf.ModeCNI:
		st, err = n.cni.add(ctx, one)
	default:
		st, err = n.bridge.add(ctx, one)
	}
	if err != nil || len(more) == 0 {
		return st, err
	}
	before := req.Last
	for _, a := range more {
		req.Last = st
		// Where it can, a sandbox that is started again keeps the address that it had.
		if i := before.On(a.Network); i >= 0 && len(a.Addrs) == 0 {
			same := a
			same.Addrs = before.Interfaces[i].Addrs
			if next, err := n.attach(ctx, req, same); err == nil {
				st = next
				continue
			}
		}
		if st, err = n.attach(ctx, req, a); err != nil {
			return core.NetworkStatus{}, errors.Join(fmt.Errorf("network %s: %w", a.Network, err), n.undo(ctx, req))
		}
	}
	return st, nil
}

// undo reverts a Setup that failed after its first interface.
func (n *Network) undo(ctx context.Context, req core.NetworkRequest) error {
	errs := []error{n.delUser(ctx, req), n.bridge.del(req.Sandbox), n.cni.del(ctx, req)}
	for _, a := range req.Last.Interfaces {
		if b, ok := n.on(a.Network); ok {
			errs = append(errs, b.unlink(b.linkName(req.Sandbox)))
		}
	}
	return errors.Join(errs...)
}

// addUser gives a sandbox its first link, to a network that a user has defined, and a name server.
func (n *Network) addUser(ctx context.Context, u *user, req core.NetworkRequest) (core.NetworkStatus, error) {
	u.use.RLock()
	defer u.use.RUnlock()
	if u.gone {
		return core.NetworkStatus{}, fmt.Errorf("network %q: %w", u.def.Name, errdefs.ErrNotFound)
	}
	st, err := u.bridge.add(ctx, req)
	if err != nil {
		return st, err
	}
	st.Resolver = names.Address()
	if err := n.names.Add(ctx, n.box(req, st)); err != nil {
		return core.NetworkStatus{}, errors.Join(err, u.bridge.del(req.Sandbox), u.bridge.unlink(u.bridge.linkName(req.Sandbox)))
	}
	return st, nil
}

// Attach implements core.Network.
func (n *Network) Attach(ctx context.Context, req core.NetworkRequest, a core.Attachment) (core.NetworkStatus, error) {
	st, err := n.attach(ctx, req, a)
	if err != nil {
		return core.NetworkStatus{}, fmt.Errorf("attach sandbox %s to network %q: %w", req.Sandbox.Short(), a.Network, err)
	}
	return st, nil
}

func (n *Network) attach(ctx context.Context, req core.NetworkRequest, a core.Attachment) (core.NetworkStatus, error) {
	fail := func(format string, class error) (core.NetworkStatus, error) {
		return core.NetworkStatus{}, fmt.Errorf(format+": %w", class)
	}
	if err := context.Cause(ctx); err != nil {
		return core.NetworkStatus{}, err
	}
	if req.Namespace == "" || req.Last.Mode == "" || req.Last.Mode == netconf.StatusHost {
		return fail("it has no network of its own", errdefs.ErrFailedPrecondition)
	}
	if _, ok := core.OverlayName(a.Network); ok {
		return n.Overlays.attach(ctx, req, a)
	}
	b, ok := n.on(a.Network)
	switch {
	case !ok && n.mode == netconf.ModeCNI && slices.Contains(n.bridge.names, a.Network):
		return fail("CNI plugins make the default network, which a sandbox gets when it is created or not at all", errdefs.ErrNotImplemented)
	case !ok:
		return fail("there is none of that name", errdefs.ErrNotFound)
	case req.Last.On(b.names[0]) >= 0:
		return fail("it is on it already", errdefs.ErrAlreadyExists)
	}
	if u, ok := n.users.get(a.Network); ok {
		u.use.RLock()
		defer u.use.RUnlock()
		if u.gone {
			return fail("there is none of that name", errdefs.ErrNotFound)
		}
	}
	want, err := b.wants(a, kernel.FreeName(req))
	if err != nil {
		return core.NetworkStatus{}, err
	}
	if out, _ := (ways{n}).wayOut(req, req.Last); out >= 0 {
		want.noDefault = true
	}
	iface, err := b.join(req, want)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	req.Config = req.Config.With(a)
	st := grown(req.Last, iface, b, req.Sandbox)
	if b.user {
		st.Resolver = names.Address()
	}
	err = ways{n}.moved(req, st)
	if err == nil && st.Resolver.IsValid() {
		err = n.names.Change(ctx, n.box(req, st))
	}
	if err != nil {
		back := req.Last
		back.Interfaces = slices.Clone(back.Interfaces)
		return core.NetworkStatus{}, errors.Join(err, ways{n}.moved(req, back), b.give(req.Sandbox), b.unlink(b.linkName(req.Sandbox)))
	}
	return st, nil
}

// join leases addresses and makes the link.
func (b *bridge) join(req core.NetworkRequest, want wanted) (core.Attachment, error) {
	if _, held := b.leases.Held(req.Sandbox); held {
		// An Attach was interrupted, or a Detach, and nobody has recovered.
		if err := errors.Join(b.give(req.Sandbox), b.unlink(b.linkName(req.Sandbox))); err != nil {
			return core.Attachment{}, err
		}
	}
	lease, stale, err := b.leases.Acquire(req.Sandbox, want.addrs)
	if err != nil {
		return core.Attachment{}, err
	}
	iface, err := b.connect(req, want, lease, stale)
	if err != nil {
		return iface, errors.Join(err, b.leases.Release(req.Sandbox))
	}
	return iface, nil
}

// grown returns st with one more interface.
func grown(st core.NetworkStatus, iface core.Attachment, b *bridge, id core.ID) core.NetworkStatus {
	st.Interfaces = append(slices.Clone(st.Interfaces), iface)
	st.Addrs, st.Gateways = slices.Clone(st.Addrs), slices.Clone(st.Gateways)
	if st.Mode == netconf.StatusNone {
		st.Mode = string(netconf.ModeBuiltin)
		st.DNS = core.DNS{Servers: b.cfg.DNS.Servers, Searches: b.cfg.DNS.Searches, Options: b.cfg.DNS.Options}
	}
	lease, _ := b.leases.Held(id)
	for i, a := range lease.Addrs {
		st.Addrs = append(st.Addrs, a.Addr())
		st.Gateways = append(st.Gateways, gateway(a, lease.Gateways[i]))
	}
	return st
}

// ways says where the default route of a sandbox, and the ports of the host, lead.
type ways struct{ n *Network }

// wayOut returns the index of the interface over which the default route leads, -1 when none leads
// out, and its bridge, which is nil where CNI plugins have made it.
func (w ways) wayOut(req core.NetworkRequest, st core.NetworkStatus) (int, *bridge) {
	for i, a := range st.Interfaces {
		if _, over := core.OverlayName(a.Network); over {
			continue // it leads to no other network
		}
		b, ok := w.n.on(a.Network)
		if !ok {
			return i, nil
		}
		kept := slices.ContainsFunc(req.Config.Attached(), func(c core.Attachment) bool {
			return c.NoDefault && slices.Contains(b.names, c.Network)
		})
		if !b.internal && !kept {
			return i, b
		}
	}
	return -1, nil
}

// portsOn returns the bridge with the rules for a sandbox's host ports, nil for none of ours.
func (w ways) portsOn(req core.NetworkRequest, st core.NetworkStatus) *bridge {
	i, b := w.wayOut(req, st)
	if i >= 0 {
		return b
	}
	for _, a := range st.Interfaces {
		if _, over := core.OverlayName(a.Network); !over {
			b, _ = w.n.on(a.Network)
			return b
		}
	}
	return nil
}

// moved has host ports and default route lead where they should with the interfaces of st.
func (w ways) moved(req core.NetworkRequest, st core.NetworkStatus) error {
	to := w.portsOn(req, st)
	var errs []error
	for _, b := range w.n.bridges() {
		if b != to && len(b.table.Forwards(req.Sandbox)) > 0 {
			errs = append(errs, b.shut(req.Sandbox))
		}
	}
	if to != nil && len(st.Ports) > 0 && len(to.table.Forwards(req.Sandbox)) == 0 {
		errs = append(errs, to.lead(req.Sandbox, st.Ports))
	}
	if i, b := w.wayOut(req, st); b != nil && st.Interfaces[i].NoDefault {
		err := b.leadOut(req, st.Interfaces[i])
		if errs = append(errs, err); err == nil {
			st.Interfaces[i].NoDefault = false
		}
	}
	return errors.Join(errs...)
}

// leadOut has the default route of a sandbox lead over one of its interfaces.
func (b *bridge) leadOut(req core.NetworkRequest, a core.Attachment) error {
	lease, ok := b.leases.Held(req.Sandbox)
	if !ok {
		return fmt.Errorf("it holds no address: %w", errdefs.ErrFailedPrecondition)
	}
	sb, ns, err := kernel.Inside(req.Namespace)
	if err != nil {
		return err
	}
	defer func() { sb.Close(); _ = ns.Close() }()
	in, err := sb.LinkByName(a.Interface)
	if err != nil {
		return fmt.Errorf("find %s inside: %w", a.Interface, err)
	}
	for i, addr := range lease.Addrs {
		if err := (vethPair{}).defaultRoute(sb, in, gateway(addr, lease.Gateways[i]), lease.Gateways[i].IsValid()); err != nil {
			return err
		}
	}
	return nil
}

// Detach implements core.Network.
func (n *Network) Detach(ctx context.Context, req core.NetworkRequest, network string) (core.NetworkStatus, error) {
	st, err := n.detach(ctx, req, network)
	if err != nil {
		return core.NetworkStatus{}, fmt.Errorf("detach sandbox %s from network %q: %w", req.Sandbox.Short(), network, err)
	}
	return st, nil
}

func (n *Network) detach(ctx context.Context, req core.NetworkRequest, network string) (core.NetworkStatus, error) {
	if _, ok := core.OverlayName(network); ok {
		return n.Overlays.detach(ctx, req, network)
	}
	b, ok := n.on(network)
	if !ok {
		if req.Last.On(network) >= 0 {
			return req.Last, fmt.Errorf("CNI plugins have made it, and take it away with the sandbox: %w", errdefs.ErrFailedPrecondition)
		}
		return req.Last, nil
	}
	st := req.Last.Without(b.names[0])
	st.Interfaces = slices.Clone(st.Interfaces) // moved changes it
	if _, held := b.leases.Held(req.Sandbox); !held {
		return st, nil
	}
	// The names first, so that no answer has an address that is about to be freed.
	if st.Resolver.IsValid() {
		if err := n.names.Change(ctx, n.box(req, st)); err != nil {
			return st, err
		}
	}
	if err := b.unlink(b.linkName(req.Sandbox)); err != nil {
		return st, err
	}
	if err := (ways{n}).moved(req, st); err != nil {
		return st, err
	}
	return st, b.give(req.Sandbox)
}

// checkAttached compares each interface on a bridge or an overlay with the status that Setup
// returned.
func (n *Network) checkAttached(req core.NetworkRequest) error {
	var errs []error
	for _, a := range req.Last.Interfaces {
		if b, ok := n.on(a.Network); ok {
			errs = append(errs, b.check(req))
		} else if _, ok := core.OverlayName(a.Network); ok {
			errs = append(errs, n.Overlays.checkOn(req, a))
		}
	}
	return errors.Join(errs...)
}

// recoverAttached rebuilds all bridges. An interface that the request of its sandbox does not have
// was being attached or detached when the agent died: it is taken away.
func (n *Network) recoverAttached(ctx context.Context, live []core.NetworkRequest, alive map[core.ID]bool) error {
	var errs []error
	for _, b := range n.bridges() {
		var here []core.NetworkRequest
		on := map[core.ID]bool{}
		for _, req := range live {
			if req.Last.On(b.names[0]) < 0 {
				continue
			}
			on[req.Sandbox] = true
			if (ways{n}).portsOn(req, req.Last) != b {
				req.Last.Ports = nil
			}
			here = append(here, req)
		}
		for _, l := range b.leases.All() {
			if !alive[l.Sandbox] {
				b.claims.Drop(l.Sandbox)
			}
		}
		errs = append(errs, b.recover(here, on))
	}
	var boxes []names.Box
	for _, req := range live {
		if req.Last.Resolver.IsValid() {
			boxes = append(boxes, n.box(req, req.Last))
		}
		if req.Last.Mode == netconf.StatusNone && len(req.Last.Ports) > 0 { // of a sandbox that is on no network just now
			errs = append(errs, n.bridge.claims.Take(req.Sandbox, claims(req.Last.Ports)))
		}
		if i, b := (ways{n}).wayOut(req, req.Last); b != nil && req.Last.Interfaces[i].NoDefault {
			if err := b.leadOut(req, req.Last.Interfaces[i]); err != nil && !kernel.IsLinkGone(err) {
				errs = append(errs, err)
			}
		}
	}
	if err := n.names.Recover(ctx, boxes); err != nil { // the sandboxes run, and have all else
		n.log.Error("sandboxes on networks of their own have no name server; the next one that is set up there tries again", "error", err.Error())
	}
	return errors.Join(errs...)
}

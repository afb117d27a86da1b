package network

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/bridge"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/netconf"
)

// A sandbox may be on several networks: the default one, made by our bridge or by CNI plugins, and
// any of those that users have defined. Its default route and its host ports are with the first
// of its interfaces that leads out.

// split divides the interfaces of a request: first has the one on a network that is made one by one, or those
// that the bridge or CNI plugins make in one call; more are attached afterwards.
func split(n *Network, cfg core.NetworkConfig) (first core.NetworkConfig, more []core.Attachment) {
	first = cfg
	all := cfg.Attached()
	if _, name, ok := n.drivers.further(all[0].Network); ok {
		first.Name, first.Attach = name, all[:1]
		return first, all[1:]
	}
	first.Attach = nil
	for i, a := range all {
		switch _, _, ok := n.drivers.further(a.Network); {
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
	st, err = n.setupFirst(ctx, one)
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

// setupFirst makes the first interface of a sandbox, and gives it a name server if the network has names.
func (n *Network) setupFirst(ctx context.Context, req core.NetworkRequest) (core.NetworkStatus, error) {
	var d Driver = n.bridges.standard
	if n.mode == netconf.ModeCNI {
		d = n.cni
	}
	k, name, ok := n.drivers.further(req.Config.Name)
	if ok {
		d = k.Driver
	}
	st, err := d.Attach(ctx, req, core.NetworkStatus{})
	if err != nil || !st.Resolver.IsValid() {
		return st, err
	}
	if err := n.names.Add(ctx, n.box(req, st)); err != nil {
		return core.NetworkStatus{}, errors.Join(err, d.Release(ctx, req, ""), d.Detach(ctx, req, name))
	}
	return st, nil
}

// undo reverts a Setup that failed after its first interface.
func (n *Network) undo(ctx context.Context, req core.NetworkRequest) error {
	errs := []error{n.drivers.release(ctx, req)}
	for _, a := range req.Last.Interfaces {
		if k, name, ok := n.drivers.route(a.Network); ok && k.Driver != n.Overlays { // which have removed them by now
			errs = append(errs, k.Detach(ctx, req, name))
		}
	}
	return errors.Join(errs...)
}

// Attach implements core.Network.
func (n *Network) Attach(ctx context.Context, req core.NetworkRequest, a core.Attachment) (core.NetworkStatus, error) {
	st, err := n.attach(ctx, req, a)
	if err != nil {
		return core.NetworkStatus{}, fmt.Errorf("attach sandbox %s to network %q: %w", req.Sandbox.Short(), a.Network, err)
	}
	return n.lists.restrict(ctx, req, st) // the addresses of the preset cluster have changed
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
	k, name, ok := n.drivers.route(a.Network)
	switch {
	case !ok && n.mode == netconf.ModeCNI && slices.Contains(n.bridges.standard.Names(), a.Network):
		return fail("CNI plugins make the default network, which a sandbox gets when it is created or not at all", errdefs.ErrNotImplemented)
	case !ok:
		return fail("no network has that name", errdefs.ErrNotFound)
	case req.Last.On(name) >= 0:
		return fail("it is on it already", errdefs.ErrAlreadyExists)
	}
	want := a
	if want.Interface == "" {
		want.Interface = kernel.FreeName(req)
	}
	if out, _ := n.bridges.wayOut(req, req.Last); out >= 0 {
		want.NoDefault = true
	}
	one := req
	one.Config.Name, one.Config.Attach = name, []core.Attachment{want}
	st, err := k.Attach(ctx, one, req.Last)
	if err != nil {
		return core.NetworkStatus{}, err
	}
	req.Config = req.Config.With(a)
	err = n.joined(k, req, st)
	if err == nil && st.Resolver.IsValid() {
		err = n.names.Change(ctx, n.box(req, st))
	}
	if err != nil {
		back := req.Last
		back.Interfaces = slices.Clone(back.Interfaces)
		if k.Driver != n.Overlays {
			err = errors.Join(err, n.joined(k, req, back))
		}
		err = errors.Join(err, k.Release(ctx, req, name), k.Detach(ctx, req, name))
		if k.Driver == n.Overlays {
			err = errors.Join(err, n.joined(k, req, back))
		}
		return core.NetworkStatus{}, err
	}
	return st, nil
}

// joined adapts the rest of a sandbox's network to the interfaces of st, after one of driver k was added or removed.
func (n *Network) joined(k kind, req core.NetworkRequest, st core.NetworkStatus) error {
	if k.Driver == n.Overlays {
		return n.Overlays.Serve(req, st)
	}
	return n.bridges.move(req, st)
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
	k, name, ok := n.drivers.route(network)
	if !ok {
		if req.Last.On(network) >= 0 {
			return req.Last, fmt.Errorf("CNI plugins have made it, and take it away with the sandbox: %w", errdefs.ErrFailedPrecondition)
		}
		return req.Last, nil
	}
	st := req.Last.Without(name)
	st.Interfaces = slices.Clone(st.Interfaces) // joined changes it
	if b, ok := n.bridges.on(network); ok {
		if !b.Holds(req.Sandbox) {
			return st, nil
		}
	}
	// The names first, so that no answer has an address that is about to be freed.
	if st.Resolver.IsValid() {
		if err := n.names.Change(ctx, n.box(req, st)); err != nil {
			return st, err
		}
	}
	if err := k.Detach(ctx, req, name); err != nil {
		return st, err
	}
	if err := n.joined(k, req, st); err != nil {
		return st, err
	}
	return st, k.Release(ctx, req, name)
}

// Publish implements core.Network.
func (n *Network) Publish(ctx context.Context, req core.NetworkRequest, want []core.Port) (core.NetworkStatus, error) {
	if req.Last.Mode == netconf.StatusHost || req.Last.Mode == string(netconf.ModeCNI) {
		return req.Last, nil
	}
	st := req.Last
	err := context.Cause(ctx)
	if err == nil {
		err = n.bridges.unpublish(req)
	}
	if err == nil {
		n.claims.Drop(req.Sandbox)
		st.Ports = nil
		if on := n.bridges.portsOn(req, st); on != nil && len(want) > 0 {
			st.Ports, err = bridge.ClaimAndPublish(on, req.Sandbox, want)
		}
	}
	if err != nil {
		return st, fmt.Errorf("publish the ports of sandbox %s: %w", req.Sandbox.Short(), err)
	}
	return st, nil
}

// checkAttached compares each interface with the status that Setup returned, in the order of the interfaces.
func (n *Network) checkAttached(ctx context.Context, req core.NetworkRequest) error {
	var errs []error
	for _, a := range req.Last.Interfaces {
		if k, _, ok := n.drivers.route(a.Network); ok {
			one := req
			one.Last.Interfaces = []core.Attachment{a}
			errs = append(errs, k.Check(ctx, one))
		}
	}
	return errors.Join(errs...)
}

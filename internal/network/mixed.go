package network

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/overlay"
)

// planned is a request, divided into interfaces on overlays and interfaces on other networks. Each
// has a name.
type planned struct {
	overlays []core.Attachment
	rest     core.NetworkConfig
	// order has the names of all interfaces.
	order []string
}

// planOf divides a request.
func planOf(cfg core.NetworkConfig) (p planned, err error) {
	all := cfg.Attached()
	taken := map[string]bool{}
	for _, a := range all {
		taken[a.Interface] = true
	}
	p.rest = cfg
	p.rest.Attach = nil
	opened, next := 0, 0
	for _, a := range all {
		for a.Interface == "" {
			if name := fmt.Sprintf("eth%d", next); !taken[name] {
				a.Interface = name
			}
			next++
		}
		p.order = append(p.order, a.Interface)
		if _, ok := core.OverlayName(a.Network); !ok {
			p.rest.Attach = append(p.rest.Attach, a)
			continue
		}
		if p.overlays = append(p.overlays, a); len(a.Open) > 0 {
			opened++
		}
	}
	switch {
	case opened > 1:
		return p, fmt.Errorf("ports are open at %d of its interfaces, and may be at one: %w", opened, errdefs.ErrInvalidArgument)
	case len(p.rest.Attach) > 0:
		p.rest.Name = p.rest.Attach[0].Network
	case len(cfg.Ports) > 0 && len(p.overlays) > 0:
		return p, fmt.Errorf("ports of the host lead to no network over several nodes, and it is on no other: %w", errdefs.ErrInvalidArgument)
	default:
		p.rest.Name = core.NetworkNone
	}
	return p, nil
}

// setupOver makes the interfaces of a sandbox that is on overlays.
func (n *Network) setupOver(ctx context.Context, req core.NetworkRequest, p planned) (st core.NetworkStatus, err error) {
	// An earlier Setup may have been interrupted.
	if err := n.Overlays.Release(ctx, req, ""); err != nil {
		return st, err
	}
	one := req
	one.Config = p.rest
	if p.rest.Name == core.NetworkNone {
		if st, err = kernel.NoneStatus(req.Namespace); err == nil {
			st = overlay.Only(n.cfg.DNS, st)
		}
	} else {
		st, err = n.setupAll(ctx, one)
	}
	if err != nil {
		return core.NetworkStatus{}, err
	}
	defer func() {
		if err != nil {
			req.Last, err = st, errors.Join(err, n.Overlays.Release(ctx, req, ""), n.undo(ctx, req))
			st = core.NetworkStatus{}
		}
	}()
	for _, a := range p.overlays {
		one.Config.Name, one.Config.Attach = a.Network, []core.Attachment{a}
		next, err := n.Overlays.Attach(ctx, one, st)
		if err != nil {
			return st, fmt.Errorf("network %s: %w", a.Network, err)
		}
		st = next
	}
	st = ordered(st, p.order)
	if err := n.Overlays.Serve(req, st); err != nil {
		return st, err
	}
	return st, n.names.Change(ctx, n.box(req, st))
}

// ordered returns a status with its interfaces, and their addresses, in the order of the request.
func ordered(st core.NetworkStatus, order []string) core.NetworkStatus {
	at := func(a core.Attachment) int {
		if i := slices.Index(order, a.Interface); i >= 0 {
			return i
		}
		return len(order) // CNI plugins made one that was not requested
	}
	st.Interfaces = slices.Clone(st.Interfaces)
	slices.SortStableFunc(st.Interfaces, func(a, b core.Attachment) int { return cmp.Compare(at(a), at(b)) })
	var addrs []netip.Addr
	for _, i := range st.Interfaces {
		addrs = append(addrs, kernel.Addrs(i.Addrs)...)
	}
	for _, a := range st.Addrs {
		if !slices.Contains(addrs, a) {
			addrs = append(addrs, a)
		}
	}
	st.Addrs = addrs
	return st
}

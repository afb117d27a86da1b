package network

import (
	"context"
	"errors"
	"slices"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/bridge"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/netconf"
)

// ways decides where the default route of a sandbox and its host ports lead.
type ways struct{ n *Network }

// wayOut returns the index of the interface over which the default route leads, -1 when none leads
// out, and its bridge, which is nil where CNI plugins have made it.
func (w ways) wayOut(req core.NetworkRequest, st core.NetworkStatus) (int, *bridge.Bridge) {
	for i, a := range st.Interfaces {
		if _, isOverlay := core.OverlayName(a.Network); isOverlay {
			continue // it leads to no other network
		}
		b, ok := w.n.on(a.Network)
		if !ok {
			return i, nil
		}
		kept := slices.ContainsFunc(req.Config.Attached(), func(c core.Attachment) bool {
			return c.NoDefault && slices.Contains(b.Names(), c.Network)
		})
		if !b.Internal() && !kept {
			return i, b
		}
	}
	return -1, nil
}

// portsOn returns the bridge with the rules for a sandbox's host ports, nil for none of ours.
func (w ways) portsOn(req core.NetworkRequest, st core.NetworkStatus) *bridge.Bridge {
	i, b := w.wayOut(req, st)
	if i >= 0 {
		return b
	}
	for _, a := range st.Interfaces {
		if _, isOverlay := core.OverlayName(a.Network); !isOverlay {
			b, _ = w.n.on(a.Network)
			return b
		}
	}
	return nil
}

// portsNetwork returns the name of the network that portsOn returns, "" for none.
func (w ways) portsNetwork(req core.NetworkRequest) string {
	if b := w.portsOn(req, req.Last); b != nil {
		return b.Name()
	}
	return ""
}

// moved makes the host ports and the default route lead to the right ones of the interfaces of st.
func (w ways) moved(req core.NetworkRequest, st core.NetworkStatus) error {
	to := w.portsOn(req, st)
	var errs []error
	for _, b := range append([]*bridge.Bridge{w.n.bridge}, w.n.users.Bridges()...) {
		if b != to && b.Publishes(req.Sandbox) {
			errs = append(errs, b.Unpublish(req.Sandbox))
		}
	}
	if to != nil && len(st.Ports) > 0 && !to.Publishes(req.Sandbox) {
		errs = append(errs, to.Publish(req.Sandbox, st.Ports))
	}
	if i, b := w.wayOut(req, st); b != nil && st.Interfaces[i].NoDefault {
		err := b.LeadOut(req, st.Interfaces[i])
		if errs = append(errs, err); err == nil {
			st.Interfaces[i].NoDefault = false
		}
	}
	return errors.Join(errs...)
}

// Recover runs after the drivers of bridges. It restores the names that sandboxes see, the ports of sandboxes without a
// network, and default routes. An interface that the request of its sandbox does not have was being
// attached or detached when the agent died: its driver has removed it.
func (w ways) Recover(ctx context.Context, live []core.NetworkRequest) error {
	n := w.n
	var errs []error
	var boxes []names.Box
	for _, req := range live {
		if req.Last.Resolver.IsValid() {
			boxes = append(boxes, n.box(req, req.Last))
		}
		if req.Last.Mode == netconf.StatusNone && len(req.Last.Ports) > 0 { // of a sandbox that is on no network just now
			errs = append(errs, n.claims.Take(req.Sandbox, bridge.Claims(req.Last.Ports)))
		}
		if i, b := w.wayOut(req, req.Last); b != nil && req.Last.Interfaces[i].NoDefault {
			if err := b.LeadOut(req, req.Last.Interfaces[i]); err != nil && !kernel.IsLinkGone(err) {
				errs = append(errs, err)
			}
		}
	}
	if err := n.names.Recover(ctx, boxes); err != nil { // the sandboxes run, and have all else
		n.log.ErrorContext(ctx, "sandboxes on networks of their own have no name server; the next one that is set up there tries again", "error", err.Error())
	}
	return errors.Join(errs...)
}

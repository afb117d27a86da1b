package network

import (
	"errors"
	"slices"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/bridge"
	"github.com/longshore/longshore/internal/network/user"
)

// bridges are the bridges of this node. They decide which of them has the default route of a sandbox and its host ports.
type bridges struct {
	builtin  bool // the standard bridge makes the default network
	standard *bridge.Bridge
	users    *user.Driver // has a bridge for each network that users have defined
}

// on returns the bridge of a network by the name that NetworkStatus has for it.
func (b *bridges) on(network string) (*bridge.Bridge, bool) {
	if own, ok := b.users.Bridge(network); ok {
		return own, true
	}
	return b.standard, b.builtin && slices.Contains(b.standard.Names(), network)
}

// wayOut returns the index of the interface over which the default route leads, -1 when none leads
// out, and its bridge, which is nil where CNI plugins have made it.
func (b *bridges) wayOut(req core.NetworkRequest, st core.NetworkStatus) (int, *bridge.Bridge) {
	for i, a := range st.Interfaces {
		if _, isOverlay := core.OverlayName(a.Network); isOverlay {
			continue // it leads to no other network
		}
		on, ok := b.on(a.Network)
		if !ok {
			return i, nil
		}
		kept := slices.ContainsFunc(req.Config.Attached(), func(c core.Attachment) bool {
			return c.NoDefault && slices.Contains(on.Names(), c.Network)
		})
		if !on.Internal() && !kept {
			return i, on
		}
	}
	return -1, nil
}

// portsOn returns the bridge with the rules for a sandbox's host ports, nil for none of ours.
func (b *bridges) portsOn(req core.NetworkRequest, st core.NetworkStatus) *bridge.Bridge {
	i, out := b.wayOut(req, st)
	if i >= 0 {
		return out
	}
	for _, a := range st.Interfaces {
		if _, isOverlay := core.OverlayName(a.Network); !isOverlay {
			first, _ := b.on(a.Network)
			return first
		}
	}
	return nil
}

// portsNetwork returns the name of the network that portsOn returns, "" for none.
func (b *bridges) portsNetwork(req core.NetworkRequest) string {
	if on := b.portsOn(req, req.Last); on != nil {
		return on.Name()
	}
	return ""
}

// unpublish removes the rules of a sandbox's host ports.
func (b *bridges) unpublish(req core.NetworkRequest) error {
	for _, from := range append([]*bridge.Bridge{b.standard}, b.users.Bridges()...) {
		if from.Publishes(req.Sandbox) {
			if err := from.Unpublish(req.Sandbox); err != nil {
				return err
			}
		}
	}
	return nil
}

// move makes the host ports and the default route lead to the right ones of the interfaces of st.
func (b *bridges) move(req core.NetworkRequest, st core.NetworkStatus) error {
	to := b.portsOn(req, st)
	var errs []error
	for _, from := range append([]*bridge.Bridge{b.standard}, b.users.Bridges()...) {
		if from != to && from.Publishes(req.Sandbox) {
			errs = append(errs, from.Unpublish(req.Sandbox))
		}
	}
	if to != nil && len(st.Ports) > 0 && !to.Publishes(req.Sandbox) {
		errs = append(errs, to.Publish(req.Sandbox, st.Ports))
	}
	if i, out := b.wayOut(req, st); out != nil && st.Interfaces[i].NoDefault {
		err := out.SetDefaultRoute(req, st.Interfaces[i])
		if errs = append(errs, err); err == nil {
			st.Interfaces[i].NoDefault = false
		}
	}
	return errors.Join(errs...)
}

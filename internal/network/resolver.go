package network

import (
	"context"
	"errors"
	"net/netip"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/dns"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/network/netconf"
)

// SetNames sets the records of a network's name server: the addresses of each name, and the name of
// each address.
func (n *Network) SetNames(ctx context.Context, network string, byName map[string][]netip.Addr, owners map[netip.Addr]string) error {
	return n.names.SetZone(ctx, network, &names.Zone{Names: byName, Owners: owners})
}

const dnsPort = 53

// box says how the name server of a sandbox answers.
func (n *Network) box(req core.NetworkRequest, st core.NetworkStatus) names.Box {
	b := names.Box{Sandbox: req.Sandbox, Namespace: req.Namespace, Egress: n.lists.restriction(req.Config, st)}
	// CNI's plugins need not name the interfaces that they have made. Nomad gives a network to a sandbox without one of ours.
	out := st.Mode == string(netconf.ModeCNI) || st.Mode == netconf.StatusNone && len(req.Config.Egress) > 0
	for _, a := range st.Interfaces {
		if _, ok := core.OverlayName(a.Network); ok {
			// An interface with open ports is on the ingress network, which has no names.
			if len(a.Open) == 0 {
				b.Networks = append(b.Networks, a.Network)
			}
			continue
		}
		u, ok := n.bridges.users.Bridge(a.Network)
		if ok {
			b.Networks = append(b.Networks, u.Name())
		}
		out = out || !ok || !u.Internal()
	}
	if !out {
		return b
	}
	for _, s := range dns.Ask(req.Config.DNS, st.DNS, dns.Read()) {
		if a, err := netip.ParseAddr(s); err == nil {
			b.Upstream = append(b.Upstream, netip.AddrPortFrom(a, dnsPort))
		}
	}
	return b
}

// resolver is the name server's step of Teardown.
type resolver struct{ n *Network }

func (r resolver) Release(ctx context.Context, req core.NetworkRequest, _ string) error {
	err := r.n.names.Drop(ctx, req.Sandbox)
	return errors.Join(err, r.n.lists.end(req.Sandbox))
}

// Define stores a network of a user's. It chooses Subnets if there are none. The first sandbox on the network creates its
// bridge. AlreadyExists, InvalidArgument.
func (n *Network) Define(ctx context.Context, def core.NetworkDefinition) (core.NetworkDefinition, error) {
	return n.bridges.users.Define(ctx, def)
}

// Defined returns the networks that users have defined, by name.
func (n *Network) Defined() []core.NetworkDefinition { return n.bridges.users.Defined() }

// Undefine removes a network with its bridge and rules. FailedPrecondition when sandboxes are on it, NotFound.
func (n *Network) Undefine(ctx context.Context, name string) error {
	return n.bridges.users.Undefine(ctx, name)
}

// NamesPid returns the process that answers sandboxes' questions of names, 0 if none does.
func (n *Network) NamesPid() int { return names.Pid(n.names) }

// RenewNames replaces that process by one of the present program. No question is lost.
func (n *Network) RenewNames(ctx context.Context) error { return n.names.Renew(ctx) }

package network

import (
	"net/netip"
	"os"
	"slices"

	"github.com/longshore/longshore/internal/network/bridge"
	"github.com/longshore/longshore/internal/network/ipam"
	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/netconf"
)

// Trouble returns why sandboxes of this node and of others cannot reach each other under their own
// addresses, or the published ports that are in use here, "" if all is well; hint is advice.
func (n *Network) Trouble() (trouble, hint string) {
	if trouble, hint := n.ingress.Trouble(); trouble != "" {
		return trouble, hint
	}
	nets, err := n.cfg.PlainNets(n.leases.Ranges())
	if err != nil || len(nets) == 0 || n.mode != netconf.ModeBuiltin {
		return "", ""
	}
	if _, err := os.Stat(bridge.FilterFile); err != nil {
		return "br_netfilter is not loaded: pods of this node that ask each other by a Service see the node's address", "modprobe br_netfilter, and a file in /etc/modules-load.d"
	}
	routes, err := kernel.Routes(n.cfg.Bridge)
	if err != nil {
		return err.Error(), ""
	}
	own := n.leases.Ranges()
	for _, p := range nets {
		if !p.Addr().Is4() || slices.ContainsFunc(own, func(r ipam.Range) bool { return r.Prefix.Overlaps(p) && r.Prefix.Bits() <= p.Bits() }) {
			continue // the whole range is on this node
		}
		if !slices.ContainsFunc(routes, func(r netip.Prefix) bool { return r.Bits() > 0 && r.Overlaps(p) }) {
			return "no route to other nodes' pods in " + p.String() + ": they are sent where everything else is", "add a route to each node's range, or let the cloud or a routing daemon do it"
		}
	}
	return "", ""
}

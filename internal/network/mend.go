package network

import (
	"github.com/longshore/longshore/internal/network/kernel"
)

// Mend restores the links, addresses, routes, masters and kernel parameters of the bridges, and the rules of the overlays,
// where another program has changed them. It returns the differences. A kernel parameter that the agent has not set
// stays unchanged. With overlays it also restores their devices and entries. Without links it compares only kernel
// parameters and rules: a caller that knows that no link, address or route has changed saves listing them.
func Mend(n *Network, links, overlays bool) (all []kernel.Change) {
	for _, k := range n.drivers.kinds {
		if m, ok := k.Driver.(mender); ok {
			if k.Driver == n.Overlays {
				all = append(all, m.Mend(overlays)...)
			} else {
				all = append(all, m.Mend(links)...)
			}
		}
	}
	return all
}

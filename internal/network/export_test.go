package network

import (
	"net/netip"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/vxlan"
)

// The ingress without the rest of core.Overlays.

func (n *Network) OpenIngress(in core.Ingress, on *vxlan.Network, subnets []core.OverlaySubnet) error {
	return n.ingress.open(in, on, subnets, []*vxlan.Network{on})
}

func (n *Network) CloseIngress(on ...*vxlan.Network) error { return n.ingress.close(on) }

func (n *Network) Publish(list []core.PublishedPort) ([]core.TakenPort, error) {
	return n.ingress.publish(list)
}

// IngressAddr is the address of the namespace, where the host's ports lead.
func (n *Network) IngressAddr() netip.Addr {
	n.ingress.mu.Lock()
	defer n.ingress.mu.Unlock()
	return n.ingress.inner
}

// Asks are the networks whose names a sandbox may know.
func Asks(st core.NetworkStatus) []string {
	return (&Network{}).box(core.NetworkRequest{}, st).Networks
}

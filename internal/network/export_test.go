package network

import (
	"net/netip"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/user"
	"github.com/longshore/longshore/internal/network/vxlan"
)

// The ingress without the driver of overlays.

func (n *Network) OpenIngress(in core.Ingress, on *vxlan.Network, subnets []core.OverlaySubnet) error {
	return n.ingress.Open(in, on, subnets, []*vxlan.Network{on})
}

func (n *Network) CloseIngress(on ...*vxlan.Network) error { return n.ingress.Close(on) }

func (n *Network) PublishAll(list []core.PublishedPort) ([]core.TakenPort, error) {
	return n.ingress.Publish(list)
}

// IngressAddr is the address of the namespace, where the host's ports lead.
func (n *Network) IngressAddr() netip.Addr { return n.ingress.Inner() }

// Add puts a driver behind the others. A driver of the agent's has its place in arrange.
func (n *Network) Add(d Driver, has func(string) (string, bool)) {
	k := kind{d, has, false}
	n.drivers.kinds = append(n.drivers.kinds, k)
	n.drivers.teardown = append(n.drivers.teardown, k)
	n.drivers.recovery = append(n.drivers.recovery, k)
}

// Asks returns the networks with names that a sandbox may know.
func Asks(st core.NetworkStatus) []string {
	return (&Network{bridges: bridges{users: &user.Driver{}}}).box(core.NetworkRequest{}, st).Networks
}

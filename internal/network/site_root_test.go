package network_test

import (
	"net/netip"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestNodesWithTheIngressNetworksAddresses: 10.0.0.0/24, the managers' default for the network of
// published ports, is the range of many a site, with its nodes and clients.
func TestNodesWithTheIngressNetworksAddresses(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		m := newMesh(t, newRig(t, nil), "198.51.100.0/24")
		m.openIngress() // its address is the other machine's
		for at, n := range map[int]int{0: 11, 1: 12} {
			m.serve(m.task(n, at), n, "tcp", 8080)
		}
		m.publish([]core.PublishedPort{m.port("tcp", 8080, 11, 12)})
		for _, to := range []netip.Addr{netip.MustParseAddr("127.0.0.1"), machine(0)} {
			answers(t, nil, "tcp", at(to, 8080), m.addr(2), 11, 12)
		}
		// One client alone is not served, as with dockerd: the one with the node's own address on
		// the network.
		for _, line := range []string{"addr add 198.51.100.77/24 dev wire1", "route add 198.51.100.1 dev wire1 src 198.51.100.77"} {
			networktest.Run(t, "nsenter --net="+m.far.Path+" ip "+line)
		}
		answers(t, m.far, "tcp", at(machine(0), 8080), m.addr(2), 11, 12)
	})
}

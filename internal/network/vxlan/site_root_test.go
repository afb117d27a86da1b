package vxlan_test

import (
	"net/netip"
	"testing"

	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
)

// TestANetworkOfTheSitesAddresses: managers choose the ranges of networks without regard to the
// nodes' own addresses, so that a network may have the nodes' range.
func TestANetworkOfTheSitesAddresses(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes := newNodes(t, 2)
		of := vxlan.Subnet{Range: netip.MustParsePrefix("192.0.2.0/24"), Gateway: netip.MustParseAddr("192.0.2.254"), VNI: 4097}
		var tasks []task
		for i, n := range nodes {
			n.open(of)
			tasks = append(tasks, n.task([]string{"192.0.2.11/24", "192.0.2.12/24"}[i]))
			tasks[i].ns.Serve(t, "tcp", 80)
		}
		nodes[0].knows(tasks[1])
		nodes[1].knows(tasks[0])
		tasks[0].reaches(tasks[1], 80)
		tasks[1].reaches(tasks[0], 80)
		// A task may have the address of a node.
		same := nodes[0].task("192.0.2.2/24")
		nodes[1].knows(same)
		same.reaches(tasks[1], 80)
		tasks[1].reaches(tasks[0], 80)
	})
}

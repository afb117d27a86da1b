package vxlan_test

import (
	"net/netip"
	"testing"

	"github.com/longshore/longshore/internal/network/kernel"
	"github.com/longshore/longshore/internal/network/vxlan"
	"github.com/longshore/longshore/internal/roottest"
)

// TestSubnetsOfIPv6: tasks on two subnets of IPv6 reach each other, on one node and over nodes,
// also with an agent that adopts the network; beside one of IPv4, which forwards nothing.
func TestSubnetsOfIPv6(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes := newNodes(t, 2)
		subnets := []vxlan.Subnet{
			{Range: netip.MustParsePrefix("fd00:1::/64"), Gateway: netip.MustParseAddr("fd00:1::1"), VNI: 4097},
			{Range: netip.MustParsePrefix("fd00:2::/64"), Gateway: netip.MustParseAddr("fd00:2::1"), VNI: 4098},
			{Range: netip.MustParsePrefix("10.0.0.0/24"), Gateway: netip.MustParseAddr("10.0.0.1"), VNI: 4099},
		}
		a, b := nodes[0], nodes[1]
		a.open(subnets...)
		b.open(subnets...)
		x, beside, y := a.task("fd00:1::9/64"), a.task("fd00:2::9/64"), b.task("fd00:2::8/64")
		a.knows(y)
		b.knows(x, beside)
		for _, to := range []task{x, beside, y} {
			to.ns.Serve(t, "tcp", 80)
		}
		reach := func() {
			t.Helper()
			for _, pair := range [][2]task{{x, beside}, {beside, x}, {x, y}, {y, x}, {beside, y}} {
				pair[0].reaches(pair[1], 80)
			}
		}
		reach()
		next, err := a.try(a.def(subnets...))
		if err != nil {
			t.Fatal(err)
		}
		a.net = next
		reach()
		if got := a.inside("cat /proc/sys/net/ipv4/ip_forward"); got != "0\n" {
			t.Errorf("one subnet of IPv4 is forwarded: %q", got)
		}
	})
}

// TestANetworkDependsOnNoValueOfTheHost: the namespace starts with values that a host with a Docker, and a hardened one,
// hand on.
func TestANetworkDependsOnNoValueOfTheHost(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		nodes := newNodes(t, 2)
		for i, inherited := range []string{
			"net.ipv4.ip_forward=1 net.ipv4.conf.default.proxy_arp=1 net.ipv4.conf.all.accept_source_route=1 net.ipv6.conf.all.forwarding=1",
			"net.ipv4.conf.all.rp_filter=1 net.ipv4.conf.default.rp_filter=1 net.ipv4.conf.all.arp_ignore=8 net.ipv6.conf.all.disable_ipv6=1",
		} {
			if err := nodes[i].ns.Try(func() error { return kernel.Pin(nodes[i].dir + "/app") }); err != nil {
				t.Fatal(err)
			}
			nodes[i].inside("sysctl -qw " + inherited)
			nodes[i].open(vxlan.Subnet{Range: netip.MustParsePrefix("fd00:1::/64"), Gateway: netip.MustParseAddr("fd00:1::1"), VNI: 4097}, vxlan.Subnet{Range: netip.MustParsePrefix("10.0.0.0/24"), Gateway: netip.MustParseAddr("10.0.0.1"), VNI: 4099})
		}
		a, b := nodes[0], nodes[1]
		for _, pair := range [][2]task{{a.task("fd00:1::8/64"), b.task("fd00:1::9/64")}, {a.task("10.0.0.8/24"), b.task("10.0.0.9/24")}} {
			a.knows(pair[1])
			b.knows(pair[0])
			pair[1].ns.Serve(t, "tcp", 80)
			pair[0].reaches(pair[1], 80)
		}
		for _, n := range nodes {
			for name, want := range map[string]string{"ipv4/ip_forward": "0\n", "ipv4/conf/br0/proxy_arp": "0\n", "ipv4/conf/br0/rp_filter": "0\n", "ipv6/conf/br0/forwarding": "0\n", "ipv6/conf/br0/disable_ipv6": "0\n"} {
				if got := n.inside("cat /proc/sys/net/" + name); got != want {
					t.Errorf("%s is %q", name, got)
				}
			}
		}
	})
}

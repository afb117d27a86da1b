package network_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/netconf"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// service makes the host translate an address to a sandbox's, as kube-proxy does for a Service.
func service(t *testing.T, vip string, to netip.Addr) {
	t.Helper()
	networktest.Run(t, "nft add table ip proxy")
	networktest.Run(t, "nft add chain ip proxy in { type nat hook prerouting priority -100 ; }")
	networktest.Run(t, fmt.Sprintf("nft add rule ip proxy in ip daddr %s tcp dport 80 dnat to %s:80", vip, to))
}

// TestPodsSeeEachOther: within the ranges that are never masqueraded others see a pod's own
// address: on another node, through a Service and through a host port of this node.
func TestPodsSeeEachOther(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t) // the other node, with a pod at 10.244.2.2
		other := netip.MustParseAddr("10.244.2.2")
		in := "nsenter --net=" + out.ns.Path + " "
		networktest.Run(t, in+"ip addr add 10.244.2.2/32 dev lo")
		networktest.Run(t, in+"ip route add 10.244.1.0/24 via 192.0.2.1")
		networktest.Run(t, "ip route add 10.244.2.0/24 via 192.0.2.2")
		out.ns.Serve(t, "tcp", 80)
		for name, plain := range map[string]bool{"within the ranges": true, "without ranges": false} {
			t.Run(name, func(t *testing.T) {
				r := newRig(t, func(c *netconf.Config) {
					c.PodCIDR = "10.244.1.0/24,fd00:244:0:1::/64"
					if plain {
						c.NoMasquerade = []string{"10.244.0.0/16", "fd00:244::/48"}
					}
				})
				one := r.setup(1, port("tcp", 8080, 80))
				two := r.setup(2)
				one.ns.Serve(t, "tcp", 80)
				service(t, "10.96.0.1", one.addr(true))
				me6, gw6 := two.addr(false).String(), one.req.Last.Gateways[1].String()
				me, node, gw := two.addr(true).String(), out.host4.String(), one.req.Last.Gateways[0].String()
				if !plain {
					wantAnswer(t, two.ns, "tcp", at(other, 80), node)
					wantAnswer(t, two.ns, "tcp", "10.96.0.1:80", gw)
					wantAnswer(t, two.ns, "tcp", at(out.host4, 8080), gw)
					wantAnswer(t, two.ns, "tcp", at(out.host6, 8080), gw6)
				} else {
					wantAnswer(t, two.ns, "tcp", at(other, 80), me)
					wantAnswer(t, two.ns, "tcp", "10.96.0.1:80", me)
					wantAnswer(t, two.ns, "tcp", at(out.host4, 8080), me)
					wantAnswer(t, two.ns, "tcp", at(out.host6, 8080), me6)
				}
				wantAnswer(t, two.ns, "tcp", at(one.addr(true), 80), me)
				// Outside of the ranges the host's address is seen, and a sandbox that asks
				// itself sees the host's.
				wantAnswer(t, two.ns, "tcp", at(out.addr4, 80), node)
				wantAnswer(t, one.ns, "tcp", at(out.host4, 8080), gw)
				wantAnswer(t, one.ns, "tcp", at(out.host6, 8080), gw6)
				if trouble, _ := r.net.Trouble(); trouble != "" {
					t.Errorf("trouble: %s", trouble)
				}
				// The set of sandboxes that may reach themselves follows the ports.
				if !strings.Contains(rules(t), one.addr(true).String()+" . "+one.addr(true).String()) {
					t.Error("no element for itself")
				}
				r.down(one)
				if strings.Contains(rules(t), one.addr(true).String()+" . "+one.addr(true).String()) {
					t.Error("an element for itself is left")
				}
				networktest.Run(t, "nft delete table ip proxy")
				r.down(two)
				one.ns.Close()
				two.ns.Close()
			})
		}
	})
}

// TestMissingRoutesAreTold: doctor reports that there is no route to the other nodes.
func TestMissingRoutesAreTold(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		newOutside(t)
		r := newRig(t, func(c *netconf.Config) { c.PodCIDR, c.NoMasquerade = "10.244.1.0/24", []string{"10.244.0.0/16"} })
		if trouble, hint := r.net.Trouble(); !strings.Contains(trouble, "no route to other nodes' pods in 10.244.0.0/16") || hint == "" {
			t.Errorf("trouble %q, hint %q", trouble, hint)
		}
		networktest.Run(t, "ip route add 10.244.2.0/24 via 192.0.2.2")
		if trouble, _ := r.net.Trouble(); trouble != "" {
			t.Errorf("trouble %q", trouble)
		}
	})
}

// TestTheBridgeGoesWithItsLastSandbox: a node that changes to CNI keeps the builtin bridge as
// long as a sandbox is on it, and never removes somebody else's bridge.
func TestTheBridgeGoesWithItsLastSandbox(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		there := func() bool { return exec.CommandContext(t.Context(), "ip", "link", "show", "longshore0").Run() == nil }
		newOutside(t)
		r := newRig(t, nil)
		one := r.setup(1)
		r.conf.Mode = netconf.ModeCNI
		r.conf.CNI.ConfDir = t.TempDir()
		r.start()
		if err := r.net.Recover(t.Context(), []core.NetworkRequest{one.req}); err != nil {
			t.Fatal(err)
		}
		if !there() {
			t.Fatal("the bridge has gone from under a sandbox")
		}
		r.down(one)
		one.ns.Close()
		if there() {
			t.Error("the bridge stays")
		}
		if strings.Contains(rules(t), "table inet longshore") {
			t.Error("rules stay")
		}
		networktest.Run(t, "ip link add longshore0 type bridge")
		if err := r.net.Recover(t.Context(), nil); err != nil {
			t.Fatal(err)
		}
		if !there() {
			t.Error("somebody's bridge was removed")
		}
	})
}

package network_test

import (
	"net/netip"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestAPublishedPortLeadsToBackends: connections to a published port come to tasks on this machine
// and on another one in turn, from wherever they are made, and the tasks see the node.
func TestAPublishedPortLeadsToBackends(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		o := newOutside(t)
		m := newMesh(t, r, meshRange)
		m.openIngress()
		for at, n := range map[int]int{0: 11, 1: 12} {
			ns := m.task(n, at)
			m.serve(ns, n, "tcp", 8080)
			m.serve(ns, n, "udp", 5353)
		}
		box := r.setup(1)
		m.publish([]core.PublishedPort{m.port("tcp", 8080, 11, 12), m.port("udp", 5353, 11, 12)})
		gateway := box.req.Last.Gateways[0]
		for _, from := range []struct {
			name string
			ns   *networktest.Namespace
			to   []netip.Addr
		}{
			{"the node itself", nil, []netip.Addr{netip.MustParseAddr("127.0.0.1"), o.host4, machine(0), gateway}},
			{"another machine", o.ns, []netip.Addr{o.host4}},
			{"a machine of the network", m.far, []netip.Addr{machine(0)}},
			{"a sandbox", box.ns, []netip.Addr{gateway, o.host4, machine(0)}},
		} {
			for _, to := range from.to {
				t.Run(from.name+" at "+to.String(), func(t *testing.T) {
					answers(t, from.ns, "tcp", at(to, 8080), m.addr(2), 11, 12)
					answers(t, from.ns, "udp", at(to, 5353), m.addr(2), 11, 12)
				})
			}
		}
		refused(t, nil, "tcp", "[::1]:8080")
		refused(t, o.ns, "tcp", at(o.host6, 8080))

		// A site with the overlay's addresses on its machines.
		networktest.Run(t, "nsenter --net="+o.ns.Path+" ip addr add 10.0.0.77/24 dev far0")
		networktest.Run(t, "nsenter --net="+o.ns.Path+" ip route add 192.0.2.1 dev far0 src 10.0.0.77")
		networktest.Run(t, "ip route add 10.0.0.77 dev up0")
		answers(t, o.ns, "tcp", at(o.host4, 8080), m.addr(2), 11, 12)

		m.publish(nil)
		refused(t, nil, "tcp", "127.0.0.1:8080")
		refused(t, o.ns, "tcp", at(o.host4, 8080))
		if err := r.net.CloseIngress(m.on); err != nil {
			t.Fatal(err)
		}
		m.left(1)
	})
}

package network_test

import (
	"net/netip"
	"testing"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestAPortOfLoopbackIsTheHostsAlone: another machine on a link of the host, whose root may send to any
// address, does not reach a port that is published at 127.0.0.1.
func TestAPortOfLoopbackIsTheHostsAlone(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		out := newOutside(t)
		r := newRig(t, nil)
		local := port("tcp", 8080, 80)
		local.HostIP = netip.MustParseAddr("127.0.0.1")
		one := r.setup(1, local)
		one.ns.Serve(t, "tcp", 80)
		wantAnswer(t, nil, "tcp", "127.0.0.1:8080", one.req.Last.Gateways[0].String())
		in := "nsenter --net=" + out.ns.Path + " "
		networktest.Run(t, in+"ip addr del 127.0.0.1/8 dev lo")
		networktest.Run(t, in+"sysctl -q net.ipv4.conf.all.route_localnet=1")
		networktest.Run(t, in+"ip route add 127.0.0.1 via 192.0.2.1 src 192.0.2.2")
		if got, err := out.ns.Ask("tcp", "127.0.0.1:8080"); err == nil {
			t.Errorf("another machine is served as %q", got)
		}
	})
}

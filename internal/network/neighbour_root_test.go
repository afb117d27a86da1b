package network_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"regexp"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestAPortOfLoopbackIsTheHostsAlone: another machine on a link of the host, with a root that may
// send to any address, does not reach a port that is published at 127.0.0.1. Its packets arrive at
// the host, which is the control, and the second one, which is sent after a second without an
// answer, ends the attempt.
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
		networktest.Run(t, "nft add table netdev seen")
		networktest.Run(t, "nft add chain netdev seen in { type filter hook ingress device "+out.hostLink+" priority 0; }")
		networktest.Run(t, "nft add rule netdev seen in ip daddr 127.0.0.1 tcp dport 8080 counter")
		ctx, giveUp := context.WithCancel(t.Context())
		defer giveUp()
		answered := make(chan error, 1)
		go func() {
			answered <- out.ns.Try(func() error {
				c, err := (&net.Dialer{}).DialContext(ctx, "tcp4", "127.0.0.1:8080")
				if err == nil {
					_ = c.Close()
				}
				return err
			})
		}()
		counter := regexp.MustCompile(`packets (\d+)`)
		roottest.Eventually(t, "the connection is tried twice or answered", func() bool {
			m := counter.FindStringSubmatch(networktest.Run(t, "nft list table netdev seen"))
			n, err := strconv.Atoi(m[1])
			return err == nil && n >= 2 || len(answered) > 0
		})
		giveUp()
		// A host that takes packets for its loopback by every link has nothing at this port itself.
		if err := <-answered; !errors.Is(err, context.Canceled) && !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("another machine is answered: %v", err)
		}
	})
}

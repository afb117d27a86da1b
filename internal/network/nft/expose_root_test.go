package nft_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/network/nft"
	"github.com/longshore/longshore/internal/roottest"
)

// dropped matches the counter of drops above 0.
var dropped = regexp.MustCompile(`counter packets [1-9]`)

// TestOnlyPublishedPortsAreOpen: at the address of published ports others come to these, each at
// the port behind it, and to nothing else; the sandbox's other addresses, and its own requests, are
// as they were.
func TestOnlyPublishedPortsAreOpen(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		l := newLAN(t, 1, 2)
		l.serve(1, 80)
		for _, port := range []uint16{80, 81} {
			l.serve(2, port)
		}
		l.machines[2].Serve(t, "udp", 5353)
		second := netip.MustParseAddr("10.9.0.52")
		l.ip(2, "addr add 10.9.0.52/24 dev eth0")
		ns := l.open(2)
		for i, at := range []func(int) netip.Addr{at4, at6} {
			addr := at(2)
			// One that there is stays when its port is not published any more.
			if err := nft.Expose(ns, addr, []nft.Exposed{{unix.IPPROTO_TCP, 80, 80}}); err != nil {
				t.Fatal(err)
			}
			early := l.connect(1, addr, 80)
			ports := []nft.Exposed{{unix.IPPROTO_TCP, 8080, 80}, {unix.IPPROTO_TCP, 81, 81}, {unix.IPPROTO_UDP, 53, 5353}}
			if err := nft.Expose(ns, addr, ports); err != nil {
				t.Fatal(err)
			}
			early.echo(t)
			for _, port := range []uint16{8080, 81} {
				if c := l.connect(1, addr, port); c.to != 2 || c.from != at(1).String() {
					t.Errorf("port %d: %d saw %s", port, c.to, c.from)
				}
			}
			if saw, err := l.machines[1].Ask("udp", netip.AddrPortFrom(addr, 53).String()); err != nil || saw != at(1).String() {
				t.Errorf("udp: %q, %v", saw, err)
			}
			if c := l.connect(1, second, 80); c.to != 2 {
				t.Errorf("the other address: %d", c.to)
			}
			if c := l.connect(2, at(1), 80); c.to != 1 {
				t.Errorf("asked itself: %d", c.to)
			}
			if c := l.connect(2, addr, 80); c.to != 2 {
				t.Errorf("at its own address: %d", c.to)
			}
			// The port behind a published one is closed: the packet is dropped, and counted.
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() {
				done <- l.machines[1].Try(func() error {
					c, err := new(net.Dialer).DialContext(ctx, "tcp", netip.AddrPortFrom(addr, 80).String())
					if err == nil {
						_ = c.Close()
					}
					return err
				})
			}()
			roottest.Eventually(t, fmt.Sprintf("a packet to port 80 of %s is dropped", addr), func() bool {
				return dropped.MatchString(networktest.Run(t, "nsenter --net="+l.machines[2].Path+" nft list chain inet longshore-exposed closed"))
			})
			cancel()
			if err := <-done; err == nil {
				t.Error("the port behind a published one is open")
			}
			if i == 0 {
				continue
			}
			// The second call was for another address: the first one is open again.
			if c := l.connect(1, at4(2), 80); c.to != 2 {
				t.Errorf("the former address: %d", c.to)
			}
		}
	})
}

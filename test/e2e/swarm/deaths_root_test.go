package swarm

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// deaths are members of ours, each on a machine of its own.
type deaths struct {
	t     *testing.T
	links map[int]*nodetest.Link
}

func deathAddr(n int) string { return fmt.Sprintf("10.99.0.%d", 20+n) }

// start starts a member on the n-th machine, which joins by that of the first.
func (d *deaths) start(n int, name string) *member {
	d.t.Helper()
	if d.links[n] == nil {
		d.links[n] = nodetest.Plug(d.t, "swarm0", fmt.Sprintf("edge%d", n), deathAddr(n)+"/24")
	}
	g := startMember(d.t, d.links[n].NetNS())
	g.do(order{Op: "new", New: networkdb.Options{Name: name, Advertise: netip.MustParseAddr(deathAddr(n)), Keys: []gossip.Key{{1}}}})
	if n > 0 {
		g.do(order{Op: "join", Join: []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(deathAddr(0)), gossip.DefaultPort)}})
	}
	return g
}

func (d *deaths) enter(g *member) {
	g.do(order{Op: "enter", Network: "net"})
	g.do(order{Op: "watch", Network: "net"})
}

// record is the only one of the n-th machine.
func (d *deaths) record(n int) (gossip.ID, gossip.Peer) {
	return gossip.ID{Network: "net", Endpoint: gossip.EndpointID(fmt.Sprint(n), "net")}, gossip.Peer{
		Addr: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 1, byte(10 + n)}), 24), MAC: fmt.Sprintf("02:42:0a:00:01:%02x", 10+n), Tunnel: netip.MustParseAddr(deathAddr(n)),
	}
}

// sees waits until a member knows of the records of these machines, and of no others.
func (d *deaths) sees(g *member, what string, machines ...int) {
	d.t.Helper()
	roottest.Eventually(d.t, what, func() bool {
		peers := g.peers()
		if len(peers) != len(machines) {
			return false
		}
		for _, n := range machines {
			_, want := d.record(n)
			found := false
			for _, p := range peers {
				found = found || p == want
			}
			if !found {
				return false
			}
		}
		return true
	})
}

// TestWhoDiesInTheGossip: the others give up a killed member, which delays those that enter a network only
// for a time; and it comes back under its name, or under another one while the others still hold
// the dead one of its address, and is heard.
func TestWhoDiesInTheGossip(t *testing.T) {
	beside(t, func(t *testing.T) {
		long(t)
		if err := dockerd.Bridge(t.Context()); err != nil {
			t.Fatal(err)
		}
		d := &deaths{t, map[int]*nodetest.Link{}}
		first, second := d.start(0, "first"), d.start(1, "second")
		d.enter(first)
		d.enter(second)
		for n, g := range []*member{first, second} {
			id, peer := d.record(n)
			g.announce(id, peer)
		}
		d.sees(first, "the second's record is known", 1)
		second.kill()
		// Somebody enters while the dead one is still held for alive.
		third := d.start(2, "third")
		d.enter(third)
		id, peer := d.record(2)
		third.announce(id, peer)
		d.sees(first, "the second is given up, and the third heard", 2)
		d.sees(third, "the third knows the first only", 0)

		// Back under its name: its record returns with its announcement.
		second = d.start(1, "second")
		d.enter(second)
		id, peer = d.record(1)
		second.announce(id, peer)
		d.sees(first, "the second is back", 1, 2)
		d.sees(second, "the second knows the others", 0, 2)

		// Killed again, and back under another name at once: the trap of a restart.
		second.kill()
		second = d.start(1, "other")
		d.enter(second)
		second.announce(id, peer)
		d.sees(first, "it is heard under another name", 1, 2)
		d.sees(third, "by all", 0, 1)
		d.sees(second, "it knows the others under another name", 0, 2)
	})
}

package gossip

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/gossiptest"
	"github.com/longshore/longshore/internal/network/networktest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestCutOff: a node of ours is cut off until all others have given it up. When it is back, all know its
// records again, although dockerd 28 had forgotten them.
func TestCutOff(t *testing.T) {
	others(t)
	roottest.Run(t, func(t *testing.T) {
		link := func(args string) {
			t.Helper()
			networktest.Run(t, "ip "+args)
		}
		ns := networktest.NewNamespace(t)
		inside := func(args string) { t.Helper(); networktest.Run(t, "nsenter --net="+ns.Path+" ip "+args) }
		link("link add cut0 type veth peer name cut1")
		link("link set cut1 netns " + ns.Path)
		inside("link set lo up")
		inside("addr add 192.0.2.1/24 dev cut1")
		inside("link set cut1 up")
		link("addr add 192.0.2.2/24 dev cut0")
		var names []string
		for i, k := range kinds(t) {
			link("addr add 192.0.2." + string(rune('3'+i)) + "/24 dev cut0")
			names = append(names, k.name)
		}
		link("link set cut0 up")
		t.Logf("those who stay are %s", strings.Join(names, ", "))
		c := &cluster{t: t}
		for i, k := range kinds(t) {
			at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(3 + i)}), gossip.DefaultPort)
			p := k.start(t, "stays-"+k.name, at)
			if len(c.at) > 0 {
				must(t, p.Join(t.Context(), c.at[:1]))
			}
			must(t, p.Enter(t.Context(), network))
			of := &counted{Member: p, gone: map[gossip.ID]int{}}
			c.members, c.at = append(c.members, of), append(c.at, at)
			c.views = append(c.views, gossiptest.NewView(t, k.name, of, network))
		}
		p := kind{name: "longshore", netns: ns.Path}.start(t, "goes", netip.MustParseAddrPort("192.0.2.1:7946"))
		c.enter(p)
		id := gossip.ID{Network: network, Endpoint: gossip.EndpointID("task", network)}
		record, endpoint := gossiptest.Task(2, "web")
		must(t, p.Announce(id, record))
		must(t, p.Announce(id, endpoint))
		want := map[gossip.ID][]gossip.Record{id: {record, endpoint}}
		c.want(want)
		link("link set cut0 down")
		c.took("cut off: given up by", nil)
		roottest.Eventually(t, "it is alone", func() bool { return len(p.Members()) == 0 })
		link("link set cut0 up")
		c.took("back: its records are known to", want)
		must(t, p.Withdraw(id, endpoint))
		must(t, p.Withdraw(id, record))
		c.want(nil)
	})
}

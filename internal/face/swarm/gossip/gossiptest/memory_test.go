package gossiptest

import (
	"net/netip"
	"sync"
	"testing"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
)

// TestMemory: the gossip in memory behaves as the real one.
func TestMemory(t *testing.T) {
	var mu sync.Mutex
	nets, last := map[string]*Net{}, byte(0)
	Contract(t, func(t *testing.T, name string) (gossip.Member, netip.AddrPort) {
		mu.Lock()
		defer mu.Unlock()
		if nets[t.Name()] == nil {
			nets[t.Name()] = NewNet()
		}
		last++
		at := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, last}), gossip.DefaultPort)
		m := nets[t.Name()].Member(name, at.Addr())
		t.Cleanup(m.Leave)
		return m, at
	})
}

// TestAKilledMember: its records stay, and the next process of its name takes them back.
func TestAKilledMember(t *testing.T) {
	net := NewNet()
	a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	start := func() gossip.Member {
		m := net.Member("a", a)
		must(t, m.Join(t.Context(), []netip.AddrPort{netip.AddrPortFrom(b, gossip.DefaultPort)}))
		must(t, m.Enter(t.Context(), "net"))
		return m
	}
	other := net.Member("b", b)
	must(t, other.Enter(t.Context(), "net"))
	v := NewView(t, "b", other, "net")
	peer, _ := Task(2, "web")
	id := gossip.ID{Network: "net", Endpoint: "1"}
	want := map[gossip.ID][]gossip.Record{id: {peer}}
	must(t, start().Announce(id, peer))
	v.Want(want)
	again := start()
	v.Want(want)
	must(t, again.Withdraw(id, peer))
	v.Want(nil)
}

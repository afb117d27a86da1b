package overlays_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
)

// TestAnAddressThatIsGivenAnew: another node tells of a task that has the address of a task here, or of a service, before those
// are gone. It is left out until then, and known afterwards.
func TestAnAddressThatIsGivenAnew(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Resumed()
		r.told()
		for i, id := range []string{"a", "b"} {
			r.hold(web(id, network("back", 1, 9+i)))
			r.Running(id)
		}
		r.announce("back", "old", gossip.Endpoint{Name: "old.1.x", Service: "old", ServiceID: "old", VIP: addr(1, 50), Addr: addr(1, 20)})
		r.settle()
		for key, host := range map[string]int{"task's": 9, "service's": 50} {
			mac := "02:42:0a:00:01:33"
			r.announce("back", key, gossip.Peer{Addr: netip.PrefixFrom(addr(1, host), 24), MAC: mac, Tunnel: there},
				gossip.Endpoint{Name: key, Service: "new", ServiceID: "new", VIP: addr(1, 60), Addr: addr(1, host)})
		}
		r.settle()
		if o := r.overlay("back"); len(o.Peers) != 0 || len(o.Names["tasks.new"]) != 0 {
			t.Errorf("while the addresses are others': peers %v, names %v", o.Peers, o.Names)
		}
		r.Release("a")
		if err := r.other.Withdraw(gossip.ID{Network: "back", Endpoint: "old"}, gossip.Endpoint{Name: "old.1.x", Service: "old", ServiceID: "old", VIP: addr(1, 50), Addr: addr(1, 20)}); err != nil {
			t.Fatal(err)
		}
		r.settle()
		o := r.overlay("back")
		if len(o.Peers) != 2 || o.Peers["task's"].Addr != addr(1, 9) || o.Peers["service's"].Addr != addr(1, 50) {
			t.Errorf("peers %v", o.Peers)
		}
		if !slices.Equal(o.Names["tasks.new"], []netip.Addr{addr(1, 9), addr(1, 50)}) {
			t.Errorf("names %v", o.Names)
		}
	})
}

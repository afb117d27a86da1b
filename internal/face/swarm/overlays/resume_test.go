package overlays_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/overlays"
	"github.com/longshore/longshore/internal/face/swarm/translate"
)

// TestTheNextAgent announces running tasks, and withdraws those that ended meanwhile; it drops no record
// of others before they have repeated theirs, and then those not repeated.
func TestTheNextAgent(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		r.Resumed()
		r.told(ofNode)
		for i, id := range []string{"a", "b"} {
			r.hold(web(id, network("back", 1, 20+i)))
			r.Running(id, id)
		}
		r.hold(web("c", network("front", 2, 9)))
		r.Running("c", "c")
		peer := func(n, host int) gossip.Peer {
			return gossip.Peer{Addr: netip.PrefixFrom(addr(n, host), 24), MAC: "02:42:00:00:00:01", Tunnel: there}
		}
		r.announce("back", "stays", peer(1, 30))
		r.announce("back", "goes", peer(1, 31))
		r.settle()
		r.announce("back", "stays", gossip.Endpoint{Name: "db.1.x", Service: "db", ServiceID: "db", Addr: addr(1, 30), VIP: addr(1, 40)})
		r.settle()
		if o := r.overlay("back"); len(o.Peers) != 2 || len(o.Names["db"]) != 1 || len(o.Services) == 0 {
			t.Fatalf("peers %v, names %v, services %v", o.Peers, o.Names, o.Services)
		}
		opened := r.fake.Calls("Open")
		r.stop()
		if err := overlays.Clear(t.Context(), nil, r.mem); err != nil { // the keeper of the keys has died, too
			t.Fatal(err)
		}
		r.fake.Unable(nil, nil)
		if err := r.other.Withdraw(gossip.ID{Network: "back", Endpoint: "goes"}, peer(1, 31)); err != nil {
			t.Fatal(err)
		}

		r.start()
		r.hold(web("a", network("back", 1, 20)))
		r.Running("a", "a")
		r.Resumed()
		r.settle()
		if o := r.overlay("back"); len(o.Peers) != 2 {
			t.Errorf("before anyone was asked: %v", o.Peers)
		}
		<-time.After(time.Minute) // no manager answers
		if o := r.overlay("back"); len(o.Names["db"]) != 1 || len(o.Services) == 0 {
			t.Errorf("before anyone was asked: names %v, services %v", o.Names, o.Services)
		}
		if _, open := r.fake.Get("ingress"); !open {
			t.Error("the place for published ports is gone before a manager has said anything")
		}
		r.told(ofNode)
		peers, names := r.hears("back")
		if len(peers) != 1 || len(names) != 1 || names[0].Name != "web.1.a" {
			t.Errorf("others hear of %v and %v", peers, names)
		}
		if peers, names := r.hears("front"); len(peers)+len(names) != 0 {
			t.Errorf("others hear of %v and %v", peers, names)
		}
		if _, open := r.fake.Get("front"); open {
			t.Error("a network that nobody is on is open")
		}
		if in, _ := r.fake.Published(); in.Network != "ingress" {
			t.Errorf("ingress %v", in)
		}
		if r.fake.Calls("Open") == opened {
			t.Error("nothing was adopted")
		}
		if o := r.overlay("back"); len(o.Names["db"]) != 1 || len(o.Names["web"]) != 1 || len(o.Names["web.1.b"]) != 0 {
			t.Errorf("when all is known: names %v", o.Names)
		}
		r.Ended("a") // its program may be started again
		if peers, names := r.hears("back"); len(peers) != 1 || len(names) != 0 {
			t.Errorf("others hear of %v and %v", peers, names)
		}
		r.Running("a", "a2")
		if _, names := r.hears("back"); len(names) != 1 || names[0].TaskAliases[0] != "a2" {
			t.Errorf("others hear of %v", names)
		}
	})
}

// TestTheNextAgentNeedsNoManager: it is in the gossip with the keys that the keeper holds, and withdraws tasks that
// ended meanwhile. The keys are kept nowhere else, and another node's keys are not taken for its own.
func TestTheNextAgentNeedsNoManager(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		planted := func(m *swarmv1.SessionMessage) {
			for _, k := range m.GetNetworkBootstrapKeys() {
				copy(k.GetKey()[2:], "planted bytes!")
			}
		}
		r.Resumed()
		r.told(ofNode, planted)
		for i, id := range []string{"a", "b"} {
			r.hold(web(id, network("back", 1, 20+i)))
			r.Running(id, id)
		}
		r.settle()
		for key, value := range r.kv.All("") {
			if strings.Contains(string(value), "planted") {
				t.Errorf("%s has a key", key)
			}
		}
		forget := func() {
			t.Helper()
			if err := overlays.Clear(t.Context(), nil, r.mem); err != nil {
				t.Fatal(err)
			}
		}
		next := func(is string, up bool) {
			t.Helper()
			r.stop()
			r.start()
			r.hold(web("a", network("back", 1, 20)))
			r.Running("a", "a")
			r.Resumed()
			r.settle()
			if st := r.Status(); (st.Gossip == overlays.Up) != up {
				t.Errorf("%s: gossip: %s", is, st.Gossip)
			}
		}

		next("with what is held", true)
		if peers, names := r.hears("back"); len(peers) != 1 || len(names) != 1 || names[0].Name != "web.1.a" {
			t.Errorf("others hear of %v and %v", peers, names)
		}
		if in, _ := r.fake.Published(); in.Network != "ingress" {
			t.Errorf("ingress %v", in)
		}
		if keys := r.fake.Keys(); len(keys) != 3 || string(keys[0].Key[2:]) != "planted bytes!" {
			t.Errorf("keys of encrypted networks: %v", keys)
		}
		forget()
		next("after the keeper's death", false)
		r.told(ofNode)
		forget()
		<-time.After(2 * time.Minute)
		next("when the next keeper was given it", true)
		r.node = "another"
		next("with what another node was told", false)
		r.node = "node"

		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		if _, err := f.WriteString("\xff\xff"); err != nil {
			t.Fatal(err)
		}
		names, err := r.mem.Names(t.Context())
		if err != nil || len(names) != 1 {
			t.Fatalf("held: %q, %v", names, err)
		}
		if err := r.mem.Hold(t.Context(), names[0], []*os.File{f}); err != nil {
			t.Fatal(err)
		}
		next("with what cannot be read", false)
		forget()
		r.mem.Old = true // a keeper of an earlier release
		next("where nothing can be held", false)
		r.told()
		if st := r.Status(); st.Gossip != overlays.Up {
			t.Errorf("where nothing can be held: gossip: %s", st.Gossip)
		}
	})
}

// TestEnteringTakesLong: while the node still gets the others' records of a network, it announces new
// tasks to them, and not yet those that an earlier agent announced.
func TestEnteringTakesLong(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		goOn := r.factory.net.Delay()
		r.Resumed()
		r.told()
		r.hold(web("a", network("back", 1, 9)))
		r.settle()
		if peers, _ := r.hears("back"); len(peers) != 1 {
			t.Errorf("others hear of %v", peers)
		}
		if st := r.Status(); len(st.Networks) != 1 || !st.Networks[0].Announced {
			t.Errorf("%+v", st)
		}
		r.stop()
		r.start()
		for i, task := range []string{"a", "b"} {
			r.hold(web(task, network("back", 1, 9+i)))
			r.Running(task)
		}
		r.Resumed()
		r.told()
		if _, names := r.hears("back"); len(names) != 1 || names[0].Name != "web.1.b" {
			t.Errorf("others hear of %v", names)
		}
		if st := r.Status(); len(st.Networks) != 1 || st.Networks[0].Announced {
			t.Errorf("%+v", st)
		}
		goOn()
		r.settle()
		if _, names := r.hears("back"); len(names) != 2 {
			t.Errorf("others hear of %v", names)
		}
	})
}

// TestATaskComesWhileRecordsAreSwept: a sweep withdraws only the records of an earlier agent. It did withdraw the record of a
// task that was announced while the sweep waited for another announcement.
func TestATaskComesWhileRecordsAreSwept(t *testing.T) {
	bubble(t, func(t *testing.T, r *rig) {
		var first func()
		r.stop()
		r.point = func(stage string) error {
			if stage == "overlay.announce_peer.before" && first != nil {
				goOn := first
				first = nil
				goOn()
				for n := range 200 { // which takes long enough for the other network's sweep to begin
					r.announce("others", fmt.Sprint(n), gossip.Peer{Addr: netip.PrefixFrom(addr(200, n+1), 24), MAC: "02:42:00:00:00:01", Tunnel: there})
				}
			}
			return nil
		}
		r.start()
		r.Resumed()
		r.told()
		for round := range 20 {
			networks := []translate.Network{network(fmt.Sprint("front", round), 2*round+1, 9), network(fmt.Sprint("back", round), 2*round+2, 9)}
			goOn := r.factory.net.Delay()
			task := web(fmt.Sprint("task", round), networks...)
			if err := r.Hold(t.Context(), task); err != nil {
				t.Fatal(err)
			}
			r.settle()
			first = goOn
			r.Attached(task.ID)
			r.settle()
			for _, n := range networks {
				if peers, _ := r.hears(n.Overlay.Name); len(peers) != 1 {
					t.Errorf("round %d: others hear of %v on %s", round, peers, n.Overlay.Name)
				}
			}
		}
	})
}

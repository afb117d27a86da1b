package gossip_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/gossiptest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/state"
)

// TestTheNextProcessTakesBack: a killed node comes back with one task of three, and withdraws the
// others' records, also on a network that it does not use any more.
func TestTheNextProcessTakesBack(t *testing.T) {
	store := state.NewMemory(0)
	defer func() { _ = store.Close() }()
	kv := store.Scope(core.OwnerSwarm, true)
	net := gossiptest.NewNet()
	here, there := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
	other := net.Member("other", there)
	start := func(networks ...string) *gossip.Announced {
		m := net.Member("node", here)
		if err := m.Join(t.Context(), []netip.AddrPort{netip.AddrPortFrom(there, gossip.DefaultPort)}); err != nil {
			t.Fatal(err)
		}
		for _, n := range networks {
			if err := m.Enter(t.Context(), n); err != nil {
				t.Fatal(err)
			}
		}
		return gossip.NewAnnounced(m, kv)
	}
	ok := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	views := map[string]*gossiptest.View{}
	for _, n := range []string{"front", "back"} {
		ok(other.Enter(t.Context(), n))
		views[n] = gossiptest.NewView(t, n, other, n)
	}
	stays, ends, alone := gossip.ID{Network: "front", Endpoint: "1"}, gossip.ID{Network: "front", Endpoint: "2"}, gossip.ID{Network: "back", Endpoint: "3"}
	records := map[gossip.ID][]gossip.Record{}
	for i, id := range []gossip.ID{stays, ends, alone} {
		peer, endpoint := gossiptest.Task(byte(2+i), "web")
		records[id] = []gossip.Record{peer, endpoint}
	}
	first := start("front", "back")
	for id, list := range records {
		for _, r := range list {
			ok(first.Announce(id, r))
		}
	}
	views["front"].Want(map[gossip.ID][]gossip.Record{stays: records[stays], ends: records[ends]})
	views["back"].Want(map[gossip.ID][]gossip.Record{alone: records[alone]})

	early := start()
	if err := early.Withdraw(ends); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("withdrawn before the network is entered: %v", err)
	}
	if got := early.Endpoints(); len(got) != 3 {
		t.Errorf("after that the next process knows of %v", got)
	}
	next := start("front", "back")
	for _, r := range records[stays] {
		ok(next.Announce(stays, r))
	}
	for _, n := range []string{"front", "back"} {
		ok(next.Sweep(n, func(endpoint string) bool { return endpoint == stays.Endpoint }))
	}
	views["front"].Want(map[gossip.ID][]gossip.Record{stays: records[stays]})
	views["back"].Want(nil)
	if got := next.Endpoints(); len(got) != 1 || got[0] != stays {
		t.Errorf("left are %v", got)
	}
	ok(next.Withdraw(alone))
	ok(next.Exit("front"))
	views["front"].Want(nil)
	if got := next.Endpoints(); len(got) != 0 {
		t.Errorf("left are %v", got)
	}
	// One that is killed now may have told nobody of it yet.
	if got := start().Endpoints(); len(got) != 3 {
		t.Errorf("the process after one that was killed takes back only %v once more", got)
	}

	// An unreadable record is forgotten, one that cannot be announced is not kept.
	ok(kv.Put("announced/back/9/endpoint_table", []byte("rubbish")))
	ok(kv.Put("announced/rubbish", []byte("rubbish")))
	ok(next.Sweep("back", func(string) bool { return false }))
	if got := next.Endpoints(); len(got) != 0 {
		t.Errorf("left are %v", got)
	}
	for name, id := range map[string]gossip.ID{"no network": {Endpoint: "1"}, "no endpoint": {Network: "back"}, "a path": {Network: "back", Endpoint: "a/b"}} {
		if err := next.Announce(id, records[alone][0]); !errdefs.IsInvalidArgument(err) || len(next.Endpoints()) != 0 {
			t.Errorf("%s: %v, kept %v", name, err, next.Endpoints())
		}
	}
	if err := next.Announce(alone, gossip.Peer{}); !errdefs.IsInvalidArgument(err) || len(next.Endpoints()) != 0 {
		t.Errorf("nothing: %v", err)
	}
}

// slowExit leaves a network only at a signal, as a member does that is just entering it.
type slowExit struct {
	gossip.Member
	begun, goOn chan struct{}
}

func (m slowExit) Exit(network string) error {
	close(m.begun)
	<-m.goOn
	return m.Member.Exit(network)
}

// TestAnotherNetworkIsLeftSlowly: a network that is being left, half a minute long beside a dead member, keeps
// nothing of other networks from being told.
func TestAnotherNetworkIsLeftSlowly(t *testing.T) {
	store := state.NewMemory(0)
	defer func() { _ = store.Close() }()
	m := slowExit{gossiptest.NewNet().Member("node", netip.MustParseAddr("192.0.2.1")), make(chan struct{}), make(chan struct{})}
	for _, n := range []string{"front", "back"} {
		if err := m.Enter(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	a := gossip.NewAnnounced(m, store.Scope(core.OwnerSwarm, true))
	left := make(chan error, 1)
	go func() { left <- a.Exit("back") }()
	<-m.begun
	told := make(chan error, 1)
	go func() {
		peer, _ := gossiptest.Task(2, "web")
		told <- a.Announce(gossip.ID{Network: "front", Endpoint: "1"}, peer)
	}()
	select {
	case err := <-told:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(roottest.Patience()):
		t.Error("what happens on one network is not told while another one is left")
	}
	close(m.goOn)
	if err := <-left; err != nil {
		t.Error(err)
	}
}

// TestWhatOthersWouldNotTake: each announced record can be withdrawn, and one that could not is not
// announced.
func TestWhatOthersWouldNotTake(t *testing.T) {
	store := state.NewMemory(0)
	defer func() { _ = store.Close() }()
	net := gossiptest.NewNet()
	m, other := net.Member("node", netip.MustParseAddr("192.0.2.1")), net.Member("other", netip.MustParseAddr("192.0.2.2"))
	for _, m := range []gossip.Member{m, other} {
		if err := m.Enter(t.Context(), "net"); err != nil {
			t.Fatal(err)
		}
	}
	a := gossip.NewAnnounced(m, store.Scope(core.OwnerSwarm, true))
	_, many := gossiptest.Task(2, "web")
	for i := range 300 {
		many.Aliases = append(many.Aliases, fmt.Sprint("a", i))
	}
	_, odd := gossiptest.Task(3, "web")
	odd.Aliases = []string{"two words"}
	for n, e := range []gossip.Endpoint{many, odd} {
		id := gossip.ID{Network: "net", Endpoint: fmt.Sprint(n)}
		if err := a.Announce(id, e); !errdefs.IsInvalidArgument(err) {
			t.Errorf("announced: %v", err)
		}
		if err := a.Withdraw(id); err != nil {
			t.Error(err)
		}
	}
	marker, _ := gossiptest.Task(4, "web")
	id := gossip.ID{Network: "net", Endpoint: "marker"}
	if err := a.Announce(id, marker); err != nil {
		t.Fatal(err)
	}
	gossiptest.NewView(t, "other", other, "net").Want(map[gossip.ID][]gossip.Record{id: {marker}})
}

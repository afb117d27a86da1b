// Package gossiptest has the suite that every gossip.Member passes, and a gossip in memory.
//
// It is for tests only. Start at Contract.
package gossiptest

import (
	"maps"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/roottest"
)

// Start starts a member that knows nobody, and says where others reach it. It ends with the test.
// Several tests call it at once.
type Start func(t *testing.T, name string) (gossip.Member, netip.AddrPort)

// View is what a Watch has yielded so far.
type View struct {
	Name string

	t   *testing.T
	mu  sync.Mutex                           // guards has
	has map[gossip.ID]map[bool]gossip.Record // by whether it is an Endpoint
}

// NewView watches a network until the test ends.
func NewView(t *testing.T, name string, m gossip.Member, network string) *View {
	t.Helper()
	v := &View{t: t, Name: name, has: map[gossip.ID]map[bool]gossip.Record{}}
	done := make(chan struct{})
	ctx := t.Context()
	go func() {
		defer close(done)
		for c := range m.Watch(ctx, network) {
			v.take(c)
		}
	}()
	t.Cleanup(func() { <-done })
	return v
}

func (v *View) take(c gossip.Change) {
	v.mu.Lock()
	defer v.mu.Unlock()
	_, endpoint := c.Record.(gossip.Endpoint)
	if v.has[c.ID] == nil {
		v.has[c.ID] = map[bool]gossip.Record{}
	}
	if v.has[c.ID][endpoint] = c.Record; c.Gone {
		delete(v.has[c.ID], endpoint)
	}
	if len(v.has[c.ID]) == 0 {
		delete(v.has, c.ID)
	}
}

// Records returns what there is.
func (v *View) Records() map[gossip.ID][]gossip.Record {
	v.mu.Lock()
	defer v.mu.Unlock()
	all := map[gossip.ID][]gossip.Record{}
	for id, of := range v.has {
		for _, endpoint := range []bool{false, true} {
			if r, ok := of[endpoint]; ok {
				all[id] = append(all[id], r)
			}
		}
	}
	return all
}

// Want waits until there is exactly this.
func (v *View) Want(want map[gossip.ID][]gossip.Record) {
	v.t.Helper()
	var diff string
	defer func() {
		if diff != "" {
			v.t.Logf("%s sees (-want +got):\n%s", v.Name, diff)
		}
	}()
	roottest.Eventually(v.t, v.Name+" sees what was announced", func() bool {
		diff = cmp.Diff(want, v.Records(), cmpopts.EquateEmpty(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }))
		return diff == ""
	})
}

// Task is the records of a task on a network, the n-th address of 10.0.1.0/24.
func Task(n byte, service string) (gossip.Peer, gossip.Endpoint) {
	addr := netip.AddrFrom4([4]byte{10, 0, 1, n})
	mac := "02:42:0a:00:01:" + string("0123456789abcdef"[n>>4]) + string("0123456789abcdef"[n&15])
	return gossip.Peer{Addr: netip.PrefixFrom(addr, 24), MAC: mac, Tunnel: netip.MustParseAddr("192.0.2.1")},
		gossip.Endpoint{Name: service + ".1.task", Service: service, ServiceID: "id-" + service, Addr: addr, VIP: netip.MustParseAddr("10.0.1.200"), Aliases: []string{service}, TaskAliases: []string{"0123456789ab"}}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Contract is the suite.
func Contract(t *testing.T, start Start) {
	for name, test := range map[string]func(*testing.T, Start){"records": records, "networks": networks, "another process": anotherProcess, "keys": keys} {
		t.Run(name, func(t *testing.T) {
			t.Parallel() // nearly all of its time it waits
			test(t, start)
		})
	}
}

// pair are two members that know each other.
func pair(t *testing.T, start Start, network string) (a, b gossip.Member, atA netip.AddrPort) {
	t.Helper()
	a, atA = start(t, "a")
	b, atB := start(t, "b")
	must(t, b.Join(t.Context(), []netip.AddrPort{atA}))
	roottest.Eventually(t, "they know each other", func() bool {
		return slices.Equal(a.Members(), []netip.Addr{atB.Addr()}) && slices.Equal(b.Members(), []netip.Addr{atA.Addr()})
	})
	if network != "" {
		must(t, a.Enter(t.Context(), network))
		must(t, b.Enter(t.Context(), network))
	}
	return a, b, atA
}

// records: what one announces, changes and withdraws, the other sees, and not its own.
func records(t *testing.T, start Start) {
	a, b, _ := pair(t, start, "net")
	id, other := gossip.ID{Network: "net", Endpoint: gossip.EndpointID("task", "net")}, gossip.ID{Network: "net", Endpoint: gossip.EndpointID("node", "net")}
	peer, endpoint := Task(2, "web")
	endpoint.Ports = []gossip.Port{{Name: "http", Proto: "tcp", Target: 80, Published: 8080}, {Proto: "udp", Target: 53, Published: 53}, {Proto: "sctp", Target: 1, Published: 65535}}
	second, _ := Task(3, "web")
	atA, atB := NewView(t, "a", a, "net"), NewView(t, "b", b, "net")
	must(t, a.Announce(id, peer))
	must(t, a.Announce(id, endpoint))
	must(t, a.Announce(id, endpoint))
	must(t, b.Announce(other, second))
	want := map[gossip.ID][]gossip.Record{id: {peer, endpoint}}
	atB.Want(want)
	atA.Want(map[gossip.ID][]gossip.Record{other: {second}})
	ending := endpoint
	ending.Disabled = true
	must(t, a.Announce(id, ending))
	atB.Want(map[gossip.ID][]gossip.Record{id: {peer, ending}})
	// Any other change.
	renamed := endpoint
	renamed.Aliases, renamed.VIP = []string{"web", "www"}, netip.Addr{}
	must(t, a.Announce(id, renamed))
	atB.Want(map[gossip.ID][]gossip.Record{id: {peer, renamed}})
	late := NewView(t, "late watch", b, "net")
	late.Want(map[gossip.ID][]gossip.Record{id: {peer, renamed}})
	must(t, a.Withdraw(id, renamed))
	atB.Want(map[gossip.ID][]gossip.Record{id: {peer}})
	must(t, a.Withdraw(id, peer))
	must(t, a.Withdraw(id, peer))
	atB.Want(nil)
	late.Want(nil)
	must(t, a.Announce(id, peer))
	atB.Want(map[gossip.ID][]gossip.Record{id: {peer}})
	a.Leave()
	atB.Want(nil)
	roottest.Eventually(t, "b is alone", func() bool { return len(b.Members()) == 0 })
	for name, r := range map[string]gossip.Record{"no address": gossip.Endpoint{Name: "x"}, "no name": gossip.Endpoint{Addr: peer.Addr.Addr()}, "nothing": gossip.Peer{}, "protocol": gossip.Endpoint{Name: "x", Addr: peer.Addr.Addr(), Ports: []gossip.Port{{Proto: "icmp"}}}} {
		if err := b.Announce(other, r); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// networks: one that is not entered has no records, one that was left none any more.
func networks(t *testing.T, start Start) {
	a, b, at := pair(t, start, "")
	id := gossip.ID{Network: "one", Endpoint: "1"}
	peer, _ := Task(2, "web")
	if err := a.Announce(id, peer); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("announced before the network is entered: %v", err)
	}
	if err := a.Withdraw(id, peer); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("withdrawn before the network is entered: %v", err)
	}
	must(t, a.Exit("one"))
	for _, m := range []gossip.Member{a, b, a} {
		must(t, m.Enter(t.Context(), "one"))
	}
	must(t, a.Enter(t.Context(), "two"))
	two := gossip.ID{Network: "two", Endpoint: "1"}
	must(t, a.Announce(id, peer))
	must(t, a.Announce(two, peer))
	v := NewView(t, "b", b, "one")
	v.Want(map[gossip.ID][]gossip.Record{id: {peer}})
	// Who comes later learns all.
	c, _ := start(t, "c")
	must(t, c.Join(t.Context(), []netip.AddrPort{at}))
	must(t, c.Enter(t.Context(), "two"))
	seen := NewView(t, "c", c, "two")
	seen.Want(map[gossip.ID][]gossip.Record{two: {peer}})
	// Who has only begun to enter can tell what nobody knows.
	begun := gossip.ID{Network: "one", Endpoint: "2"}
	must(t, c.Begin(t.Context(), "one"))
	must(t, c.Announce(begun, peer))
	v.Want(map[gossip.ID][]gossip.Record{id: {peer}, begun: {peer}})
	must(t, c.Enter(t.Context(), "one"))
	must(t, c.Withdraw(begun, peer))
	v.Want(map[gossip.ID][]gossip.Record{id: {peer}})
	must(t, a.Exit("one"))
	v.Want(nil)
	must(t, a.Enter(t.Context(), "one"))
	must(t, a.Announce(id, peer))
	v.Want(map[gossip.ID][]gossip.Record{id: {peer}})
	must(t, b.Exit("one"))
	v.Want(nil)
	seen.Want(map[gossip.ID][]gossip.Record{two: {peer}})
}

// anotherProcess: a member withdraws what it has not announced itself.
func anotherProcess(t *testing.T, start Start) {
	a, b, _ := pair(t, start, "net")
	peer, endpoint := Task(2, "web")
	gone, marker := gossip.ID{Network: "net", Endpoint: "1"}, gossip.ID{Network: "net", Endpoint: "2"}
	v := NewView(t, "b", b, "net")
	must(t, a.Withdraw(gone, peer))
	must(t, a.Withdraw(gone, endpoint))
	must(t, a.Announce(marker, peer))
	v.Want(map[gossip.ID][]gossip.Record{marker: {peer}})
	must(t, a.Announce(gone, endpoint))
	v.Want(map[gossip.ID][]gossip.Record{marker: {peer}, gone: {endpoint}})
}

// Key is the one with which Start starts members.
var Key = gossip.Key{0xab, 0xcd, 0xef, 0x01, 0x23, 0x45, 0x67, 0x89, 0xba, 0xdc, 0xfe, 0x10, 0x32, 0x54, 0x76, 0x98}

// keys: rotations, one member after the other, lose nothing.
func keys(t *testing.T, start Start) {
	a, b, _ := pair(t, start, "net")
	v := NewView(t, "b", b, "net")
	want := map[gossip.ID][]gossip.Record{}
	say := func(n byte) {
		t.Helper()
		id := gossip.ID{Network: "net", Endpoint: string('0' + rune(n))}
		peer, _ := Task(n, "web")
		must(t, a.Announce(id, peer))
		want[id] = []gossip.Record{peer}
		v.Want(maps.Clone(want))
	}
	say(1)
	for i, next := range [][]gossip.Key{{Key, {1}}, {{1}, Key, {2}}, {{2}, {1}, {3}}} {
		must(t, a.SetKeys(next))
		say(byte(2 + 2*i))
		must(t, b.SetKeys(next))
		say(byte(3 + 2*i))
	}
	if err := a.SetKeys(nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no keys: %v", err)
	}
}

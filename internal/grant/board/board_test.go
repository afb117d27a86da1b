package board_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/longshore/longshore/internal/grant"
	"github.com/longshore/longshore/internal/grant/board"
)

const both = board.Serve | board.Connect

var (
	web = board.Realm{Owner: "cri", Namespace: "web"}
	ops = board.Realm{Owner: "cri", Namespace: "ops"}
)

func handle(t interface{ Fatal(...any) }, realm board.Realm, rights board.Rights, labels map[string]string) board.Handle {
	h, err := board.NewHandle(realm, rights, nil, labels)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// TestIdentityCannotBeForged: a container cannot become another one, at first or by narrowing.
func TestIdentityCannotBeForged(t *testing.T) {
	identity := map[string]string{"server_kubernetes_pod_name": "db-0"}
	if _, err := board.NewHandle(web, both, identity, map[string]string{"server_kubernetes_pod_name": "db-1"}); !errors.Is(err, board.ErrInvalid) || !strings.Contains(err.Error(), `attempted to override predefined label "server_kubernetes_pod_name"`) {
		t.Error(err)
	}
	h, err := board.NewHandle(web, both, identity, map[string]string{"app": "db"})
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range map[string]string{"server_kubernetes_pod_name": "db-1", "app": "web"} {
		if _, err := h.Narrow(both, map[string]string{k: v}); !errors.Is(err, board.ErrNotPermitted) {
			t.Errorf("%s became %s: %v", k, v, err)
		}
	}
	h.Labels()["app"] = "web"
	if got := h.Labels(); got["app"] != "db" || got["server_kubernetes_pod_name"] != "db-0" || len(got) != 2 {
		t.Errorf("its labels are %v", got)
	}
}

func TestRightsAreOnlyGivenUp(t *testing.T) {
	b := board.New(nil)
	h := handle(t, web, board.Connect, nil)
	more, err := h.Narrow(both, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Start(more); !errors.Is(err, board.ErrNotPermitted) {
		t.Errorf("a handle to connect starts servers: %v", err)
	}
	none, err := h.Narrow(board.Serve, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.Connect(none, nil); !errors.Is(err, board.ErrNotPermitted) {
		t.Errorf("a handle without rights connects: %v", err)
	}
}

func TestLabelsAreBounded(t *testing.T) {
	long := strings.Repeat("x", grant.MaxLabel+1)
	many := map[string]string{}
	for i := range grant.MaxLabels + 1 {
		many[fmt.Sprint(i)] = "v"
	}
	for _, labels := range []map[string]string{{"": "v"}, {long: "v"}, {"k": long}, many} {
		if _, err := board.NewHandle(web, both, nil, labels); !errors.Is(err, board.ErrInvalid) {
			t.Errorf("%d labels: %v", len(labels), err)
		}
	}
}

func TestTheLongestIdleServerIsNext(t *testing.T) {
	b := board.New(nil)
	var ids []board.ServerID
	for i := range 3 {
		id, err := b.Start(handle(t, web, board.Serve, map[string]string{"app": "db", "n": fmt.Sprint(i)}))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	client := handle(t, web, board.Connect, map[string]string{"app": "db", "user": "u"})
	reach := func(c board.Handle, want int) {
		t.Helper()
		got, err := b.Connect(c, nil)
		if err != nil || got.Server != ids[want] {
			t.Errorf("reached %+v, %v, want %d", got, err, ids[want])
		} else if !maps.Equal(got.Labels, map[string]string{"app": "db", "n": fmt.Sprint(want), "user": "u"}) {
			t.Errorf("its labels are %v", got.Labels)
		}
	}
	second, err := client.Narrow(board.Connect, map[string]string{"n": "1"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []int{0, 1, 2, 0} {
		reach(client, want)
	}
	reach(second, 1)
	for _, want := range []int{2, 0, 1} {
		reach(client, want)
	}
	b.Stop(ids[2])
	b.Stop(ids[2])
	for _, want := range []int{0, 1, 0} {
		reach(client, want)
	}
	b.Stop(ids[0])
	b.Stop(ids[1])
	if _, err := b.Connect(client, nil); !errors.Is(err, board.ErrNoServer) || !strings.Contains(err.Error(), `no server in cri/web matches {app: "db", user: "u"}`) {
		t.Errorf("without servers: %v", err)
	}
}

func TestRealmsAreApartUnlessTheyAreOpened(t *testing.T) {
	client, other := handle(t, ops, board.Connect, nil), handle(t, board.Realm{Owner: "nomad", Namespace: "web"}, board.Connect, nil)
	for _, opened := range []bool{false, true} {
		b := board.New(func(c, s board.Realm) bool { return opened && c == ops && s == web })
		if _, err := b.Start(handle(t, web, board.Serve, nil)); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Connect(client, nil); (err == nil) != opened {
			t.Errorf("opened %v: %v", opened, err)
		}
		if _, err := b.Connect(other, nil); !errors.Is(err, board.ErrNoServer) {
			t.Errorf("the same namespace of another owner: %v", err)
		}
	}
}

func TestARealmIsFull(t *testing.T) {
	b := board.New(nil)
	h := handle(t, web, board.Serve, nil)
	var last board.ServerID
	for range board.MaxServers {
		var err error
		if last, err = b.Start(h); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Start(h); !errors.Is(err, board.ErrFull) {
		t.Errorf("one more: %v", err)
	}
	if _, err := b.Start(handle(t, ops, board.Serve, nil)); err != nil {
		t.Errorf("of another realm: %v", err)
	}
	b.Stop(last)
	if _, err := b.Start(h); err != nil {
		t.Errorf("in the place of one that ended: %v", err)
	}
}

// TestAConnectionReachesTheRightServer compares the board with a search through all servers.
func TestAConnectionReachesTheRightServer(t *testing.T) {
	labels := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"1", "2"}), 0, 3)
	realm := rapid.SampledFrom([]board.Realm{web, ops})
	rapid.Check(t, func(t *rapid.T) {
		b := board.New(nil)
		type running struct {
			realm  board.Realm
			labels map[string]string
			used   int
		}
		servers, clock := map[board.ServerID]*running{}, 0
		for range rapid.IntRange(1, 40).Draw(t, "steps") {
			clock++
			r, l := realm.Draw(t, "realm"), labels.Draw(t, "labels")
			switch rapid.SampledFrom([]string{"start", "stop", "connect", "connect"}).Draw(t, "step") {
			case "start":
				id, err := b.Start(handle(t, r, board.Serve, l))
				if err != nil {
					t.Fatal(err)
				}
				servers[id] = &running{r, l, clock}
			case "stop":
				if len(servers) > 0 {
					first := slices.Min(slices.Collect(maps.Keys(servers)))
					b.Stop(first)
					delete(servers, first)
				}
			case "connect":
				var want board.ServerID
				for id, s := range servers {
					fits := s.realm == r
					for k, v := range l {
						fits = fits && (s.labels[k] == "" || s.labels[k] == v)
					}
					if fits && (want == 0 || s.used < servers[want].used) {
						want = id
					}
				}
				got, err := b.Connect(handle(t, r, board.Connect, l), nil)
				if got.Server != want || (err == nil) != (want != 0) {
					t.Fatalf("%v of %v reached %d, %v, want %d", l, r, got.Server, err, want)
				}
				if want == 0 {
					continue
				}
				servers[want].used = clock
				for _, part := range []map[string]string{l, servers[want].labels} {
					for k, v := range part {
						if got.Labels[k] != v {
							t.Fatalf("the connection of %v and %v has %v", l, servers[want].labels, got.Labels)
						}
					}
				}
			}
		}
	})
}

// TestNarrowedHandlesReachNoMore narrows a client at random: it reaches no more than before.
func TestNarrowedHandlesReachNoMore(t *testing.T) {
	labels := rapid.MapOfN(rapid.SampledFrom([]string{"a", "b", "c"}), rapid.SampledFrom([]string{"1", "2"}), 0, 3)
	rapid.Check(t, func(t *rapid.T) {
		wide := handle(t, web, board.Connect, labels.Draw(t, "client"))
		narrow, err := wide.Narrow(both, labels.Draw(t, "more"))
		if err != nil {
			return // it would not have been narrower
		}
		b := board.New(nil)
		if _, err := b.Start(handle(t, web, board.Serve, labels.Draw(t, "server"))); err != nil {
			t.Fatal(err)
		}
		_, before := b.Connect(wide, nil)
		if _, after := b.Connect(narrow, nil); after == nil && before != nil {
			t.Fatalf("%v reaches what %v does not", narrow.Labels(), wide.Labels())
		}
	})
}

// TestManyConnectAtOnce makes 1,000 connections by label across owners: each reaches a server of its own.
func TestManyConnectAtOnce(t *testing.T) {
	b := board.New(nil)
	const realms, servers = 10, 5
	whose := map[board.ServerID]string{}
	name := func(r, s int) string { return fmt.Sprintf("%d/%d", r, s) }
	in := func(r int) board.Realm {
		return board.Realm{Owner: []string{"cri", "nomad"}[r%2], Namespace: fmt.Sprint(r)}
	}
	for r := range realms {
		for s := range servers {
			id, err := b.Start(handle(t, in(r), board.Serve, map[string]string{"app": fmt.Sprint(s)}))
			if err != nil {
				t.Fatal(err)
			}
			whose[id] = name(r, s)
		}
	}
	var all sync.WaitGroup
	for i := range 1000 {
		r, s := i%realms, i/realms%servers
		client := handle(t, in(r), board.Connect, map[string]string{"app": fmt.Sprint(s)})
		all.Go(func() {
			if c, err := b.Connect(client, nil); err != nil || whose[c.Server] != name(r, s) {
				t.Errorf("a client of %s reached %q, %v", name(r, s), whose[c.Server], err)
			}
		})
	}
	all.Wait()
}

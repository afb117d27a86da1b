package gossip

import (
	"context"
	"fmt"
	"iter"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
	"github.com/longshore/longshore/internal/face/swarm/gossip/gossiptest"
	"github.com/longshore/longshore/internal/face/swarm/gossip/networkdb"
	"github.com/longshore/longshore/internal/roottest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// inUse reports whether somebody else has taken the port that was free.
func inUse(err error) bool {
	return err != nil && strings.Contains(err.Error(), "address already in use")
}

// fresh starts a process at an address of its own.
func (k kind) fresh(t *testing.T, name string, keys ...gossip.Key) *process {
	t.Helper()
	for {
		p, err := k.tryStart(t, name, gossiptest.Free(t), keys...)
		if inUse(err) {
			continue
		}
		must(t, err)
		return p
	}
}

// within starts a member of ours in this process.
func within(t *testing.T, name string) (*networkdb.DB, netip.AddrPort) {
	t.Helper()
	for {
		at := gossiptest.Free(t)
		m, err := networkdb.New(networkdb.Options{Name: name, Advertise: at.Addr(), Bind: at.Addr(), Port: at.Port(), Keys: []gossip.Key{gossiptest.Key}})
		if inUse(err) {
			continue
		}
		must(t, err)
		t.Cleanup(m.Leave)
		return m, at
	}
}

// others are the versions that are not ours; without one the test is skipped.
func others(t *testing.T) []kind {
	t.Helper()
	list := kinds(t)[1:]
	if len(list) == 0 {
		t.Skipf("%s names no programs of other versions (make e2e-gossip)", peersEnv)
	}
	return list
}

// TestContract: members of ours and of each other version pass the suite together, whichever of
// them speaks or listens.
func TestContract(t *testing.T) {
	for _, k := range others(t) {
		for _, first := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, ours is a: %t", k.name, first), func(t *testing.T) {
				t.Parallel()
				gossiptest.Contract(t, func(t *testing.T, name string) (gossip.Member, netip.AddrPort) {
					if (name == "a") == first {
						return within(t, name)
					}
					p := k.fresh(t, name, gossiptest.Key)
					return p, p.at
				})
			})
		}
	}
}

// counted counts which records of a Member have gone.
type counted struct {
	gossip.Member

	mu   sync.Mutex // guards gone
	gone map[gossip.ID]int
}

// Watch counts before anybody sees a change.
func (c *counted) Watch(ctx context.Context, network string) iter.Seq[gossip.Change] {
	return func(yield func(gossip.Change) bool) {
		for change := range c.Member.Watch(ctx, network) {
			if change.Gone {
				c.mu.Lock()
				c.gone[change.ID]++
				c.mu.Unlock()
			}
			if !yield(change) {
				return
			}
		}
	}
}

func (c *counted) losses(id gossip.ID) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.gone[id]
}

// network is that of all tests here.
const network = "net"

// cluster is a member of each kind, and one that is to come and go.
type cluster struct {
	t       *testing.T
	members []*counted
	views   []*gossiptest.View
	at      []netip.AddrPort
}

// newCluster starts a member of ours in this process and a process of each kind, which know each
// other.
func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t}
	add := func(name string, m gossip.Member, at netip.AddrPort) {
		t.Helper()
		if len(c.at) > 0 {
			must(t, m.Join(t.Context(), c.at[:1]))
		}
		must(t, m.Enter(t.Context(), network))
		of := &counted{Member: m, gone: map[gossip.ID]int{}}
		c.members, c.at = append(c.members, of), append(c.at, at)
		c.views = append(c.views, gossiptest.NewView(t, name, of, network))
	}
	m, at := within(t, "within")
	add("within", m, at)
	for _, k := range kinds(t) {
		p := k.fresh(t, "stays-"+k.name, gossiptest.Key)
		add(k.name, p, p.at)
	}
	return c
}

// enter has a process know the others and their records.
func (c *cluster) enter(p *process) {
	c.t.Helper()
	must(c.t, p.Join(c.t.Context(), c.at))
	must(c.t, p.Enter(c.t.Context(), network))
}

// want waits until all members that stay know exactly these records.
func (c *cluster) want(records map[gossip.ID][]gossip.Record) {
	c.t.Helper()
	for _, v := range c.views {
		v.Want(records)
	}
}

// took is want, and says when each of them knew.
func (c *cluster) took(what string, records map[gossip.ID][]gossip.Record) {
	c.t.Helper()
	began := time.Now()
	var wg sync.WaitGroup
	times := make([]string, len(c.views))
	for i, v := range c.views {
		wg.Go(func() {
			v.Want(records)
			times[i] = fmt.Sprint(v.Name, " ", time.Since(began).Round(time.Millisecond))
		})
	}
	wg.Wait()
	c.t.Logf("%s: %s", what, strings.Join(times, ", "))
}

// losses counts how often a member that stays has lost a record.
func (c *cluster) losses(id gossip.ID) (n int) {
	for _, m := range c.members {
		n += m.losses(id)
	}
	return n
}

// rounds is how many restarts may come too late on a machine that has much else to do.
const rounds = 5

// TestKilledAndStarted: a member that is killed, and started again under its name, is back before the
// others give it up: none loses its records for a moment. The next process withdraws the announcements of
// the one before.
func TestKilledAndStarted(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := kind{name: "longshore"}.fresh(t, "goes", gossiptest.Key)
	c.enter(p)
	id := gossip.ID{Network: network, Endpoint: gossip.EndpointID("task", network)}
	record, endpoint := gossiptest.Task(2, "web")
	must(t, p.Announce(id, record))
	must(t, p.Announce(id, endpoint))
	want := map[gossip.ID][]gossip.Record{id: {record, endpoint}}
	c.want(want)
	for round := 1; ; round++ {
		before := c.losses(id)
		p.kill()
		began := time.Now()
		p = p.again()
		c.enter(p)
		must(t, p.Announce(id, record))
		must(t, p.Announce(id, endpoint))
		marker := gossip.ID{Network: network, Endpoint: fmt.Sprint("marker", round)}
		other, _ := gossiptest.Task(byte(10+round), "web")
		must(t, p.Announce(marker, other))
		want[marker] = []gossip.Record{other}
		c.want(want)
		lost := c.losses(id) - before
		t.Logf("round %d: back %v after the start, %d of %d have lost the records meanwhile", round, time.Since(began).Round(time.Millisecond), lost, len(c.members))
		if lost == 0 {
			break
		}
		if round == rounds {
			t.Fatal("each time somebody has lost the records")
		}
	}
	p.kill()
	p = p.again()
	c.enter(p)
	must(t, p.Withdraw(id, endpoint))
	delete(want, id)
	want[id] = []gossip.Record{record}
	c.want(want)
	must(t, p.Withdraw(id, record))
	delete(want, id)
	c.want(want)
}

// TestFailedAndBack: all others drop the records of a member that is silent for too long, and have
// them again when it is back: at once after a silence, and by its announcement after a restart.
func TestFailedAndBack(t *testing.T) {
	others(t)
	for _, k := range kinds(t) {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			p := k.fresh(t, "goes", gossiptest.Key)
			c.enter(p)
			id := gossip.ID{Network: network, Endpoint: gossip.EndpointID("task", network)}
			record, endpoint := gossiptest.Task(2, "web")
			want := map[gossip.ID][]gossip.Record{id: {record, endpoint}}
			must(t, p.Announce(id, record))
			must(t, p.Announce(id, endpoint))
			c.want(want)
			must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
			c.took("silent: given up by", nil)
			must(t, p.cmd.Process.Signal(syscall.SIGCONT))
			c.took("no longer silent: its records are back at", want)
			p.kill()
			c.took("killed: given up by", nil)
			p = p.again()
			c.enter(p)
			must(t, p.Announce(id, record))
			must(t, p.Announce(id, endpoint))
			c.took("started anew: its records are back at", want)
			must(t, p.Withdraw(id, endpoint))
			must(t, p.Withdraw(id, record))
			c.want(nil)
		})
	}
}

// TestAnotherName: dockerd has another name in the gossip after each start. Members of ours accept
// the records of the new member at a dead one's address, and forget the dead one's.
func TestAnotherName(t *testing.T) {
	others(t)
	for _, k := range kinds(t) {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			p := k.fresh(t, "before", gossiptest.Key)
			c.enter(p)
			first, second := gossip.ID{Network: network, Endpoint: "first"}, gossip.ID{Network: network, Endpoint: "second"}
			record, _ := gossiptest.Task(2, "web")
			other, _ := gossiptest.Task(3, "web")
			must(t, p.Announce(first, record))
			c.want(map[gossip.ID][]gossip.Record{first: {record}})
			p.kill()
			p.name = "after"
			p = p.again()
			c.enter(p)
			must(t, p.Announce(second, other))
			c.want(map[gossip.ID][]gossip.Record{second: {other}})
		})
	}
}

// TestAnotherKey: a member with another key is not heard, with either library.
func TestAnotherKey(t *testing.T) {
	for _, k := range others(t) {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			p := k.fresh(t, "stranger", gossip.Key{1})
			if err := p.Join(t.Context(), c.at); err == nil {
				t.Error("it has joined")
			}
			if list := p.Members(); len(list) != 0 {
				t.Errorf("it knows %v", list)
			}
			for _, m := range c.members {
				if n := len(m.Members()); n != len(c.members)-1 {
					t.Errorf("one who stays knows %d", n)
				}
			}
		})
	}
}

// TestADeadMember: while a member is dead and the others have not noticed, only entering its network
// takes long: even there, announcements reach the members that live.
func TestADeadMember(t *testing.T) {
	for _, k := range others(t) {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t)
			p := k.fresh(t, "dead", gossiptest.Key)
			c.enter(p)
			must(t, p.Enter(t.Context(), "its"))
			must(t, c.members[0].Enter(t.Context(), "its"))
			watched := gossiptest.NewView(t, "within", c.members[0], "its")
			early, _ := gossiptest.Task(3, "web")
			m, _ := within(t, "new")
			must(t, m.Join(t.Context(), c.at))
			must(t, m.Join(t.Context(), []netip.AddrPort{p.at})) // which tells which networks it is in
			roottest.Eventually(t, "all are known", func() bool { return len(m.Members()) == len(c.members)+1 })
			must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
			defer func() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }()
			entered := make(chan error, 1)
			go func() { entered <- m.Enter(t.Context(), "its") }()
			other := gossip.ID{Network: "other", Endpoint: "1"}
			must(t, m.Begin(t.Context(), "its"))
			must(t, m.Announce(gossip.ID{Network: "its", Endpoint: "early"}, early))
			watched.Want(map[gossip.ID][]gossip.Record{{Network: "its", Endpoint: "early"}: {early}})
			must(t, m.Enter(t.Context(), other.Network))
			must(t, c.members[0].Enter(t.Context(), other.Network))
			v := gossiptest.NewView(t, "within", c.members[0], other.Network)
			record, _ := gossiptest.Task(2, "web")
			must(t, m.Announce(other, record))
			v.Want(map[gossip.ID][]gossip.Record{other: {record}})
			select {
			case err := <-entered:
				t.Fatalf("entered beside a dead member at once: %v", err)
			default:
			}
			must(t, <-entered)
			its := gossip.ID{Network: "its", Endpoint: "1"}
			must(t, m.Announce(its, record))
			watched.Want(map[gossip.ID][]gossip.Record{its: {record}, {Network: "its", Endpoint: "early"}: {early}})
		})
	}
}

// TestLeftBesideADeadMember: a network is left at once, and entered again, also while a dead member is still waited
// for there.
func TestLeftBesideADeadMember(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	p := kind{name: "longshore"}.fresh(t, "dead", gossiptest.Key)
	c.enter(p)
	must(t, p.Enter(t.Context(), "its"))
	must(t, c.members[0].Enter(t.Context(), "its"))
	watched := gossiptest.NewView(t, "within", c.members[0], "its")
	m, _ := within(t, "new")
	must(t, m.Join(t.Context(), c.at))
	must(t, m.Join(t.Context(), []netip.AddrPort{p.at}))
	roottest.Eventually(t, "all are known", func() bool { return len(m.Members()) == len(c.members)+1 })
	must(t, p.cmd.Process.Signal(syscall.SIGSTOP))
	defer func() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }()
	entered := make(chan error, 1)
	go func() { entered <- m.Enter(t.Context(), "its") }()
	must(t, m.Begin(t.Context(), "its"))
	record, _ := gossiptest.Task(2, "web")
	first, second := gossip.ID{Network: "its", Endpoint: "1"}, gossip.ID{Network: "its", Endpoint: "2"}
	must(t, m.Announce(first, record))
	watched.Want(map[gossip.ID][]gossip.Record{first: {record}})
	must(t, m.Exit("its"))
	select {
	case err := <-entered:
		t.Fatalf("it was left only when it was entered: %v", err)
	default:
	}
	watched.Want(nil)
	must(t, m.Begin(t.Context(), "its"))
	must(t, m.Announce(second, record))
	watched.Want(map[gossip.ID][]gossip.Record{second: {record}})
}

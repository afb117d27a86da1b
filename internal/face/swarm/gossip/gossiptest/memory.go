package gossiptest

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/face/swarm/gossip"
)

// Net is a gossip in memory, whose members hear of each other at once.
type Net struct {
	mu      sync.Mutex // guards members, records, changed, delay
	members map[string]*member
	records map[place]entry
	changed chan struct{} // closed at each change, and replaced
	delay   chan struct{} // nil, or closed when networks are entered
}

// place is where a record is.
type place struct {
	id       gossip.ID
	endpoint bool
}

// entry is a record and whose it is.
type entry struct {
	owner  string
	record gossip.Record
}

// NewNet returns one without members.
func NewNet() *Net {
	return &Net{members: map[string]*member{}, records: map[place]entry{}, changed: make(chan struct{})}
}

// member is one of a Net.
type member struct {
	net    *Net
	name   string
	at     netip.Addr
	joined bool
	in     map[string]bool
}

var _ gossip.Member = (*member)(nil)

// Member returns a member by its name, which knows nobody. One that there was before of that name
// has been killed: the others have its records until this one changes them.
func (n *Net) Member(name string, at netip.Addr) gossip.Member {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := &member{net: n, name: name, at: at, in: map[string]bool{}}
	n.members[name] = m
	return m
}

// changedLocked wakes all that watch. Preconditions: mu is held.
func (n *Net) changedLocked() {
	close(n.changed)
	n.changed = make(chan struct{})
}

// Join implements gossip.Member.
func (m *member) Join(_ context.Context, members []netip.AddrPort) error {
	m.net.mu.Lock()
	defer m.net.mu.Unlock()
	for _, o := range m.net.members {
		if o != m && slices.ContainsFunc(members, func(a netip.AddrPort) bool { return a.Addr() == o.at }) {
			m.joined, o.joined = true, true
			m.net.changedLocked()
			return nil
		}
	}
	return fmt.Errorf("join the gossip: nobody answers: %w", errdefs.ErrUnavailable)
}

// Delay has all that enter a network wait until the function that it returns is called.
func (n *Net) Delay() (goOn func()) {
	delay := make(chan struct{})
	n.mu.Lock()
	n.delay = delay
	n.mu.Unlock()
	return func() { close(delay) }
}

// Enter implements gossip.Member.
func (m *member) Enter(ctx context.Context, network string) error {
	if err := m.Begin(ctx, network); err != nil {
		return err
	}
	m.net.mu.Lock()
	delay := m.net.delay
	m.net.mu.Unlock()
	if delay == nil {
		return nil
	}
	select {
	case <-delay:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("enter network %s: %w", network, context.Cause(ctx))
	}
}

// Begin implements gossip.Member.
func (m *member) Begin(_ context.Context, network string) error {
	m.net.mu.Lock()
	defer m.net.mu.Unlock()
	if m.net.members[m.name] != m {
		return fmt.Errorf("enter network %s: this member has left: %w", network, errdefs.ErrFailedPrecondition)
	}
	m.in[network] = true
	m.net.changedLocked()
	return nil
}

// Exit implements gossip.Member.
func (m *member) Exit(network string) error {
	m.net.mu.Lock()
	defer m.net.mu.Unlock()
	if m.in[network] {
		delete(m.in, network)
		m.dropLocked(func(p place) bool { return p.id.Network == network })
	}
	return nil
}

// dropLocked withdraws own records. Preconditions: mu is held.
func (m *member) dropLocked(which func(place) bool) {
	maps.DeleteFunc(m.net.records, func(p place, e entry) bool { return e.owner == m.name && which(p) })
	m.net.changedLocked()
}

func placeOf(id gossip.ID, r gossip.Record) place {
	_, endpoint := r.(gossip.Endpoint)
	return place{id, endpoint}
}

// Announce implements gossip.Member.
func (m *member) Announce(id gossip.ID, r gossip.Record) error {
	if err := gossip.Check(r); err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	return m.put(id, r, false)
}

// Withdraw implements gossip.Member.
func (m *member) Withdraw(id gossip.ID, r gossip.Record) error { return m.put(id, r, true) }

func (m *member) put(id gossip.ID, r gossip.Record, gone bool) error {
	m.net.mu.Lock()
	defer m.net.mu.Unlock()
	if !m.in[id.Network] || m.net.members[m.name] != m {
		return fmt.Errorf("network %s is not entered: %w", id.Network, errdefs.ErrFailedPrecondition)
	}
	if gone {
		delete(m.net.records, placeOf(id, r))
	} else {
		m.net.records[placeOf(id, r)] = entry{m.name, r}
	}
	m.net.changedLocked()
	return nil
}

// Watch implements gossip.Member.
func (m *member) Watch(ctx context.Context, network string) iter.Seq[gossip.Change] {
	return func(yield func(gossip.Change) bool) {
		have := map[place]gossip.Record{}
		for {
			now, changed := m.see(network)
			for p, r := range have {
				if _, stays := now[p]; !stays && !yield(gossip.Change{ID: p.id, Record: r, Gone: true}) {
					return
				}
			}
			for p, r := range now {
				if old, there := have[p]; (!there || !gossip.Same(old, r)) && !yield(gossip.Change{ID: p.id, Record: r}) {
					return
				}
			}
			have = now
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
		}
	}
}

// see returns others' records on a network that m is in.
func (m *member) see(network string) (now map[place]gossip.Record, changed <-chan struct{}) {
	m.net.mu.Lock()
	defer m.net.mu.Unlock()
	now = map[place]gossip.Record{}
	for p, e := range m.net.records {
		if m.in[network] && p.id.Network == network && e.owner != m.name {
			now[p] = e.record
		}
	}
	return now, m.net.changed
}

// SetKeys implements gossip.Member.
func (m *member) SetKeys(keys []gossip.Key) error {
	if len(keys) == 0 {
		return fmt.Errorf("keys of the gossip: there are none: %w", errdefs.ErrInvalidArgument)
	}
	return nil
}

// Members implements gossip.Member.
func (m *member) Members() []netip.Addr {
	m.net.mu.Lock()
	defer m.net.mu.Unlock()
	var list []netip.Addr
	for _, o := range m.net.members {
		if o != m && o.joined && m.joined {
			list = append(list, o.at)
		}
	}
	slices.SortFunc(list, netip.Addr.Compare)
	return list
}

// Leave implements gossip.Member.
func (m *member) Leave() {
	m.net.mu.Lock()
	defer m.net.mu.Unlock()
	if m.net.members[m.name] == m {
		delete(m.net.members, m.name)
		m.in = map[string]bool{}
		m.dropLocked(func(place) bool { return true })
	}
}

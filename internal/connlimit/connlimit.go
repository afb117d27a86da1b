// Package connlimit limits the connections of a listener: how many are open at once, how many one
// peer has, and how many belong to clients that have not been authenticated. At a limit it makes
// room by closing a connection: the oldest one that is not authenticated, or the one that has
// been idle for the longest. So idle and half-open connections do not keep a client out.
//
// It knows no protocols: a server tells it which connections have a call in progress (Slot.Begin,
// Busy) and which are authenticated (Slot.Authenticate). Start reading at Limit.Admit.
package connlimit

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/weaken"
)

// ErrRefused is returned for a connection of a peer that has all the connections it may have,
// with a call in progress on each.
var ErrRefused = errors.New("the peer has too many connections")

// Options are the limits of a Limit.
type Options struct {
	// Name is the listener's name in metrics and messages, from a closed set.
	Name string
	// Key is the configuration key of Max, for messages.
	Key string
	// Max is how many connections may be open. Further ones wait until one ends.
	Max int
	// PerPeer is how many connections one address may have; 0 is no limit.
	PerPeer int
	// Unauthenticated is how many connections may belong to clients that have not been
	// authenticated. With 0 every client counts as authenticated, for example by a socket file's
	// mode.
	Unauthenticated int
}

// Limit limits the connections of one listener.
type Limit struct {
	o   Options
	log *slog.Logger
	now func() time.Time

	mu      sync.Mutex // guards slots, peers, unknown, freed, counts, nearAt, logged
	slots   map[*Slot]struct{}
	peers   map[string]*peer
	unknown int           // slots that are not authenticated
	freed   chan struct{} // closed and replaced when a slot is released
	counts  counts
	nearAt  time.Time // when it was last near Max
	logged  map[string]time.Time
}

// peer counts the connections of one address.
type peer struct{ all, unknown int }

// counts says how many connections have been closed so far.
type counts struct{ idle, unauthenticated, refused uint64 }

// Slot belongs to one connection.
type Slot struct {
	limit   *Limit
	address string
	since   time.Time
	evict   func()
	active  atomic.Int64 // when bytes were last transferred, in nanoseconds
	calls   atomic.Int64 // in progress
	cred    *unix.Ucred  // of the process that has connected to a unix socket; it is set before the slot is shared

	// Limit.mu guards these.
	known bool // the client is authenticated
	gone  bool
}

func newLimit(o Options, log *slog.Logger) *Limit {
	return &Limit{
		o: o, log: log, now: time.Now, slots: map[*Slot]struct{}{}, peers: map[string]*peer{},
		freed: make(chan struct{}), logged: map[string]time.Time{},
	}
}

// Admit gives a slot to a connection from remote, and closes another connection if a limit is
// reached. evict closes the connection; it must not block, and is called at most once. Admit
// waits while Max connections have a call in progress, until ctx ends. ErrRefused when the peer
// has PerPeer of them.
func (l *Limit) Admit(ctx context.Context, remote net.Addr, evict func()) (*Slot, error) {
	address := host(remote)
	for settled := false; ; {
		l.mu.Lock()
		full, victim := l.full(address)
		if !full {
			s := l.add(address, evict)
			l.mu.Unlock()
			return s, nil
		}
		if busy := l.unsettled(victim); busy > 0 && !settled {
			freed := l.freed
			l.mu.Unlock()
			timer := time.NewTimer(busy)
			select {
			case <-freed:
			case <-timer.C:
				settled = true // only once: the client may send for ever without making a call
			case <-ctx.Done():
				timer.Stop()
				return nil, context.Cause(ctx)
			}
			timer.Stop()
			continue
		}
		if victim != nil {
			l.close(ctx, victim)
			l.mu.Unlock()
			victim.evict()
			continue
		}
		if l.crowded(address) {
			l.counts.refused++
			l.say(ctx, "refused a connection: this peer has all the connections it may have, with a call in progress on each", "peer", address, "limit", l.o.PerPeer)
			l.mu.Unlock()
			return nil, ErrRefused
		}
		l.say(ctx, "new connections wait: the limit is reached and all connections have a call in progress", "limit", l.o.Max)
		freed := l.freed
		l.mu.Unlock()
		select {
		case <-freed:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// full reports whether a limit is reached for one more connection of address, and which
// connection to close to make room; nil is none. Preconditions: mu is held.
func (l *Limit) full(address string) (bool, *Slot) {
	switch {
	case weaken.Off(weaken.ConnectionRoom):
		return len(l.slots) >= l.o.Max, nil
	case l.crowded(address):
		of := func(s *Slot) bool { return s.address == address }
		return true, first(l.oldestUnknown(of), l.longestIdle(of))
	case len(l.slots) >= l.o.Max:
		return true, first(l.oldestUnknown(l.ofWorst()), l.longestIdle(nil))
	case l.o.Unauthenticated > 0 && l.unknown >= l.o.Unauthenticated:
		return true, l.oldestUnknown(l.ofWorst())
	}
	return false, nil
}

// crowded reports whether a peer has all the connections it may have. Preconditions: mu is held.
func (l *Limit) crowded(address string) bool {
	p := l.peers[address]
	return l.o.PerPeer > 0 && p != nil && p.all >= l.o.PerPeer
}

func first(slots ...*Slot) *Slot {
	for _, s := range slots {
		if s != nil {
			return s
		}
	}
	return nil
}

// ofWorst selects the connections of the peer with the most unauthenticated ones, so that one
// peer's flood does not close another's. Preconditions: mu is held.
func (l *Limit) ofWorst() func(*Slot) bool {
	worst, most := "", 0
	for address, p := range l.peers {
		if p.unknown > most {
			worst, most = address, p.unknown
		}
	}
	return func(s *Slot) bool { return s.address == worst }
}

// oldestUnknown returns the oldest of the selected connections that is not authenticated.
// Preconditions: mu is held.
func (l *Limit) oldestUnknown(selected func(*Slot) bool) *Slot {
	if l.unknown == 0 {
		return nil
	}
	var oldest *Slot
	for s := range l.slots {
		if !s.known && selected(s) && (oldest == nil || s.since.Before(oldest.since)) {
			oldest = s
		}
	}
	return oldest
}

// longestIdle returns the selected connection without a call that has been idle for the longest;
// nil selects all. Preconditions: mu is held.
func (l *Limit) longestIdle(selected func(*Slot) bool) *Slot {
	var longest *Slot
	for s := range l.slots {
		if s.calls.Load() == 0 && (selected == nil || selected(s)) && (longest == nil || s.active.Load() < longest.active.Load()) {
			longest = s
		}
	}
	return longest
}

// settleTime is how long bytes that a client has sent may take to become a call.
const settleTime = 100 * time.Millisecond

// unsettled returns how long to wait until a connection that is to be closed counts as idle: its
// client may have sent a call that the server has not begun. It is 0 for one that is not
// authenticated. Preconditions: mu is held.
func (l *Limit) unsettled(s *Slot) time.Duration {
	if s == nil || !s.known {
		return 0
	}
	return settleTime - l.now().Sub(time.Unix(0, s.active.Load()))
}

// add makes a slot. Preconditions: mu is held.
func (l *Limit) add(address string, evict func()) *Slot {
	now := l.now()
	s := &Slot{limit: l, address: address, since: now, evict: evict, known: l.o.Unauthenticated == 0}
	s.active.Store(now.UnixNano())
	l.slots[s] = struct{}{}
	p := l.peers[address]
	if p == nil {
		p = &peer{}
		l.peers[address] = p
	}
	p.all++
	if !s.known {
		p.unknown++
		l.unknown++
	}
	if near(len(l.slots), l.o.Max) {
		l.nearAt = now
		l.say(context.Background(), "the number of open connections is near its limit", "open", len(l.slots), "limit", l.o.Max)
	}
	return s
}

// near reports whether n is 80 per cent of limit or more.
func near(n, limit int) bool { return n*5 >= limit*4 }

// close counts a connection that is closed to make room, and releases its slot. Preconditions: mu
// is held.
func (l *Limit) close(ctx context.Context, s *Slot) {
	idle := l.now().Sub(time.Unix(0, s.active.Load())).Round(time.Millisecond)
	if s.known {
		l.counts.idle++
		l.say(ctx, "closed the connection that was idle for the longest, to make room", "peer", s.address, "idle", idle)
	} else {
		l.counts.unauthenticated++
		l.say(ctx, "closed the oldest connection that was not authenticated, to make room", "peer", s.address, "idle", idle)
	}
	l.drop(s)
}

// drop releases a slot. Preconditions: mu is held.
func (l *Limit) drop(s *Slot) {
	if s.gone {
		return
	}
	s.gone = true
	delete(l.slots, s)
	p := l.peers[s.address]
	p.all--
	if !s.known {
		p.unknown--
		l.unknown--
	}
	if p.all == 0 {
		delete(l.peers, s.address)
	}
	close(l.freed)
	l.freed = make(chan struct{})
}

// logEvery is the shortest time between two equal log lines.
const logEvery = time.Minute

// say logs a warning, the same one at most once a minute. Preconditions: mu is held.
func (l *Limit) say(ctx context.Context, text string, args ...any) {
	now := l.now()
	if at, ok := l.logged[text]; ok && now.Sub(at) < logEvery {
		return
	}
	l.logged[text] = now
	if l.log != nil {
		l.log.With("socket", l.o.Name, "key", l.o.Key).With(args...).WarnContext(ctx, text) //nolint:sloglint // text is one of the constants above
	}
}

// evictIdle closes the connection that has been idle for the longest, if there is one.
func (l *Limit) evictIdle(ctx context.Context) bool {
	l.mu.Lock()
	s := l.longestIdle(nil)
	if s != nil {
		l.close(ctx, s)
	}
	l.mu.Unlock()
	if s != nil {
		s.evict()
	}
	return s != nil
}

// Release releases the slot. It may be called more than once.
func (s *Slot) Release() {
	s.limit.mu.Lock()
	defer s.limit.mu.Unlock()
	s.limit.drop(s)
}

// Authenticate marks the connection's client as authenticated.
func (s *Slot) Authenticate() {
	l := s.limit
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.known || s.gone {
		return
	}
	s.known = true
	l.unknown--
	l.peers[s.address].unknown--
}

// Begin records the start of a call, until End. A connection with a call in progress is not idle.
func (s *Slot) Begin() { s.calls.Add(1) }

// End records the end of a call.
func (s *Slot) End() {
	s.touch()
	s.calls.Add(-1)
}

func (s *Slot) touch() { s.active.Store(s.limit.now().UnixNano()) }

// host returns the part of an address that all connections of one client share: for IPv6 the
// network, because its owner has all its addresses.
func host(a net.Addr) string {
	t, ok := a.(*net.TCPAddr)
	switch {
	case !ok:
		return ""
	case t.IP.To4() == nil && !t.IP.IsLoopback():
		return t.IP.Mask(net.CIDRMask(64, 128)).String() + "/64"
	}
	return t.IP.String()
}

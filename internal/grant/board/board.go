// Package board decides which server a client reaches: the matching of the switchboard, without sockets.
//
// A program needs a Handle of the agent to start a server or to connect. A handle has labels, and can only be narrowed:
// by more labels, or by fewer rights. Start reading at Board.Connect.
package board

import (
	"cmp"
	"container/list"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/longshore/longshore/internal/grant"
)

// Rights are the rights of a handle.
type Rights uint8

// The rights of a handle.
const (
	Serve Rights = 1 << iota
	Connect
)

// Realm is within which servers and clients see each other: an orchestrator's namespace.
type Realm struct {
	Owner     string `json:"owner,omitempty"`
	Namespace string `json:"namespace,omitempty"`
}

func (r Realm) String() string {
	if r.Namespace == "" {
		return r.Owner
	}
	return r.Owner + "/" + r.Namespace
}

// Errors of this package are of these classes.
var (
	// ErrNotPermitted is the error of a use that a handle does not allow.
	ErrNotPermitted = errors.New("not permitted")
	// ErrNoServer is the error of Connect without a matching server.
	ErrNoServer = errors.New("no server")
	// ErrInvalid is that of labels that cannot be.
	ErrInvalid = errors.New("invalid labels")
	// ErrBusy is the error of Connect if no matching server has taken its last connections.
	ErrBusy = errors.New("busy")
	// ErrFull is that of a realm with too many servers.
	ErrFull = errors.New("too many servers")
)

// MaxServers is how many servers a realm may have at once, and MaxLabels how many bytes a handle's labels have together.
const (
	MaxServers = 4096
	MaxLabels  = 12 << 10
)

// Handle is a right to use the board. Its labels can be read and not changed.
type Handle struct {
	realm  Realm
	rights Rights
	labels map[string]string
}

// NewHandle returns a container's handle. Identity are the labels that identify the container to others: only the agent
// sets them, so labels must have none of their keys.
func NewHandle(realm Realm, rights Rights, identity, labels map[string]string) (Handle, error) {
	for _, k := range sorted(labels) {
		if _, ok := identity[k]; ok {
			return Handle{}, fmt.Errorf("%w: attempted to override predefined label %q", ErrInvalid, k)
		}
	}
	return Handle{realm: realm, rights: rights, labels: maps.Clone(identity)}.Narrow(rights, labels)
}

// Narrow returns a handle with more labels and no more rights.
func (h Handle) Narrow(rights Rights, labels map[string]string) (Handle, error) {
	out := Handle{realm: h.realm, rights: h.rights & rights, labels: maps.Clone(h.labels)}
	if out.labels == nil {
		out.labels = map[string]string{}
	}
	for _, k := range sorted(labels) {
		v := labels[k]
		switch old, ok := out.labels[k]; {
		case ok && old != v:
			return Handle{}, fmt.Errorf("%w: label %q is %q and cannot become %q: a handle can only be narrowed", ErrNotPermitted, k, old, v)
		case k == "" || len(k) > grant.MaxLabel || len(v) > grant.MaxLabel:
			return Handle{}, fmt.Errorf("%w: a label has a key and a value of at most %d bytes each", ErrInvalid, grant.MaxLabel)
		case !printable(k) || !printable(v):
			return Handle{}, fmt.Errorf("%w: label %q: %q: labels are UTF-8 without control characters", ErrInvalid, k, v)
		}
		out.labels[k] = v
	}
	if len(out.labels) > grant.MaxLabels {
		return Handle{}, fmt.Errorf("%w: %d labels, a handle has at most %d", ErrInvalid, len(out.labels), grant.MaxLabels)
	}
	size := 0
	for k, v := range out.labels {
		size += len(k) + len(v)
	}
	if size > MaxLabels {
		return Handle{}, fmt.Errorf("%w: labels of %d bytes, those of a handle have at most %d together", ErrInvalid, size, MaxLabels)
	}
	return out, nil
}

// printable reports whether s is UTF-8 without control characters, so that its JSON is at most twice as long.
func printable(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unicode.IsControl)
}

// Realm is the handle's realm.
func (h Handle) Realm() Realm { return h.realm }

// Rights are the handle's rights.
func (h Handle) Rights() Rights { return h.rights }

// Labels returns a copy of the handle's labels.
func (h Handle) Labels() map[string]string { return maps.Clone(h.labels) }

// Open says whether clients of one realm may reach servers of another one. Nil opens nothing.
type Open func(client, server Realm) bool

// ServerID names a server that runs.
type ServerID uint64

// Connection is the description of a new connection for both ends.
type Connection struct {
	Server ServerID
	// Labels are those of client and server together.
	Labels map[string]string
}

type server struct {
	id     ServerID
	handle Handle
	used   uint64 // when it got its last connection, or was started
	at     *list.Element
}

// Board has the running servers.
type Board struct {
	open Open

	mu      sync.Mutex // guards open, servers, realms, clock, next
	servers map[ServerID]*server
	realms  map[Realm]*list.List // of *server, the longest idle one first
	clock   uint64
	next    ServerID
}

// New returns a board without servers.
func New(open Open) *Board {
	return &Board{open: open, servers: map[ServerID]*server{}, realms: map[Realm]*list.List{}}
}

// SetOpen replaces the function of New. Earlier connections stay.
func (b *Board) SetOpen(open Open) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open = open
}

// Start adds a server.
func (b *Board) Start(h Handle) (ServerID, error) {
	if h.rights&Serve == 0 {
		return 0, fmt.Errorf("%w: this handle starts no servers", ErrNotPermitted)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	realm := b.realms[h.realm]
	if realm == nil {
		realm = list.New()
		b.realms[h.realm] = realm
	}
	if realm.Len() >= MaxServers {
		return 0, fmt.Errorf("%w: %s has %d", ErrFull, h.realm, MaxServers)
	}
	b.next++
	b.clock++
	s := &server{id: b.next, handle: h, used: b.clock}
	s.at = realm.PushBack(s)
	b.servers[b.next] = s
	return b.next, nil
}

// Stop removes a server that has ended; no client reaches it any more. A server that is gone is no error.
func (b *Board) Stop(id ServerID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.servers[id]
	if s == nil {
		return
	}
	delete(b.servers, id)
	realm := b.realms[s.handle.realm]
	if realm.Remove(s.at); realm.Len() == 0 {
		delete(b.realms, s.handle.realm)
	}
}

// Order returns the running servers, the one without a new connection for the longest time first. Another board that starts them in this
// order chooses between them as this one.
func (b *Board) Order() []ServerID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.SortedFunc(maps.Keys(b.servers), func(one, other ServerID) int { return cmp.Compare(b.servers[one].used, b.servers[other].used) })
}

// Connect returns the server that a client reaches: of the matching servers that offer, unless nil, accepts, the one
// without a new connection for the longest time. A client and a server match if their common keys have equal values.
// Offer must not call the board.
func (b *Board) Connect(h Handle, offer func(Connection) bool) (Connection, error) {
	if h.rights&Connect == 0 {
		return Connection{}, fmt.Errorf("%w: this handle makes no connections", ErrNotPermitted)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	busy := 0
	for s := range b.matchesLocked(h) {
		union := maps.Clone(s.handle.labels)
		maps.Copy(union, h.labels)
		c := Connection{Server: s.id, Labels: union}
		if offer != nil && !offer(c) {
			if busy++; busy == maxOffers {
				break
			}
			continue
		}
		b.clock++
		s.used = b.clock
		b.realms[s.handle.realm].MoveToBack(s.at)
		return c, nil
	}
	if busy > 0 {
		return Connection{}, fmt.Errorf("%w: %s matches %s, and takes no more connections now", ErrBusy, h.realm, text(h.labels))
	}
	return Connection{}, fmt.Errorf("%w in %s matches %s", ErrNoServer, h.realm, text(h.labels))
}

// maxOffers is how many servers are offered one connection.
const maxOffers = 64

// matchesLocked yields the servers that match, the longest idle one first.
func (b *Board) matchesLocked(h Handle) iter.Seq[*server] {
	return func(yield func(*server) bool) {
		var next []*list.Element // of each realm, the next one that matches
		for realm, servers := range b.realms {
			if b.reachesLocked(h.realm, realm) {
				if e := matching(h, servers.Front()); e != nil {
					next = append(next, e)
				}
			}
		}
		for len(next) > 0 {
			first := 0
			for i, e := range next {
				if of(e).used < of(next[first]).used {
					first = i
				}
			}
			s := of(next[first])
			following := matching(h, next[first].Next())
			if !yield(s) {
				return
			}
			if next[first] = following; following == nil {
				next = slices.Delete(next, first, first+1)
			}
		}
	}
}

// matching returns the first server from e on that matches.
func matching(h Handle, e *list.Element) *list.Element {
	for ; e != nil; e = e.Next() {
		if match(h.labels, of(e).handle.labels) {
			return e
		}
	}
	return nil
}

func of(e *list.Element) *server { return e.Value.(*server) } //nolint:forcetypeassert // a realm has nothing else

func (b *Board) reachesLocked(client, server Realm) bool {
	return client == server || b.open != nil && b.open(client, server)
}

// match reports whether no key that both have differs.
func match(a, b map[string]string) bool {
	for k, v := range a {
		if other, ok := b[k]; ok && other != v {
			return false
		}
	}
	return true
}

func sorted(m map[string]string) []string { return slices.Sorted(maps.Keys(m)) }

func text(labels map[string]string) string {
	parts := make([]string, 0, len(labels))
	for k, v := range labels {
		parts = append(parts, fmt.Sprintf("%s: %q", k, v))
	}
	sort.Strings(parts)
	return "{" + strings.Join(parts, ", ") + "}"
}

// Package board decides which server a client reaches: the matching of the switchboard, without sockets.
//
// Who starts a server or connects holds a Handle, which the agent made. A handle has labels, and can only be narrowed: by more
// labels, or by rights that are given up. Start reading at Board.Connect.
package board

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/longshore/longshore/internal/grant"
)

// Rights are what a handle may be used for.
type Rights uint8

// The rights of a handle.
const (
	Serve Rights = 1 << iota
	Connect
)

// Realm is within which servers and clients see each other: an orchestrator's namespace.
type Realm struct {
	Owner     string
	Namespace string
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
	// ErrNoServer is that of a connection for which no server is there.
	ErrNoServer = errors.New("no server")
	// ErrInvalid is that of labels that cannot be.
	ErrInvalid = errors.New("invalid labels")
	// ErrFull is that of a realm with too many servers.
	ErrFull = errors.New("too many servers")
)

// MaxServers is how many servers a realm may have at once.
const MaxServers = 4096

// Handle is a right to use the board. Its labels can be read and not changed.
type Handle struct {
	realm  Realm
	rights Rights
	labels map[string]string
}

// NewHandle returns a container's handle. Identity are the labels by which others may rely on who it is: nobody but the agent sets them, so
// labels must have none of their keys.
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
		}
		out.labels[k] = v
	}
	if len(out.labels) > grant.MaxLabels {
		return Handle{}, fmt.Errorf("%w: %d labels, a handle has at most %d", ErrInvalid, len(out.labels), grant.MaxLabels)
	}
	return out, nil
}

// Labels returns a copy of the handle's labels.
func (h Handle) Labels() map[string]string { return maps.Clone(h.labels) }

// Open says whether clients of one realm may reach servers of another one. Nil opens nothing.
type Open func(client, server Realm) bool

// ServerID names a server that runs.
type ServerID uint64

// Connection is what both ends of a new connection get.
type Connection struct {
	Server ServerID
	// Labels are those of client and server together.
	Labels map[string]string
}

type server struct {
	id     ServerID
	handle Handle
	used   uint64 // when it got its last connection, or was started
}

// Board has the servers that run.
type Board struct {
	open Open

	mu      sync.Mutex // guards servers, realms, clock, next
	servers map[ServerID]*server
	realms  map[Realm]int // how many servers each has
	clock   uint64
	next    ServerID
}

// New returns a board without servers.
func New(open Open) *Board {
	return &Board{open: open, servers: map[ServerID]*server{}, realms: map[Realm]int{}}
}

// Start adds a server.
func (b *Board) Start(h Handle) (ServerID, error) {
	if h.rights&Serve == 0 {
		return 0, fmt.Errorf("%w: this handle starts no servers", ErrNotPermitted)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.realms[h.realm] >= MaxServers {
		return 0, fmt.Errorf("%w: %s has %d", ErrFull, h.realm, MaxServers)
	}
	b.realms[h.realm]++
	b.next++
	b.clock++
	b.servers[b.next] = &server{id: b.next, handle: h, used: b.clock}
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
	if b.realms[s.handle.realm]--; b.realms[s.handle.realm] == 0 {
		delete(b.realms, s.handle.realm)
	}
}

// Connect returns the server that a client reaches: of those that match, the one that has had no new connection for the longest time.
// A client and a server match if no key that both have differs.
func (b *Board) Connect(h Handle) (Connection, error) {
	if h.rights&Connect == 0 {
		return Connection{}, fmt.Errorf("%w: this handle makes no connections", ErrNotPermitted)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	var best *server
	for _, s := range b.servers {
		if (best == nil || s.used < best.used) && b.reaches(h.realm, s.handle.realm) && match(h.labels, s.handle.labels) {
			best = s
		}
	}
	if best == nil {
		return Connection{}, fmt.Errorf("%w in %s matches %s", ErrNoServer, h.realm, text(h.labels))
	}
	b.clock++
	best.used = b.clock
	union := maps.Clone(best.handle.labels)
	maps.Copy(union, h.labels)
	return Connection{Server: best.id, Labels: union}, nil
}

func (b *Board) reaches(client, server Realm) bool {
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

// Package state is core.Store: the engine's records and events, and the faces'
// drawers, in memory. A Backing writes what must outlive the process; package bolt
// below has the node's. Without one the store ends with the process.
//
// Reads are answered from memory and never touch a file; a change is written
// through before it can be seen.
//
// It must not know what the records mean: the engine's rules are the engine's. Nor
// may it link a database: that is the Backing's. Start at Store in this file, then
// tx.go.
package state

import (
	"context"
	"fmt"
	"sync"

	"github.com/longshore/longshore/internal/core"
)

// DefaultEventLimit is how many events stay when Options do not say.
const DefaultEventLimit = 100_000

// The kinds of records, as Record.Kind has them.
const (
	KindSandbox   = "sandbox"
	KindContainer = "container"
)

// Backing writes what a Store must not lose. While Commit runs nothing else of it is
// called, but for Drawer and the methods of what Drawer has returned.
type Backing interface {
	// Commit writes all changes or none. oldest is the Seq of the oldest event that
	// the store keeps: older ones may be deleted.
	Commit(ch Changes, oldest uint64) error
	// LostObjects are what was alive before a boot and has not been ended since.
	LostObjects() []core.LostObject
	// Drawer returns where the drawer of an owner is written: what outlives a boot, or
	// what does not. It is called once for each.
	Drawer(owner core.Owner, durable bool) Entries
	// Close ends it.
	Close() error
}

// Entries are where one drawer is written. Load comes first; no two methods are called
// at the same time.
type Entries interface {
	// Load calls fn for each entry; fn may keep value.
	Load(fn func(key string, value []byte)) error
	// Write sets an entry, or deletes it where value is nil.
	Write(key string, value []byte) error
}

// Changes are those of one commit, in their order.
type Changes struct {
	Records []Record
	Events  []Event
}

// Record is one object's new form.
type Record struct {
	Kind string // KindSandbox or KindContainer
	ID   core.ID
	JSON []byte // nil when it was deleted
}

// Event is one event that was appended.
type Event struct {
	core.Event
	JSON []byte
}

// Contents are what a store begins with.
type Contents struct {
	Sandboxes  []*core.Sandbox   // by creation
	Containers []*core.Container // by creation
	// Events are the newest ones as JSON, without a gap; the last has Seq Last.
	Events [][]byte
	Last   uint64
}

// Trim drops events from the front that a store with this limit would drop.
func (c *Contents) Trim(limit int) {
	r := eventRing{raw: c.Events, last: c.Last, limit: limit}
	r.trim()
	c.Events = r.raw
}

// Store is one core.Store.
type Store struct {
	// write serializes commits: whoever has it commits for all who wait. It is taken
	// before mu.
	write sync.Mutex

	queueMu sync.Mutex // guards queue
	queue   []*request

	mu         sync.RWMutex // guards sandboxes, containers, events, changed
	sandboxes  kind[core.Sandbox]
	containers kind[core.Container]
	events     eventRing
	changed    chan struct{} // closed and replaced by every commit with events

	scopeMu sync.Mutex // guards scopes
	scopes  map[scopeName]*drawer

	backing Backing // nil in memory
}

var _ core.Store = (*Store)(nil)

// NewMemory returns a store that ends with the process. eventLimit 0 is
// DefaultEventLimit.
func NewMemory(eventLimit int) *Store { return New(eventLimit, Contents{}, nil) }

// New returns a store that holds c and writes its changes to b, unless that is nil.
// It closes b when it is closed. eventLimit is how many events stay readable; 0 is
// DefaultEventLimit.
func New(eventLimit int, c Contents, b Backing) *Store {
	if eventLimit == 0 {
		eventLimit = DefaultEventLimit
	}
	c.Trim(eventLimit)
	s := &Store{
		sandboxes:  newKind(KindSandbox, (*core.Sandbox).Base, nil),
		containers: newKind(KindContainer, (*core.Container).Base, func(c *core.Container) core.ID { return c.Sandbox }),
		events:     eventRing{raw: c.Events, last: c.Last, limit: eventLimit},
		changed:    make(chan struct{}),
		scopes:     map[scopeName]*drawer{},
		backing:    b,
	}
	for _, sb := range c.Sandboxes {
		s.sandboxes.set(sb)
	}
	for _, ct := range c.Containers {
		s.containers.set(ct)
	}
	return s
}

// View runs fn over one state of the store. fn must be short, must not call
// the Store again and must not wait for anything.
func (s *Store) View(fn func(core.Tx) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return fn(&tx{s: s})
}

// request is one Update on its way through the queue.
type request struct {
	fn    func(core.Tx) error
	err   error
	panic any // of fn, to be raised where Update was called
	done  bool
}

// Update runs fn and commits what it changed, or nothing when it fails. Calls
// that come together are committed together. fn must not call the Store again.
func (s *Store) Update(fn func(core.Tx) error) error {
	r := &request{fn: fn}
	s.queueMu.Lock()
	s.queue = append(s.queue, r)
	s.queueMu.Unlock()

	// Whoever gets the lock first commits for all who wait.
	s.write.Lock()
	if !r.done {
		s.queueMu.Lock()
		batch := s.queue
		s.queue = nil
		s.queueMu.Unlock()
		s.commit(batch)
	}
	s.write.Unlock()
	if r.panic != nil {
		panic(r.panic)
	}
	return r.err
}

// commit runs the functions of batch one after the other and writes their
// changes in one go. A function that fails takes only its own changes back; a
// write that fails takes all back.
func (s *Store) commit(batch []*request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := &changes{}
	for _, r := range batch {
		own := &changes{}
		r.err = s.apply(r, own)
		if r.err != nil || r.panic != nil {
			own.revert()
			continue
		}
		all.merge(own)
	}
	err := s.persist(all)
	if err != nil {
		all.revert()
	}
	for _, r := range batch {
		if err != nil && r.err == nil && r.panic == nil {
			r.err = fmt.Errorf("commit: %w", err)
		}
		r.done = true
	}
	if err == nil && len(all.Events) > 0 {
		s.events.trim()
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

func (s *Store) apply(r *request, ch *changes) (err error) {
	defer func() { r.panic = recover() }()
	return r.fn(&tx{s: s, ch: ch})
}

// persist writes changes to the backing. Preconditions: mu is held.
func (s *Store) persist(ch *changes) error {
	if s.backing == nil || ch.empty() {
		return nil
	}
	return s.backing.Commit(ch.Changes, s.events.willTrimTo())
}

// Wait blocks until an event newer than seq is there.
func (s *Store) Wait(ctx context.Context, seq uint64) error {
	for {
		s.mu.RLock()
		last, changed := s.events.last, s.changed
		s.mu.RUnlock()
		if last > seq {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// LostObjects are what the event log of an earlier boot says was alive.
func (s *Store) LostObjects() []core.LostObject {
	if s.backing == nil {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.backing.LostObjects()
}

// Close closes the backing. The store must not be used after it.
func (s *Store) Close() error {
	s.write.Lock()
	defer s.write.Unlock()
	if s.backing == nil {
		return nil
	}
	return s.backing.Close()
}

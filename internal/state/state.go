// Package state implements core.Store in memory: the engine's records and events, and the faces'
// key-value stores. A Backing writes the part that must outlive the process; package bolt below is
// the node's. Without one the content is lost with the process.
//
// Reads use memory only and never touch a file; a change is written through before anybody can
// see it.
//
// It does not know the meaning of the records, which is the engine's part, and links no database,
// which is the Backing's. Start at Store in this file, then tx.go.
package state

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/core"
)

// DefaultEventLimit is how many events are kept when Options do not say.
const DefaultEventLimit = 100_000

// The values of Record.Kind.
const (
	KindSandbox   = "sandbox"
	KindContainer = "container"
)

// Backing writes the content that a Store must not lose. While Commit runs no other method is
// called, except Entries and the methods of the values that it has returned.
type Backing interface {
	// Commit writes all changes or none. oldest is the Seq of the oldest event that the store
	// keeps; older ones may be deleted.
	Commit(ch Changes, oldest uint64) error
	// Sync returns when all committed records of durable objects outlive a boot.
	Sync() error
	// LostObjects returns the objects that existed before a boot and have not been ended since.
	LostObjects() []core.LostObject
	// Entries returns the writer of an owner's key-value store; durable says whether it
	// outlives a boot. It is called once for each.
	Entries(owner core.Owner, durable bool) Entries
	// Close releases the files.
	Close() error
}

// Entries writes one key-value store. Load is called first; no two methods are called
// concurrently.
type Entries interface {
	// Load calls fn for each entry. fn may keep value.
	Load(fn func(key string, value []byte)) error
	// Write sets or deletes entries, in their order: all of them, or none when it fails.
	Write(list []Entry) error
}

// Entry is a value by its key; without a value (nil) it is to be deleted.
type Entry struct {
	Key   string
	Value []byte
}

// Changes are those of one commit, in order.
type Changes struct {
	Records []Record
	Events  []Event
}

// Record is the new form of one object.
type Record struct {
	Kind string // KindSandbox or KindContainer
	ID   core.ID
	JSON []byte // nil when it was deleted
	// Durable says that the object outlives a boot.
	Durable bool
}

// Event is one appended event.
type Event struct {
	core.Event
	JSON []byte
}

// Contents is the initial content of a store.
type Contents struct {
	Sandboxes  []*core.Sandbox   // by creation time
	Containers []*core.Container // by creation time
	// Events are the newest ones as JSON, without a gap; the last one has the Seq Last.
	Events [][]byte
	Last   uint64
}

// Trim drops the oldest events, as a store with this limit would.
func (c *Contents) Trim(limit int) {
	r := eventRing{raw: c.Events, last: c.Last, limit: limit}
	r.trim()
	c.Events = r.raw
}

// Store implements core.Store.
type Store struct {
	// write serializes commits: its holder commits for all waiting callers. Lock order: write, then
	// mu.
	write sync.Mutex

	queueMu sync.Mutex // guards queue
	queue   []*request

	mu         sync.RWMutex // guards sandboxes, containers, events, changed
	sandboxes  kind[core.Sandbox]
	containers kind[core.Container]
	events     eventRing
	changed    chan struct{} // closed and replaced by every commit with events

	scopeMu sync.Mutex // guards scopes
	scopes  map[scopeName]*kv

	backing  Backing             // nil when in memory only
	observer func(time.Duration) // called with the duration of each Update; may be nil
}

var _ core.Store = (*Store)(nil)

// NewMemory returns a store that loses its content with the process. An eventLimit of 0 is
// DefaultEventLimit.
func NewMemory(eventLimit int) *Store { return New(eventLimit, Contents{}, nil, nil) }

// New returns a store with the content c that writes its changes to b, unless that is nil.
// Closing the store closes b. eventLimit is how many events stay readable; 0 is
// DefaultEventLimit. observer, which may be nil, is called with the duration of each Update,
// waiting for other updates included.
func New(eventLimit int, c Contents, b Backing, observer func(time.Duration)) *Store {
	if eventLimit == 0 {
		eventLimit = DefaultEventLimit
	}
	c.Trim(eventLimit)
	s := &Store{
		sandboxes: newKind(KindSandbox, (*core.Sandbox).Base, nil, func(sb *core.Sandbox) bool { return sb.Config.Durable }),
		containers: newKind(KindContainer, (*core.Container).Base, func(c *core.Container) core.ID { return c.Sandbox },
			func(c *core.Container) bool { return c.Config.Durable }),
		events:   eventRing{raw: c.Events, last: c.Last, limit: eventLimit},
		changed:  make(chan struct{}),
		scopes:   map[scopeName]*kv{},
		backing:  b,
		observer: observer,
	}
	for _, sb := range c.Sandboxes {
		s.sandboxes.set(sb)
	}
	for _, ct := range c.Containers {
		s.containers.set(ct)
	}
	return s
}

// View runs fn on one state of the store. fn must be short, must not call the Store and must not
// wait for anything.
func (s *Store) View(fn func(core.Tx) error) error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return fn(&tx{s: s})
}

// request is one Update in the queue.
type request struct {
	fn    func(core.Tx) error
	err   error
	panic any // fn's panic, to be raised in the goroutine that called Update
	done  bool
}

// Update runs fn and commits its changes, or nothing when it fails. Concurrent calls are
// committed together. fn must not call the Store.
func (s *Store) Update(fn func(core.Tx) error) error {
	if s.observer != nil {
		defer func(began time.Time) { s.observer(time.Since(began)) }(time.Now())
	}
	r := &request{fn: fn}
	s.queueMu.Lock()
	s.queue = append(s.queue, r)
	s.queueMu.Unlock()

	// The first holder of the lock commits for all waiting callers.
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

// commit runs the functions of batch one after the other and writes all their changes at once. A
// function that fails undoes only its own changes; a write that fails undoes all.
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

// Wait blocks until there is an event after seq.
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

// LostObjects returns the objects that existed in an earlier boot according to the event log.
func (s *Store) LostObjects() []core.LostObject {
	if s.backing == nil {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.backing.LostObjects()
}

// Sync implements core.Store.
func (s *Store) Sync() error {
	if s.backing == nil {
		return nil
	}
	if err := s.backing.Sync(); err != nil {
		return fmt.Errorf("sync records: %w", err)
	}
	return nil
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

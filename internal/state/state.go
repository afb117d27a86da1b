// Package state is core.Store: the engine's records and events, and the faces'
// drawers, in bbolt files or in memory alone.
//
// Reads are answered from memory and never touch a file; a change is written
// through before it can be seen. Records and events stand in live.db below the
// state directory (a tmpfs in production, so it is never synced), drawers that
// outlive a boot in durable.db below the root directory (always synced), and
// every event is copied into events.log there, which tells after a reboot what
// had been running.
//
// It must not know what the records mean: the engine's rules are the engine's.
// Start at Store in this file, then tx.go; log.go is the event log's file.
package state

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Schema is the version of the files that this package writes.
const Schema = 1

// DefaultEventLimit is how many events stay when Options do not say.
const DefaultEventLimit = 100_000

// Options says where a store lives.
type Options struct {
	// State is the directory of what a boot may lose, Root of what it may not.
	// Both are made if need be.
	State, Root string
	// EventLimit is how many events stay readable; 0 is DefaultEventLimit.
	EventLimit int
	// LogBytes starts a new events.log when it has grown so far; 0 is 8 MiB.
	LogBytes int64
	// BootID names this boot of the node. Live records of another boot are
	// thrown away. "" asks the kernel.
	BootID string
	// Logger may be nil.
	Logger *slog.Logger
}

// Store is one core.Store.
type Store struct {
	// write elects the one goroutine that commits; it comes before mu.
	write sync.Mutex

	queueMu sync.Mutex
	queue   []*request

	mu         sync.RWMutex
	sandboxes  kind[core.Sandbox]
	containers kind[core.Container]
	events     eventRing
	changed    chan struct{} // closed and replaced by every commit with events

	scopeMu sync.Mutex
	scopes  map[scopeName]*drawer

	files *files // nil in memory
}

var _ core.Store = (*Store)(nil)

// NewMemory returns a store that ends with the process. eventLimit 0 is
// DefaultEventLimit.
func NewMemory(eventLimit int) *Store {
	if eventLimit == 0 {
		eventLimit = DefaultEventLimit
	}
	return &Store{
		sandboxes:  newKind("sandbox", (*core.Sandbox).Base, nil),
		containers: newKind("container", (*core.Container).Base, func(c *core.Container) core.ID { return c.Sandbox }),
		events:     eventRing{limit: eventLimit},
		changed:    make(chan struct{}),
		scopes:     map[scopeName]*drawer{},
	}
}

// Open opens the store in o's directories, or makes it. Files of a newer
// schema are FailedPrecondition and stay as they are; a store that another
// process holds is Unavailable.
func Open(o Options) (*Store, error) {
	if o.State == "" || o.Root == "" {
		return nil, fmt.Errorf("open store: state and root directory: %w", errdefs.ErrInvalidArgument)
	}
	if o.EventLimit == 0 {
		o.EventLimit = DefaultEventLimit
	}
	if o.LogBytes == 0 {
		o.LogBytes = 8 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, dir := range []string{o.State, o.Root} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	s := NewMemory(o.EventLimit)
	f, err := openFiles(o)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	s.files = f
	if err := f.load(s); err != nil {
		return nil, fmt.Errorf("open store: %w", errors.Join(err, f.close()))
	}
	return s, nil
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
	if err == nil && len(all.events) > 0 {
		s.events.trim()
		close(s.changed)
		s.changed = make(chan struct{})
	}
}

func (s *Store) apply(r *request, ch *changes) (err error) {
	defer func() { r.panic = recover() }()
	return r.fn(&tx{s: s, ch: ch})
}

func (s *Store) persist(ch *changes) error {
	if s.files == nil || ch.empty() {
		return nil
	}
	return s.files.commit(ch, s.events.willTrimTo())
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

// Remnants are what the event log of an earlier boot says was alive.
func (s *Store) Remnants() []core.Remnant {
	if s.files == nil {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.files.remnants.list()
}

// Close syncs the event log and closes the files. The store must not be used
// after it.
func (s *Store) Close() error {
	s.write.Lock()
	defer s.write.Unlock()
	if s.files == nil {
		return nil
	}
	return s.files.close()
}

// bootID asks the kernel which boot this is.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(b), err
}

func inDir(dir, name string) string { return filepath.Join(dir, name) }

// syncEvery is how often the event log is synced at most.
const syncEvery = time.Second

package storetest

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/store"
)

// page is how many records are listed at once.
const page = 100

// Memory is a database in memory. The next Open finds its content.
type Memory struct {
	mu sync.Mutex // guards records, history, dropped, changed and open
	// records are the records by key.
	records map[string]store.Record
	// history are the transactions by their revision, but for the first ones.
	history [][]store.Change
	// dropped is the revision of the last transaction that is not in history.
	dropped int64
	changed chan struct{} // closed with the next transaction
	open    bool
}

// revisions is how many transactions are remembered.
const revisions = 10_000

// NewMemory is an empty one.
func NewMemory() *Memory {
	return &Memory{records: map[string]store.Record{}, dropped: 1, changed: make(chan struct{})}
}

// Open is a store.Opener. FailedPrecondition when it is open already.
func (m *Memory) Open(context.Context, *slog.Logger) (store.DB, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.open {
		return nil, fmt.Errorf("the store is open in another hub: %w", errdefs.ErrFailedPrecondition)
	}
	m.open = true
	return &opened{Memory: m, ended: make(chan struct{})}, nil
}

// Has reports whether any value that is or was stored has a text in it.
func (m *Memory) Has(text string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, changes := range m.history {
		for _, c := range changes {
			if strings.Contains(string(c.Value), text) || strings.Contains(c.Key, text) {
				return true
			}
		}
	}
	return false
}

// rev is the revision of the last transaction.
// Preconditions: m.mu is held.
func (m *Memory) rev() int64 { return m.dropped + int64(len(m.history)) }

// opened is one that is open.
type opened struct {
	*Memory
	once  sync.Once
	ended chan struct{}
}

// Close implements store.DB.
func (o *opened) Close() error {
	o.once.Do(func() {
		close(o.ended)
		o.mu.Lock()
		defer o.mu.Unlock()
		o.open = false
	})
	return nil
}

// check refuses calls after Close.
func (o *opened) check(ctx context.Context) error {
	select {
	case <-o.ended:
		return fmt.Errorf("the database is closed: %w", errdefs.ErrUnavailable)
	default:
		return context.Cause(ctx)
	}
}

// Alone implements store.DB.
func (*opened) Alone() bool { return true }

// Run implements store.DB.
func (*opened) Run(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// Get implements store.DB.
func (o *opened) Get(ctx context.Context, key string) (store.Record, error) {
	if err := o.check(ctx); err != nil {
		return store.Record{}, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	r, ok := o.records[key]
	if !ok {
		return store.Record{}, fmt.Errorf("there is no record %s: %w", key, errdefs.ErrNotFound)
	}
	return copied(r), nil
}

// copied returns a record with a copy of the value, which the caller may change.
func copied(r store.Record) store.Record {
	r.Value = slices.Clone(r.Value)
	return r
}

// Pages implements store.DB.
func (o *opened) Pages(ctx context.Context, under string, fn func(rev int64, page []store.Record) error) error {
	if err := o.check(ctx); err != nil {
		return err
	}
	o.mu.Lock()
	var list []store.Record
	for key, r := range o.records {
		if strings.HasPrefix(key, under) {
			list = append(list, copied(r))
		}
	}
	rev := o.rev()
	o.mu.Unlock()
	slices.SortFunc(list, func(a, b store.Record) int { return strings.Compare(a.Key, b.Key) })
	for {
		n := min(page, len(list))
		if err := fn(rev, list[:n]); err != nil {
			return err
		}
		if list = list[n:]; len(list) == 0 {
			return nil
		}
	}
}

// Commit implements store.DB.
func (o *opened) Commit(ctx context.Context, writes []store.Write) (int64, error) {
	if err := o.check(ctx); err != nil {
		return 0, err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	seen := map[string]bool{}
	for _, w := range writes {
		if !w.Only && !w.Delete && seen[w.Key] {
			return 0, fmt.Errorf("record %s is written twice: %w", w.Key, errdefs.ErrInvalidArgument)
		}
		seen[w.Key] = seen[w.Key] || !w.Only
	}
	for _, w := range writes {
		r, ok := o.records[w.Key]
		holds := w.If == store.Any || w.If == store.Present && ok || w.If == store.Absent && !ok || ok && w.If == r.Rev
		if !holds {
			return 0, fmt.Errorf("write record %s: it was changed meanwhile: %w", w.Key, errdefs.ErrAborted)
		}
	}
	rev := o.rev() + 1
	var changes []store.Change
	for _, w := range writes {
		r := store.Record{Key: w.Key, Rev: rev}
		switch _, ok := o.records[w.Key]; {
		case w.Only || w.Delete && !ok:
		case w.Delete:
			delete(o.records, w.Key)
			changes = append(changes, store.Change{Record: r, Deleted: true})
		default:
			r.Value = slices.Clone(w.Value)
			o.records[w.Key] = r
			changes = append(changes, store.Change{Record: r})
		}
	}
	if len(changes) == 0 {
		return 0, nil
	}
	if o.history = append(o.history, changes); len(o.history) > revisions {
		o.history, o.dropped = o.history[1:], o.dropped+1
	}
	close(o.changed)
	o.changed = make(chan struct{})
	return rev, nil
}

// Watch implements store.DB.
func (o *opened) Watch(ctx context.Context, under string, after int64, fn func(rev int64, changes []store.Change) error) error {
	for {
		if err := o.check(ctx); err != nil {
			return err
		}
		o.mu.Lock()
		if after < o.dropped {
			o.mu.Unlock()
			return fmt.Errorf("changes after revision %d are not known any more: %w", after, errdefs.ErrOutOfRange)
		}
		next, changed := o.history[min(after-o.dropped, int64(len(o.history))):], o.changed
		o.mu.Unlock()
		for _, transaction := range next {
			if err := o.check(ctx); err != nil {
				return err
			}
			after++
			var changes []store.Change
			for _, c := range transaction {
				if strings.HasPrefix(c.Key, under) {
					changes = append(changes, store.Change{Record: copied(c.Record), Deleted: c.Deleted})
				}
			}
			if len(changes) == 0 {
				continue
			}
			if err := fn(after, changes); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-o.ended:
			return fmt.Errorf("the database is closed: %w", errdefs.ErrUnavailable)
		}
	}
}

// Lend implements store.DB.
func (o *opened) Lend(ctx context.Context, key string, value []byte, _ time.Duration) (*store.Loan, error) {
	if _, err := o.Commit(ctx, []store.Write{{Key: key, Value: value}}); err != nil {
		return nil, err
	}
	return &store.Loan{Lost: make(chan struct{}), Return: func(ctx context.Context) error {
		_, err := o.Commit(ctx, []store.Write{{Key: key, Delete: true}})
		return err
	}}, nil
}

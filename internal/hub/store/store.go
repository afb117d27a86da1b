// Package store keeps the hub's records: a flat space of keys, changed by transactions with
// conditions, and watched. Records that are secret are sealed with AES-GCM before the database
// sees them.
//
// It does not know the meaning of the records, nor the database: etcd/ implements DB. Start at
// Open, Store.Commit and Store.Watch.
package store

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"
)

// MaxWrites is how many writes one transaction may have, and how many conditions: etcd's limit.
const MaxWrites = 128

// MaxValue is the size of the largest record, in bytes.
const MaxValue = 1 << 20

// DB is a database of records with opaque values. Its errors have the classes of the store's.
type DB interface {
	// Alone reports whether no other hub can have it.
	Alone() bool
	// Get reads one record. NotFound when there is none.
	Get(ctx context.Context, key string) (Record, error)
	// Pages calls fn with all records with a prefix, in the order of their keys, some at a time, of one
	// revision; once with none if there are none.
	Pages(ctx context.Context, under string, fn func(rev int64, page []Record) error) error
	// Commit is Store.Commit, of values as they are stored.
	Commit(ctx context.Context, writes []Write) (rev int64, err error)
	// Watch is Store.Watch, of values as they are stored.
	Watch(ctx context.Context, under string, after int64, fn func(rev int64, changes []Change) error) error
	// Lend is Store.Lend, of a value as it is stored.
	Lend(ctx context.Context, key string, value []byte, ttl time.Duration) (*Loan, error)
	// Run looks after it until ctx ends.
	Run(ctx context.Context) error
	// Close ends it; what was committed is on the disk.
	Close() error
}

// Opener opens a database, which logs to log.
type Opener func(ctx context.Context, log *slog.Logger) (DB, error)

// Options are the parameters of Open.
type Options struct {
	// Open opens its database.
	Open Opener
	// Wrapping unseals the records that are secret.
	Wrapping
	// Observe, if not nil, is called with the duration of each transaction.
	Observe func(took time.Duration)
	Log     *slog.Logger
}

// Store is an open store.
type Store struct {
	db      DB
	sealer  sealer
	key     []byte // the sealing key
	observe func(took time.Duration)
}

// Record is one record.
type Record struct {
	Key   string
	Value []byte
	Rev   int64 // of the transaction that wrote it last
}

// The conditions of a write that are no revision.
const (
	Any     = 0  // no condition
	Absent  = -1 // there is no such record
	Present = -2 // there is one
)

// Write changes or deletes one record.
type Write struct {
	Key    string
	Value  []byte
	Delete bool
	// Secret seals the value.
	Secret bool
	// If is the revision that the record must have, Any, Absent or Present.
	If int64
	// Only has nothing written: the condition alone counts.
	Only bool
	// Err is why there is no value. A transaction with such a write is refused as a whole.
	Err error
}

// Change is a transaction's change of one record.
type Change struct {
	Record
	Deleted bool // Value is nil then
}

// Loan is a record that exists as long as its hub, and a moment longer.
type Loan struct {
	// Lost is closed when the record is gone, or may be.
	Lost <-chan struct{}
	// Return gives it back: the record is gone at once, if the database answers.
	Return func(ctx context.Context) error
}

// Open opens a database and unseals it. PermissionDenied when the passphrase is wrong.
func Open(ctx context.Context, o Options) (*Store, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	db, err := o.Open(ctx, o.Log)
	if err != nil {
		return nil, err
	}
	s := &Store{db: db, observe: o.Observe}
	if err := s.unlock(ctx, o.Wrapping); err != nil {
		_ = s.Close()
		return nil, err
	}
	return s, nil
}

// Close ends it; what was committed is on the disk.
func (s *Store) Close() error { return s.db.Close() }

// Alone reports whether no other hub can have the store.
func (s *Store) Alone() bool { return s.db.Alone() }

// Run looks after the database until ctx ends.
func (s *Store) Run(ctx context.Context) error { return s.db.Run(ctx) }

// Get reads one record. NotFound when there is none.
func (s *Store) Get(ctx context.Context, key string) (r Record, err error) {
	if r, err = s.db.Get(ctx, key); err != nil {
		return Record{}, err
	}
	r.Value, err = s.sealer.open(key, r.Value)
	return r, err
}

// List reads all records with a prefix, in the order of their keys, at the revision that it
// returns.
func (s *Store) List(ctx context.Context, under string) (records []Record, rev int64, err error) {
	err = s.db.Pages(ctx, under, func(at int64, page []Record) error {
		rev = at
		for _, r := range page {
			if r.Key == sealKey {
				continue
			}
			var err error
			if r.Value, err = s.sealer.open(r.Key, r.Value); err != nil {
				return err
			}
			records = append(records, r)
		}
		return nil
	})
	if err != nil {
		return nil, 0, err
	}
	return records, rev, nil
}

// Commit does all of the writes or none, and returns their revision once they are on the
// disk. Aborted when a condition does not hold, InvalidArgument when there are too many
// writes or a value is too large, Unavailable when the database does not answer.
func (s *Store) Commit(ctx context.Context, writes ...Write) (rev int64, err error) {
	if begun := time.Now(); s.observe != nil {
		defer func() { s.observe(time.Since(begun)) }()
	}
	stored := make([]Write, len(writes))
	changes, conditions := 0, 0
	for i, w := range writes {
		if !w.Only {
			changes++
		}
		if w.If != Any {
			conditions++
		}
		switch {
		case w.Err != nil:
			return 0, fmt.Errorf("write record %s: %w", w.Key, w.Err)
		case len(w.Value) > MaxValue:
			return 0, fmt.Errorf("record %s has %d bytes, at most %d are stored: %w", w.Key, len(w.Value), MaxValue, errdefs.ErrInvalidArgument)
		case w.Secret:
			w.Value = s.sealer.seal(w.Key, w.Value)
		default:
			w.Value = open(w.Value)
		}
		stored[i] = w
	}
	if n := max(changes, conditions); n > MaxWrites {
		return 0, fmt.Errorf("a transaction of %d writes; at most %d: %w", n, MaxWrites, errdefs.ErrInvalidArgument)
	}
	return s.db.Commit(ctx, stored)
}

// Watch calls fn with the changes of each transaction after a revision, in their order, until ctx ends, fn
// returns an error, or the database ends the watch. OutOfRange if changes after the revision were
// compacted: list again then; Unavailable if the database does not answer. It always returns an error.
func (s *Store) Watch(ctx context.Context, under string, after int64, fn func(rev int64, changes []Change) error) error {
	return s.db.Watch(ctx, under, after, func(rev int64, changes []Change) error {
		opened := changes[:0]
		for _, c := range changes {
			if c.Key == sealKey {
				continue
			}
			if !c.Deleted {
				var err error
				if c.Value, err = s.sealer.open(c.Key, c.Value); err != nil {
					return err
				}
			}
			opened = append(opened, c)
		}
		if len(opened) == 0 {
			return nil
		}
		return fn(rev, opened)
	})
}

// Lend writes a record that expires when this hub has not reached the database for a time. In a store of
// one hub it stays until it is returned.
func (s *Store) Lend(ctx context.Context, key string, value []byte, ttl time.Duration) (*Loan, error) {
	return s.db.Lend(ctx, key, open(value), ttl)
}

// Package store keeps the hub's records in etcd, which runs inside of the hub, or is the
// user's and serves several hubs: a flat space of keys, changed by transactions with conditions,
// and watched. Records that are secret are sealed with AES-GCM before etcd sees them.
//
// It does not know what the records mean. Start at Open, Store.Commit and Store.Watch.
package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
)

// DefaultPrefix begins each of the hub's keys.
const DefaultPrefix = "/longshore-hub/"

// MaxWrites is how many writes one transaction may have, and how many conditions: etcd's limit.
const MaxWrites = 128

// MaxValue is the size of the largest record, in bytes.
const MaxValue = 1 << 20

// page is how many records are listed at once.
const page = 1000

// Options are what a store is opened with.
type Options struct {
	// Dir is the directory of the database and of its sockets, which only its owner may enter.
	Dir string
	// Quota is how large the database in Dir may be, in bytes; 0 is DefaultQuota.
	Quota int64
	// Remote is the user's etcd, in place of the one in Dir.
	Remote *Remote
	// Passphrase unseals the records that are secret.
	Passphrase []byte
	// Iterations make guessing the passphrase slow; 0 is the default.
	Iterations int
	// Command is a program in place of a passphrase: see Wrapping.
	Command string
	// NoSync leaves out syncing to the disk: for tests.
	NoSync bool
	// Observe, if not nil, is told how long each transaction took.
	Observe func(took time.Duration)
	Log     *slog.Logger
}

// Store is an open store.
type Store struct {
	client *clientv3.Client
	prefix string      // begins each key, and ends in a slash
	etcd   *embed.Etcd // nil when it is the user's
	lock   *os.File    // of the directory
	ending *atomic.Bool
	sealer sealer
	log    *slog.Logger
	quota  int64
	full   chan struct{} // the database has taken no write
	key    []byte        // by which it seals
	// observe is Options.Observe.
	observe func(took time.Duration)
	// closed ends the store once, whoever closes it how often.
	closed func() error
	last   atomic.Int64 // the revision of one of its last writes
}

// Record is one record.
type Record struct {
	Key   string
	Value []byte
	Rev   int64 // of the transaction that wrote it last
}

// The conditions of a write that are no revision.
const (
	Any     = 0  // whatever there is
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

// Change is what a transaction did to one record.
type Change struct {
	Record
	Deleted bool // Value is nil then
}

// Close ends it; what was committed is on the disk.
func (s *Store) Close() error { return s.closed() }

func (s *Store) close() error {
	s.ending.Store(true)
	var err error
	if s.client != nil {
		err = s.client.Close()
	}
	if s.etcd == nil {
		return err
	}
	s.etcd.Close()
	if errors.Is(err, context.Canceled) { // as the client of an etcd in the same process always says
		err = nil
	}
	return errors.Join(err, s.lock.Close())
}

// Alone reports whether no other hub can have the store.
func (s *Store) Alone() bool { return s.etcd != nil }

// Get reads one record. NotFound when there is none.
func (s *Store) Get(ctx context.Context, key string) (Record, error) {
	ctx, done := s.bounded(ctx)
	defer done()
	resp, err := s.client.Get(ctx, s.prefix+key)
	if err != nil {
		return Record{}, fmt.Errorf("read record %s: %w", key, answer(ctx, err))
	}
	if len(resp.Kvs) == 0 {
		return Record{}, fmt.Errorf("there is no record %s: %w", key, errdefs.ErrNotFound)
	}
	value, err := s.sealer.open(key, resp.Kvs[0].Value)
	return Record{Key: key, Value: value, Rev: resp.Kvs[0].ModRevision}, err
}

// List reads all records whose keys begin with a prefix, in the order of their keys, as they
// were at the revision that it returns.
func (s *Store) List(ctx context.Context, under string) (records []Record, rev int64, err error) {
	from, end := s.prefix+under, clientv3.GetPrefixRangeEnd(s.prefix+under)
	ctx, done := s.bounded(ctx)
	defer done()
	for {
		resp, err := s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(rev))
		if err != nil {
			return nil, 0, fmt.Errorf("list records %s: %w", under, answer(ctx, err))
		}
		if rev == 0 {
			rev = resp.Header.GetRevision()
		}
		for _, kv := range resp.Kvs {
			key := strings.TrimPrefix(string(kv.Key), s.prefix)
			if key == sealKey {
				continue
			}
			value, err := s.sealer.open(key, kv.Value)
			if err != nil {
				return nil, 0, err
			}
			records = append(records, Record{Key: key, Value: value, Rev: kv.ModRevision})
		}
		if !resp.More {
			return records, rev, nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// Commit does all of the writes or none, and returns their revision once they are on the
// disk. Aborted when a condition does not hold, InvalidArgument when there are too many
// writes or a value is too large, Unavailable when etcd does not answer.
func (s *Store) Commit(ctx context.Context, writes ...Write) (rev int64, err error) {
	values := make([][]byte, len(writes))
	for i, w := range writes {
		switch {
		case w.Err != nil:
			return 0, fmt.Errorf("write record %s: %w", w.Key, w.Err)
		case len(w.Value) > MaxValue:
			return 0, fmt.Errorf("record %s has %d bytes, at most %d are stored: %w", w.Key, len(w.Value), MaxValue, errdefs.ErrInvalidArgument)
		case w.Secret:
			values[i] = s.sealer.seal(w.Key, w.Value)
		default:
			values[i] = append([]byte{plain}, w.Value...)
		}
	}
	return s.commit(ctx, writes, values)
}

func (s *Store) commit(ctx context.Context, writes []Write, values [][]byte) (int64, error) {
	if begun := time.Now(); s.observe != nil {
		defer func() { s.observe(time.Since(begun)) }()
	}
	var conditions []clientv3.Cmp
	var ops []clientv3.Op
	for i, w := range writes {
		key := s.prefix + w.Key
		switch w.If {
		case Any:
		case Present:
			conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(key), ">", 0))
		default:
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", max(w.If, 0)))
		}
		switch {
		case w.Only:
		case w.Delete:
			ops = append(ops, clientv3.OpDelete(key))
		default:
			ops = append(ops, clientv3.OpPut(key, string(values[i])))
		}
	}
	if n := max(len(ops), len(conditions)); n > MaxWrites {
		return 0, fmt.Errorf("a transaction of %d writes; at most %d: %w", n, MaxWrites, errdefs.ErrInvalidArgument)
	}
	ctx, done := s.bounded(ctx)
	defer done()
	before := s.last.Load()
	resp, err := s.client.Txn(ctx).If(conditions...).Then(ops...).Commit()
	if err != nil {
		err = fmt.Errorf("write %s: %w", keys(writes), answer(ctx, err))
		if errdefs.IsResourceExhausted(err) {
			select {
			case s.full <- struct{}{}:
			default:
			}
			// etcd stores the write by which it becomes full, and refuses it in the same answer.
			if rev, ok := s.stored(ctx, before, writes, values); ok {
				return rev, nil
			}
		}
		return 0, err
	}
	if !resp.Succeeded {
		return 0, fmt.Errorf("write %s: it was changed meanwhile: %w", keys(writes), errdefs.ErrAborted)
	}
	if !slices.ContainsFunc(resp.Responses, wrote) {
		return 0, nil // it has no revision of its own
	}
	rev := resp.Header.GetRevision()
	s.last.Store(rev)
	return rev, nil
}

// stored reports whether all records are as a transaction would have left them, changed after the
// revision before, and at which revision.
func (s *Store) stored(ctx context.Context, before int64, writes []Write, values [][]byte) (rev int64, ok bool) {
	var gets []clientv3.Op
	var wants [][]byte // nil is none
	for i, w := range writes {
		switch {
		case w.Only:
			continue
		case w.Delete:
			wants = append(wants, nil)
		default:
			wants = append(wants, values[i])
		}
		gets = append(gets, clientv3.OpGet(s.prefix+w.Key))
	}
	resp, err := s.client.Txn(ctx).Then(gets...).Commit()
	if err != nil {
		return 0, false
	}
	for i, r := range resp.Responses {
		found := r.GetResponseRange().GetKvs()
		if len(found) == 0 != (wants[i] == nil) || len(found) > 0 && !bytes.Equal(found[0].Value, wants[i]) {
			return 0, false
		}
		for _, kv := range found {
			rev = max(rev, kv.ModRevision)
		}
	}
	return rev, rev > before
}

// wrote reports whether an operation of a transaction changed anything.
func wrote(r *etcdserverpb.ResponseOp) bool {
	return r.GetResponsePut() != nil || r.GetResponseDeleteRange().GetDeleted() > 0
}

// keys names what a transaction writes.
func keys(writes []Write) string {
	if len(writes) == 0 {
		return "nothing"
	}
	if len(writes) > 1 {
		return fmt.Sprintf("records %s and %d more", writes[0].Key, len(writes)-1)
	}
	return "record " + writes[0].Key
}

// Watch calls fn with the changes of each transaction after a revision, in their order, until
// ctx ends, fn returns an error, or etcd ends the watch. OutOfRange when changes after the
// revision are not known any more: who watches lists again; Unavailable when etcd does not answer.
// It always returns an error.
func (s *Store) Watch(ctx context.Context, under string, after int64, fn func(rev int64, changes []Change) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	asked := ctx
	if !s.Alone() {
		asked = clientv3.WithRequireLeader(ctx) // a member that has lost the others ends it
	}
	for resp := range s.client.Watch(asked, s.prefix+under, clientv3.WithPrefix(), clientv3.WithRev(after+1)) {
		if err := resp.Err(); err != nil {
			return fmt.Errorf("watch records %s: %w", under, classed(err))
		}
		var changes []Change
		for _, ev := range resp.Events {
			c := Change{Record: Record{Key: strings.TrimPrefix(string(ev.Kv.Key), s.prefix), Rev: ev.Kv.ModRevision}, Deleted: ev.Type == clientv3.EventTypeDelete}
			if c.Key == sealKey {
				continue
			}
			if !c.Deleted {
				var err error
				if c.Value, err = s.sealer.open(c.Key, ev.Kv.Value); err != nil {
					return err
				}
			}
			changes = append(changes, c)
		}
		for len(changes) > 0 { // one response may have several transactions
			rev := changes[0].Rev
			n := slices.IndexFunc(changes, func(c Change) bool { return c.Rev != rev })
			if n < 0 {
				n = len(changes)
			}
			if err := fn(rev, changes[:n]); err != nil {
				return err
			}
			changes = changes[n:]
		}
	}
	if err := context.Cause(ctx); err != nil {
		return err
	}
	return fmt.Errorf("watch records %s: etcd has ended it: %w", under, errdefs.ErrUnavailable)
}

// classed gives an error of etcd its class.
func classed(err error) error {
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, rpctypes.ErrCompacted):
		return fmt.Errorf("%w: %w", errdefs.ErrOutOfRange, err)
	case errors.Is(err, rpctypes.ErrNoSpace):
		return fmt.Errorf("the database is full: it takes no writes until it is given more space (see its quota): %w: %w", errdefs.ErrResourceExhausted, err)
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps):
		return fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("%w: %w", errdefs.ErrPermissionDenied, err)
	default:
		return fmt.Errorf("%w: %w", errdefs.ErrUnavailable, err)
	}
}

// Package etcd is the store's database: an etcd that runs inside of the hub, or the user's, which
// serves several hubs. No other package links etcd's libraries, but for those that make the program.
//
// Start at Options.Open, DB.Commit and DB.Watch.
package etcd

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

	"github.com/containerd/errdefs"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/longshore/longshore/internal/hub/store"
)

// DefaultPrefix begins each of the hub's keys.
const DefaultPrefix = "/longshore-hub/"

// page is how many records are listed at once.
const page = 1000

// Options are the parameters of Open.
type Options struct {
	// Dir is the directory of the database and of its sockets, which only its owner may enter.
	Dir string
	// Quota is how large the database in Dir may be, in bytes; 0 is DefaultQuota.
	Quota int64
	// Remote is the user's etcd, in place of the one in Dir.
	Remote *Remote
	// NoSync leaves out syncing to the disk: for tests.
	NoSync bool
}

// DB is an open database. It implements store.DB.
type DB struct {
	client *clientv3.Client
	prefix string      // begins each key, and ends in a slash
	etcd   *embed.Etcd // nil when it is the user's
	lock   *os.File    // of the directory
	ending *atomic.Bool
	log    *slog.Logger
	quota  int64
	full   chan struct{} // the database has taken no write
	// closed ends it once, for any number of calls of Close.
	closed func() error
	last   atomic.Int64 // the revision of one of its last writes
}

var _ store.DB = (*DB)(nil)

// Close implements store.DB.
func (d *DB) Close() error { return d.closed() }

func (d *DB) close() error {
	d.ending.Store(true)
	var err error
	if d.client != nil {
		err = d.client.Close()
	}
	if d.etcd == nil {
		return err
	}
	d.etcd.Close()
	if errors.Is(err, context.Canceled) { // as the client of an etcd in the same process always says
		err = nil
	}
	return errors.Join(err, d.lock.Close())
}

// Alone implements store.DB.
func (d *DB) Alone() bool { return d.etcd != nil }

// Get implements store.DB.
func (d *DB) Get(ctx context.Context, key string) (store.Record, error) {
	ctx, done := d.bounded(ctx)
	defer done()
	resp, err := d.client.Get(ctx, d.prefix+key)
	if err != nil {
		return store.Record{}, fmt.Errorf("read record %s: %w", key, answer(ctx, err))
	}
	if len(resp.Kvs) == 0 {
		return store.Record{}, fmt.Errorf("there is no record %s: %w", key, errdefs.ErrNotFound)
	}
	return d.record(resp.Kvs[0]), nil
}

func (d *DB) record(kv *mvccpb.KeyValue) store.Record {
	return store.Record{Key: strings.TrimPrefix(string(kv.Key), d.prefix), Value: kv.Value, Rev: kv.ModRevision}
}

// Pages implements store.DB.
func (d *DB) Pages(ctx context.Context, under string, fn func(rev int64, page []store.Record) error) error {
	from, end, rev := d.prefix+under, clientv3.GetPrefixRangeEnd(d.prefix+under), int64(0)
	for {
		asked, done := d.bounded(ctx)
		resp, err := d.client.Get(asked, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(rev))
		if err != nil {
			err = fmt.Errorf("list records %s: %w", under, answer(asked, err))
			done()
			return err
		}
		done()
		if rev == 0 {
			rev = resp.Header.GetRevision()
		}
		records := make([]store.Record, len(resp.Kvs))
		for i, kv := range resp.Kvs {
			records[i] = d.record(kv)
		}
		if err := fn(rev, records); err != nil {
			return err
		}
		if !resp.More {
			return nil
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// Commit implements store.DB.
func (d *DB) Commit(ctx context.Context, writes []store.Write) (int64, error) {
	var conditions []clientv3.Cmp
	var ops []clientv3.Op
	for _, w := range writes {
		key := d.prefix + w.Key
		switch w.If {
		case store.Any:
		case store.Present:
			conditions = append(conditions, clientv3.Compare(clientv3.CreateRevision(key), ">", 0))
		default:
			conditions = append(conditions, clientv3.Compare(clientv3.ModRevision(key), "=", max(w.If, 0)))
		}
		switch {
		case w.Only:
		case w.Delete:
			ops = append(ops, clientv3.OpDelete(key))
		default:
			ops = append(ops, clientv3.OpPut(key, string(w.Value)))
		}
	}
	ctx, done := d.bounded(ctx)
	defer done()
	before := d.last.Load()
	resp, err := d.client.Txn(ctx).If(conditions...).Then(ops...).Commit()
	if err != nil {
		err = fmt.Errorf("write %s: %w", keys(writes), answer(ctx, err))
		if errdefs.IsResourceExhausted(err) {
			select {
			case d.full <- struct{}{}:
			default:
			}
			// etcd stores the write that makes it full, and refuses it in the same answer.
			if rev, ok := d.stored(ctx, before, writes); ok {
				d.last.Store(rev) // else the next write of the same value, which is refused, looks stored too
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
	d.last.Store(rev)
	return rev, nil
}

// stored reports whether all records are as a transaction would have left them, changed after the
// revision before, and at which revision.
func (d *DB) stored(ctx context.Context, before int64, writes []store.Write) (rev int64, ok bool) {
	var gets []clientv3.Op
	var wants [][]byte // nil is none
	for _, w := range writes {
		switch {
		case w.Only:
			continue
		case w.Delete:
			wants = append(wants, nil)
		default:
			wants = append(wants, w.Value)
		}
		gets = append(gets, clientv3.OpGet(d.prefix+w.Key))
	}
	resp, err := d.client.Txn(ctx).Then(gets...).Commit()
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

// keys names the keys of a transaction.
func keys(writes []store.Write) string {
	if len(writes) == 0 {
		return "nothing"
	}
	if len(writes) > 1 {
		return fmt.Sprintf("records %s and %d more", writes[0].Key, len(writes)-1)
	}
	return "record " + writes[0].Key
}

// Watch implements store.DB.
func (d *DB) Watch(ctx context.Context, under string, after int64, fn func(rev int64, changes []store.Change) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	asked := ctx
	if !d.Alone() {
		asked = clientv3.WithRequireLeader(ctx) // a member that has lost the others ends it
	}
	for resp := range d.client.Watch(asked, d.prefix+under, clientv3.WithPrefix(), clientv3.WithRev(after+1)) {
		if err := resp.Err(); err != nil {
			return fmt.Errorf("watch records %s: %w", under, classed(err))
		}
		changes := make([]store.Change, len(resp.Events))
		for i, ev := range resp.Events {
			changes[i] = store.Change{Record: d.record(ev.Kv), Deleted: ev.Type == clientv3.EventTypeDelete}
		}
		for len(changes) > 0 { // one response may have several transactions
			rev := changes[0].Rev
			n := slices.IndexFunc(changes, func(c store.Change) bool { return c.Rev != rev })
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
		return fmt.Errorf("the database is full and takes no writes: increase its quota or remove records: %w: %w", errdefs.ErrResourceExhausted, err)
	case errors.Is(err, rpctypes.ErrRequestTooLarge), errors.Is(err, rpctypes.ErrTooManyOps), errors.Is(err, rpctypes.ErrDuplicateKey):
		return fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
	case errors.Is(err, rpctypes.ErrPermissionDenied), errors.Is(err, rpctypes.ErrUserEmpty):
		return fmt.Errorf("%w: %w", errdefs.ErrPermissionDenied, err)
	default:
		return fmt.Errorf("%w: %w", errdefs.ErrUnavailable, err)
	}
}

// Package events keeps the log of what has happened to the fleet, and who has done it: records of
// the store, of which the oldest go. An event is written by the transaction that does what it
// tells, so that there is none without the other; its cursor is that transaction's revision.
//
// It does not know what the events mean. Start at By, Event.Write and Log.List.
package events

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/store"
)

// prefix begins the keys of events.
const prefix = "event/"

// Max is how many events are kept; a few more are, until the oldest go.
const Max = 10_000

// The size of the largest text of an event, in bytes.
const maxText = 1 << 10

// Event is something that has happened.
type Event struct {
	// Cursor is greater than those of all events before it; 0 before it was written.
	Cursor int64     `json:"cursor,omitempty"`
	Time   time.Time `json:"time"`
	// Kind is a word, such as join or asked.
	Kind string `json:"kind"`
	// Who did it: an operator, or a node.
	Who string `json:"who,omitempty"`
	// What happened, as a sentence.
	What string `json:"what"`
}

// Write is the write of an event, which belongs to a transaction.
func (e Event) Write() store.Write {
	if e.Time.IsZero() {
		e.Time = time.Now().UTC()
	}
	e.Who, e.What = cut(e.Who), cut(e.What)
	data, err := json.Marshal(e)
	return store.Write{Key: fmt.Sprintf("%s%016x-%08x", prefix, e.Time.UnixNano(), rand.Uint32()), Value: data, If: store.Absent, Err: err} //nolint:gosec // it only tells events of one moment apart
}

func cut(text string) string {
	if len(text) > maxText {
		text = text[:maxText] + " …"
	}
	return strings.ToValidUTF8(text, "")
}

type key struct{}

// By is a context of someone who does something: the transactions that are committed with it have an
// event that says so.
func By(ctx context.Context, e Event) context.Context { return context.WithValue(ctx, key{}, e) }

// With are the writes of a transaction, and that of its event if ctx has one.
func With(ctx context.Context, writes []store.Write) []store.Write {
	e, ok := ctx.Value(key{}).(Event)
	if !ok {
		return writes
	}
	return append(slices.Clip(writes), e.Write())
}

// Log reads events.
type Log struct{ Store *store.Store }

// List are the events after a cursor, in their order, and the cursor to go on from.
func (l Log) List(ctx context.Context, after int64) (list []Event, at int64, err error) {
	records, at, err := l.Store.List(ctx, prefix)
	if err != nil {
		return nil, 0, err
	}
	for _, r := range records {
		if r.Rev <= after {
			continue
		}
		e, err := parse(r)
		if err != nil {
			return nil, 0, err
		}
		list = append(list, e)
	}
	slices.SortStableFunc(list, func(a, b Event) int { return cmp.Compare(a.Cursor, b.Cursor) })
	return list, max(at, after), nil
}

func parse(r store.Record) (e Event, err error) {
	if err := json.Unmarshal(r.Value, &e); err != nil {
		return e, fmt.Errorf("event %s: %w: %w", r.Key, errdefs.ErrDataLoss, err)
	}
	e.Cursor = r.Rev
	return e, nil
}

// Follow calls fn with the events after a cursor, and with each that comes, until ctx ends or fn
// returns an error. It always returns an error.
func (l Log) Follow(ctx context.Context, after int64, fn func(e Event) error) error {
	for {
		list, at, err := l.List(ctx, after)
		if err != nil {
			return err
		}
		for _, e := range list {
			if err := fn(e); err != nil {
				return err
			}
		}
		after = at
		err = l.Store.Watch(ctx, prefix, at, func(rev int64, changes []store.Change) error {
			for _, c := range changes {
				if c.Deleted {
					continue
				}
				e, err := parse(c.Record)
				if err != nil {
					return err
				}
				if err := fn(e); err != nil {
					return err
				}
			}
			after = rev
			return nil
		})
		if !errdefs.IsOutOfRange(err) {
			return err
		}
	}
}

// few is how many events come until the oldest are looked for.
const few = 500

// errFew ends a watch.
var errFew = errors.New("there are a few more events")

// Trim deletes the oldest events, so that no more than some are kept, until ctx ends. One hub at a time does so.
func (l Log) Trim(ctx context.Context, most int, log *slog.Logger) error {
	for {
		rev, err := l.trim(ctx, most)
		if err == nil {
			n := 0
			err = l.Store.Watch(ctx, prefix, rev, func(_ int64, changes []store.Change) error {
				if n += len(changes); n >= min(few, most) {
					return errFew
				}
				return nil
			})
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if !errors.Is(err, errFew) && !errdefs.IsOutOfRange(err) {
			log.WarnContext(ctx, "could not remove old events; will try again", "error", err)
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
	}
}

func (l Log) trim(ctx context.Context, most int) (rev int64, err error) {
	records, rev, err := l.Store.List(ctx, prefix)
	if err != nil {
		return 0, err
	}
	slices.SortFunc(records, func(a, b store.Record) int { return cmp.Compare(a.Rev, b.Rev) })
	var writes []store.Write
	for _, r := range records[:max(0, len(records)-most)] {
		writes = append(writes, store.Write{Key: r.Key, Delete: true})
	}
	for group := range slices.Chunk(writes, store.MaxWrites) {
		if rev, err = l.Store.Commit(ctx, group...); err != nil {
			return 0, err
		}
	}
	return rev, nil
}

package engine

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/audit"
)

// eventBatch is how many events are read at once under the store's lock.
const eventBatch = 256

// Events yields the events after since that match f, then new ones as they happen, until ctx
// ends. OutOfRange means that some were trimmed: list the objects again. Filter.Labels is
// refused, because events carry no labels.
func (c *Client) Events(ctx context.Context, since uint64, f core.Filter) iter.Seq2[core.Event, error] {
	return func(yield func(core.Event, error) bool) {
		if len(f.Labels) > 0 {
			yield(core.Event{}, fmt.Errorf("events: they carry no labels: %w", errdefs.ErrInvalidArgument))
			return
		}
		selected, ok := c.view.Selects(f)
		if !ok {
			return
		}
		match := func(ev *core.Event) bool {
			return selected.Has(ev.Owner) &&
				(f.Sandbox == "" || ev.Sandbox == f.Sandbox) &&
				(f.Container == "" || ev.Container == f.Container) &&
				(len(f.Kinds) == 0 || slices.Contains(f.Kinds, ev.Kind))
		}
		for {
			batch, next, err := c.e.records.eventsSince(since, match)
			for _, ev := range batch {
				if ctx.Err() != nil || !yield(ev, nil) {
					return
				}
			}
			if err != nil {
				yield(core.Event{}, err)
				return
			}
			if next > since {
				since = next
				continue
			}
			if err := c.e.o.Store.Wait(ctx, since); err != nil {
				return
			}
		}
	}
}

// eventsSince reads one batch; next is the Seq to continue from.
func (r records) eventsSince(since uint64, match func(*core.Event) bool) (batch []core.Event, next uint64, err error) {
	next = since
	err = r.Store.View(func(tx core.Tx) error {
		n := 0
		for ev, err := range tx.Events(since) {
			if err != nil {
				return err
			}
			next = ev.Seq
			if match(&ev) {
				batch = append(batch, ev)
			}
			if n++; n == eventBatch {
				break
			}
		}
		return nil
	})
	return batch, next, err
}

// LastExit returns the newest event that tells how a container ended, also when the container's
// record is gone. name is its ID, at least four digits of the ID, or its key.
func (c *Client) LastExit(_ context.Context, name string) (last core.Event, err error) {
	match := func(ev *core.Event) bool {
		return ev.Kind == core.EventContainerExited && c.view.Sees(&core.Meta{Owner: ev.Owner}) &&
			(ev.Key == core.Key(name) || len(name) >= 4 && strings.HasPrefix(string(ev.Container), name))
	}
	err = c.e.o.Store.View(func(tx core.Tx) error {
		since, err := audit.Oldest(tx)
		if err != nil {
			return err
		}
		for ev, err := range tx.Events(since) {
			if err != nil {
				return err
			}
			if match(&ev) {
				last = ev
			}
		}
		return nil
	})
	if err == nil && last.Seq == 0 {
		err = fmt.Errorf("exit of container %s: %w", name, errdefs.ErrNotFound)
	}
	return last, err
}

// LastSeq returns the Seq of the newest event.
func (c *Client) LastSeq(context.Context) (seq uint64, err error) {
	err = c.e.o.Store.View(func(tx core.Tx) error { seq = tx.LastSeq(); return nil })
	return seq, err
}

// Tell appends an event about the node for its administrator, with c's owner.
func Tell(c *Client, note string) error {
	owner, err := c.view.Creates("tell")
	if err != nil {
		return err
	}
	return c.e.records.Tell(core.Event{Kind: core.EventAgent, Owner: owner, Note: note})
}

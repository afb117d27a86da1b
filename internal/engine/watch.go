package engine

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// EventLog is what a Watch follows: a Client, or a face's view of one.
type EventLog interface {
	// Events yields events as Client.Events does.
	Events(ctx context.Context, since uint64, f core.Filter) iter.Seq2[core.Event, error]
	// LastSeq is the Seq of the newest event.
	LastSeq(ctx context.Context) (uint64, error)
}

// Watch looks at what there is and follows what happens. It leaves nothing out
// between the two: it reads the log from where that stood before it looked. When
// events were trimmed before they were read, it looks anew.
type Watch struct {
	Kinds []core.EventKind
	// Since is the event after which to begin, without a look. nil looks first.
	Since *uint64
	// List looks at what there is; it may find what an event then tells again. nil
	// looks at nothing: trimmed events are lost.
	List func(ctx context.Context) error
	// Event is told what has happened.
	Event func(ctx context.Context, e core.Event) error
	// Failed is told of each error; the watch then begins anew after a while. nil
	// ends the watch at the first one, for who has somebody to tell.
	Failed func(err error)
}

// watchPause is how long a watch waits before it begins anew after an error.
const watchPause = time.Second

// Run follows log until ctx ends, and then returns nil; or, without Failed, until
// the first error.
func (w Watch) Run(ctx context.Context, log EventLog) error {
	since := w.Since
	for {
		trimmed, err := w.round(ctx, log, since)
		since = nil // from now on it looks first
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // who ended it knows why
		case trimmed:
			continue
		case w.Failed == nil:
			return err
		}
		w.Failed(err)
		pause := time.NewTimer(watchPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil
		case <-pause.C:
		}
	}
}

// round looks, unless it is told where to begin, and follows until something goes
// wrong, or until events were trimmed before they were read.
func (w Watch) round(ctx context.Context, log EventLog, since *uint64) (trimmed bool, err error) {
	if since == nil {
		last, err := log.LastSeq(ctx)
		if err == nil && w.List != nil {
			err = w.List(ctx)
		}
		if err != nil {
			return false, fmt.Errorf("watch events: %w", err)
		}
		since = &last
	}
	for e, err := range log.Events(ctx, *since, core.Filter{Kinds: w.Kinds}) {
		if err != nil {
			return errdefs.IsOutOfRange(err), fmt.Errorf("watch events: %w", err)
		}
		if err := w.Event(ctx, e); err != nil {
			return false, err
		}
	}
	return false, fmt.Errorf("watch events: the log has ended: %w", errdefs.ErrUnavailable)
}

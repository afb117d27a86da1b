package engine

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// EventLog is the event log for a Watch: a Client, or a face's wrapper of one.
type EventLog interface {
	// Events yields events as Client.Events does.
	Events(ctx context.Context, since uint64, f core.Filter) iter.Seq2[core.Event, error]
	// LastSeq returns the Seq of the newest event.
	LastSeq(ctx context.Context) (uint64, error)
}

// Watch lists objects and then follows events, and misses nothing between the two: it reads the
// log from where it was before the list. When events were trimmed before they were read, it lists
// again.
type Watch struct {
	Kinds []core.EventKind
	// Since is the event after which to begin, without a list. With nil it lists first.
	Since *uint64
	// List lists the objects. It may find what an event then reports again. If it is nil, nothing
	// is listed and trimmed events are lost.
	List func(ctx context.Context) error
	// Event is called with each event.
	Event func(ctx context.Context, e core.Event) error
	// Failed is called with each error, and the watch then begins again after watchPause. With
	// nil the first error ends the watch, for callers that can report it.
	Failed func(err error)
}

// watchPause is how long a watch waits after an error before it begins again.
const watchPause = time.Second

// Run follows log until ctx ends and then returns nil. Without Failed it returns the first error.
func (w Watch) Run(ctx context.Context, log EventLog) error {
	since := w.Since
	for {
		trimmed, err := w.round(ctx, log, since)
		since = nil // from now on it lists first
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the caller ended ctx
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

// round lists the objects, unless since says where to begin, and follows events until an error,
// or until events were trimmed before they were read.
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

// Ended returns a channel that is closed when a container has ended and all of its output is in
// its sinks, or when the container is gone. The function gives up; it must be called.
func Ended(ctx context.Context, c *Client, id core.ID) (<-chan struct{}, func()) {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		if _, err := c.Wait(ctx, core.Ref{Container: id}); err == nil || errdefs.IsNotFound(err) {
			close(done)
		}
	}()
	return done, stop
}

package store

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// errChanged ends a watch after a change, so that the records are read again.
var errChanged = fmt.Errorf("it has changed: %w", errdefs.ErrAborted)

// Follow calls fn with all records with a prefix, and again whenever one of them has changed, until
// ctx ends or fn returns an error. It is for prefixes of few records. It always returns an error.
func (s *Store) Follow(ctx context.Context, under string, fn func(records []Record) error) error {
	for {
		records, rev, err := s.List(ctx, under)
		if err == nil {
			if err := fn(records); err != nil {
				return err
			}
			err = s.Watch(ctx, under, rev, func(int64, []Change) error { return errChanged })
		}
		if errdefs.IsOutOfRange(err) || errdefs.IsAborted(err) {
			continue
		}
		if err := s.Later(ctx, err); err != nil {
			return err
		}
	}
}

// retryAfter is how long a hub leaves a database alone that did not answer.
const retryAfter = 200 * time.Millisecond

// Later waits a moment after an error of Watch that is no reason to end: the user's etcd does not answer, or is full.
// It returns the error when it is one, and why ctx has ended if it has.
func (s *Store) Later(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if s.Alone() || !errdefs.IsUnavailable(err) && !errdefs.IsResourceExhausted(err) {
		return err
	}
	timer := time.NewTimer(retryAfter)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

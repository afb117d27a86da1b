package store

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
)

// errChanged ends a watch of what is to be read again.
var errChanged = fmt.Errorf("it has changed: %w", errdefs.ErrAborted)

// Follow calls fn with all records whose keys begin with a prefix, and again whenever one of
// them has changed, until ctx ends or fn returns an error. It is for prefixes of few records. It
// always returns an error.
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

package store

import (
	"context"

	"github.com/containerd/errdefs"
)

// Follow calls fn with all records whose keys begin with a prefix, and again whenever one of
// them has changed, until ctx ends or fn returns an error. It is for prefixes of few records. It
// always returns an error.
func (s *Store) Follow(ctx context.Context, under string, fn func([]Record) error) error {
	for {
		rev, err := s.show(ctx, under, fn)
		if err != nil {
			return err
		}
		err = s.Watch(ctx, under, rev, func(at int64, _ []Change) error {
			if at <= rev { // it was in the last list
				return nil
			}
			rev, err = s.show(ctx, under, fn)
			return err
		})
		if !errdefs.IsOutOfRange(err) {
			return err
		}
	}
}

func (s *Store) show(ctx context.Context, under string, fn func([]Record) error) (rev int64, err error) {
	records, rev, err := s.List(ctx, under)
	if err != nil {
		return 0, err
	}
	return rev, fn(records)
}

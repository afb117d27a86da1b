package lease_test

import (
	"context"
	"errors"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/lease"
)

const owner core.Owner = "some"

func ports(gone int) lease.Ports {
	return lease.Ports{
		Image: func(_ context.Context, ref string) (core.Image, error) {
			if gone--; gone >= 0 {
				return core.Image{}, errdefs.ErrNotFound
			}
			return core.Image{ID: digest.Digest(ref)}, nil
		},
		Pull: func(_ context.Context, ref string, _ core.PullOptions) (core.Image, error) {
			return core.Image{ID: digest.Digest(ref)}, nil
		},
	}
}

// held returns which of a and b a prune by an owner would keep.
func held(t *testing.T, table *lease.Table, who core.Owner) (names string) {
	t.Helper()
	if _, err := table.Prune(who, func(holds func(digest.Digest) bool) (uint64, error) {
		for _, id := range []digest.Digest{"a", "b"} {
			if holds(id) {
				names += string(id)
			}
		}
		return 0, nil
	}); err != nil {
		t.Fatal(err)
	}
	return names
}

func TestALeaseHoldsWhatItReturned(t *testing.T) {
	var table lease.Table
	one, two := table.Open(owner, ports(0)), table.Open(owner, ports(0))
	for _, l := range []*lease.Lease{one, two} {
		if _, err := l.Image(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := two.Pull(t.Context(), "b", core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	if got := held(t, &table, owner); got != "ab" {
		t.Errorf("held: %q", got)
	}
	if got := held(t, &table, "other"); got != "" || table.Leased("other") {
		t.Errorf("held of another owner: %q", got)
	}
	two.Release()
	two.Release()
	if got := held(t, &table, owner); got != "a" || !table.Leased(owner) {
		t.Errorf("held after one release: %q", got)
	}
	one.Release()
	if got := held(t, &table, owner); got != "" || table.Leased(owner) {
		t.Errorf("held in the end: %q", got)
	}
	if _, err := one.Image(t.Context(), "a"); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a released lease gives %v", err)
	}
}

func TestNothingIsFoundWhileAPruneRuns(t *testing.T) {
	var table lease.Table
	l := table.Open(owner, ports(0))
	defer l.Release()
	found := make(chan error, 1)
	_, err := table.Prune(owner, func(holds func(digest.Digest) bool) (uint64, error) {
		go func() {
			_, err := l.Image(context.Background(), "a")
			found <- err
		}()
		if holds("a") {
			return 0, errors.New("held already")
		}
		select {
		case <-found:
			return 0, errors.New("found during the prune")
		default:
			return 1, nil
		}
	})
	if err != nil {
		t.Error(err)
	}
	if err := <-found; err != nil {
		t.Error(err)
	}
}

func TestAPullIsRepeatedWhenItsImageIsRemoved(t *testing.T) {
	for gone, want := range map[int]bool{0: true, 2: true, 3: false} {
		var table lease.Table
		l := table.Open(owner, ports(gone))
		_, err := l.Pull(t.Context(), "a", core.PullOptions{})
		if (err == nil) != want || err != nil && !errdefs.IsUnavailable(err) {
			t.Errorf("removed %d times: %v", gone, err)
		}
		l.Release()
	}
}

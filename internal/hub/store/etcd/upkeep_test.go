package etcd_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/etcd"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// TestADatabaseThatIsFull: the space of overwritten or deleted values is freed, and then writes are taken
// again. Values stay, are read, and may be deleted; more is refused with the remedy.
func TestADatabaseThatIsFull(t *testing.T) {
	t.Parallel()
	o := options(storetest.Dir(t))
	o.Quota = 1
	if _, err := o.Open(t.Context(), slog.New(slog.DiscardHandler)); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a quota of a byte: %v", err)
	}
	o.Quota = 24 << 20
	var db *etcd.DB
	s := storetest.Open(t, func(ctx context.Context, log *slog.Logger) (store.DB, error) {
		opened, err := o.Open(ctx, log)
		db, _ = opened.(*etcd.DB)
		return opened, err
	})
	large := bytes.Repeat([]byte("x"), store.MaxValue)
	fill := func(key func(i int) string) (n int) {
		for ; n < 300; n++ { // etcd sees it some writes later
			if _, err := s.Commit(t.Context(), store.Write{Key: key(n), Value: large}); errdefs.IsResourceExhausted(err) {
				return n
			} else if err != nil {
				t.Fatal(err)
			}
		}
		t.Fatal("300 MiB fit into 24")
		return 0
	}
	fill(func(int) string { return "same" })
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }() // a commit has found no room
	for err := errors.New("not yet"); err != nil; {
		if _, err = s.Commit(t.Context(), store.Write{Key: "same", Value: large}); err != nil && !errdefs.IsResourceExhausted(err) {
			t.Fatal(err)
		}
	}
	done := errors.New("done")
	stop(done)
	if err := <-ended; !errors.Is(err, done) {
		t.Error(err)
	}

	var err error
	n := 0
	for ; err == nil && n < 300; err = db.Upkeep(t.Context()) { // some of it is room between the records
		n += fill(func(i int) string { return fmt.Sprintf("other/%d", n+i) })
	}
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("after %d MiB: %v", n, err)
	}
	if _, err := s.Commit(t.Context(), store.Write{Key: "more", Value: large}); !errdefs.IsResourceExhausted(err) {
		t.Errorf("more than there is room for: %v", err)
	}
	if r, err := s.Get(t.Context(), "other/0"); err != nil || !bytes.Equal(r.Value, large) {
		t.Errorf("what is there: %d bytes, %v", len(r.Value), err)
	}
	for i := range n - 3 {
		if _, err := s.Commit(t.Context(), store.Write{Key: fmt.Sprintf("other/%d", i), Delete: true}); err != nil {
			t.Fatal(err)
		}
	}
	if err := db.Upkeep(t.Context()); err != nil {
		t.Error(err)
	}
	commit(t, s, store.Write{Key: "more", Value: large})
	if list, _, err := s.List(t.Context(), "other/"); err != nil || len(list) != 3 {
		t.Errorf("%d of 3 are left, %v", len(list), err)
	}
}

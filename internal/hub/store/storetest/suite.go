package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/store"
)

// Suite tests a store's requirements of its database; open returns an empty one, which may be
// opened again.
func Suite(t *testing.T, open func(t *testing.T) store.Opener) {
	t.Helper()
	for name, fn := range map[string]func(t *testing.T, open func(t *testing.T) store.Opener){
		"a transaction is whole or nothing": aTransactionIsWholeOrNothing, "limits are told": limitsAreNamed,
		"a watch has each transaction once": aWatchHasEachTransactionOnce, "what is lent": whatIsLent, "after a restart": afterARestart,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			fn(t, open)
		})
	}
}

func commit(t *testing.T, s *store.Store, writes ...store.Write) int64 {
	t.Helper()
	rev, err := s.Commit(t.Context(), writes...)
	if err != nil {
		t.Fatal(err)
	}
	return rev
}

func aTransactionIsWholeOrNothing(t *testing.T, open func(t *testing.T) store.Opener) {
	s := Open(t, open(t))
	first := commit(t, s, store.Write{Key: "a/1", Value: []byte("one"), If: store.Absent}, store.Write{Key: "a/2", Value: []byte("two")})
	if _, err := s.Commit(t.Context(), store.Write{Key: "a/3", Value: []byte("three")}, store.Write{Key: "a/1", Value: []byte("again"), If: store.Absent}); !errdefs.IsAborted(err) {
		t.Errorf("a record that must be absent is there: %v", err)
	}
	if _, err := s.Get(t.Context(), "a/3"); !errdefs.IsNotFound(err) {
		t.Errorf("a part of a refused transaction was stored: %v", err)
	}
	second := commit(t, s, store.Write{Key: "a/1", Value: []byte("uno"), If: first})
	if _, err := s.Commit(t.Context(), store.Write{Key: "a/1", Delete: true, If: first}); !errdefs.IsAborted(err) {
		t.Errorf("a record of another revision was deleted: %v", err)
	}
	if r, err := s.Get(t.Context(), "a/1"); err != nil || string(r.Value) != "uno" || r.Rev != second {
		t.Errorf("got %+v, %v", r, err)
	}
	list, rev, err := s.List(t.Context(), "a/")
	if err != nil || len(list) != 2 || list[0].Key != "a/1" || list[1].Key != "a/2" || rev < second {
		t.Errorf("listed %+v at %d, %v", list, rev, err)
	}
	if rev := commit(t, s, store.Write{Key: "a/1", Delete: true, If: second}); rev <= second {
		t.Errorf("deleted at %d, written at %d", rev, second)
	}
	if rev := commit(t, s, store.Write{Key: "a/1", Delete: true}, store.Write{Key: "a/2", If: store.Present, Only: true}); rev != 0 {
		t.Errorf("a transaction that changed nothing has the revision %d", rev)
	}
	if _, err := s.Commit(t.Context(), store.Write{Key: "a/1", If: store.Present, Only: true}, store.Write{Key: "a/4"}); !errdefs.IsAborted(err) {
		t.Errorf("a condition alone: %v", err)
	}
	if _, err := s.Commit(t.Context(), store.Write{Key: "a/4"}, store.Write{Key: "a/4", Value: []byte("x")}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a record that is written twice: %v", err)
	}
	if _, err := s.Get(t.Context(), "a/1"); !errdefs.IsNotFound(err) {
		t.Errorf("a deleted record: %v", err)
	}
}

func limitsAreNamed(t *testing.T, open func(t *testing.T) store.Opener) {
	s := Open(t, open(t))
	if _, err := s.Commit(t.Context(), make([]store.Write, store.MaxWrites+1)...); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too many writes: %v", err)
	}
	if _, err := s.Commit(t.Context(), store.Write{Key: "x", Value: make([]byte, store.MaxValue+1)}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("too large a value: %v", err)
	}
	var full []store.Write
	for i := range store.MaxWrites {
		full = append(full, store.Write{Key: fmt.Sprintf("n/%03d", i), Value: []byte("x"), If: store.Absent})
	}
	commit(t, s, full...)
	// More records than one page are listed as of one revision.
	for n := range 9 {
		for i := range full {
			full[i].Key = fmt.Sprintf("n/%d/%03d", n, i)
		}
		commit(t, s, full...)
	}
	list, _, err := s.List(t.Context(), "n/")
	if err != nil || len(list) != 10*store.MaxWrites {
		t.Errorf("listed %d records, %v", len(list), err)
	}
}

func aWatchHasEachTransactionOnce(t *testing.T, open func(t *testing.T) store.Opener) {
	s := Open(t, open(t))
	start := commit(t, s, store.Write{Key: "w/0", Value: []byte("before")})
	var want, got []string
	for i := range 5 {
		rev := commit(t, s, store.Write{Key: fmt.Sprintf("w/%d", i), Value: []byte("v")}, store.Write{Key: "w/last", Value: []byte("v"), Secret: true}, store.Write{Key: "other", Value: []byte("v")})
		want = append(want, fmt.Sprintf("%d: w/%d=v w/last=v", rev, i))
	}
	rev := commit(t, s, store.Write{Key: "w/last", Delete: true})
	want = append(want, fmt.Sprintf("%d: -w/last", rev))
	done := errors.New("done")
	err := s.Watch(t.Context(), "w/", start, func(rev int64, changes []store.Change) error {
		var words []string
		for _, c := range changes {
			if c.Deleted {
				words = append(words, "-"+c.Key)
			} else {
				words = append(words, c.Key+"="+string(c.Value))
			}
		}
		got = append(got, fmt.Sprintf("%d: %s", rev, strings.Join(words, " ")))
		if len(got) == len(want) {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) || strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("the watch ended with %v after\n%s\nwant\n%s", err, strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(done)
	if err := s.Watch(ctx, "w/", 0, nil); !errors.Is(err, done) {
		t.Errorf("a watch whose context has ended: %v", err)
	}
}

// whatIsLent: a lent record exists until it is returned.
func whatIsLent(t *testing.T, open func(t *testing.T) store.Opener) {
	s := Open(t, open(t))
	ctx := Within(t)
	loan, err := s.Lend(ctx, "hub/alive/a", []byte("here"), time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	seen := make(chan []store.Record, 10)
	following, stop := context.WithCancelCause(ctx)
	done := errors.New("done")
	followed := make(chan error, 1)
	go func() {
		followed <- s.Follow(following, "hub/alive/", func(all []store.Record) error {
			seen <- all
			return nil
		})
	}()
	if all := <-seen; len(all) != 1 || string(all[0].Value) != "here" {
		t.Errorf("lent: %+v", all)
	}
	if err := loan.Return(ctx); err != nil {
		t.Error(err)
	}
	if all := <-seen; len(all) > 0 {
		t.Errorf("given back: %+v", all)
	}
	stop(done)
	if err := <-followed; !errors.Is(err, done) {
		t.Error(err)
	}
}

// afterARestart: all records exist, at their revisions, and a watch from there gets later changes; a backup
// has them too, and can fill another database.
func afterARestart(t *testing.T, open func(t *testing.T) store.Opener) {
	from := open(t)
	s := Open(t, from)
	commit(t, s, store.Write{Key: "a/gone", Value: []byte("x")})
	commit(t, s, store.Write{Key: "a/gone", Delete: true}, store.Write{Key: "a/secret", Value: []byte("planted"), Secret: true}, store.Write{Key: "b", Value: []byte("plain")})
	before, rev, err := s.List(t.Context(), "")
	if err != nil || len(before) != 2 {
		t.Fatalf("%+v, %v", before, err)
	}
	if _, err := store.Open(t.Context(), Options(from)); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("opened twice: %v", err)
	}
	var backup bytes.Buffer
	if err := errors.Join(s.Backup(t.Context(), &backup), s.Close(), s.Close()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), "b"); err == nil {
		t.Error("one that is closed is read")
	}
	s = Open(t, from)
	after, again, err := s.List(t.Context(), "")
	if err != nil || again != rev || fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("%+v at %d, %v; before %+v at %d", after, again, err, before, rev)
	}
	if next := commit(t, s, store.Write{Key: "b", Value: []byte("more"), If: before[1].Rev}); next <= rev {
		t.Errorf("revision %d after %d", next, rev)
	}
	other := open(t)
	db, err := other(t.Context(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := store.Fill(t.Context(), db, bytes.NewReader(backup.Bytes())); err != nil {
		t.Error(err)
	}
	if err := store.Fill(t.Context(), db, bytes.NewReader(backup.Bytes())); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("filled twice: %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	if r, err := Open(t, other).Get(t.Context(), "a/secret"); err != nil || string(r.Value) != "planted" {
		t.Errorf("from the backup: %q, %v", r.Value, err)
	}
}

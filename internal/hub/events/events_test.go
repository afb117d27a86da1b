package events_test

import (
	"context"
	"errors"
	"log/slog"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// TestEvents are read in their order, from a cursor on and as they come, with the transactions that
// they tell of; the oldest go.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	log := events.Log{Store: s}
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	commit := func(n int) {
		t.Helper()
		by := events.By(ctx, events.Event{Kind: "operator", Who: "uid 0", What: strconv.Itoa(n)})
		if _, err := s.Commit(by, events.With(by, []store.Write{{Key: "k", Value: []byte{byte(n)}}})...); err != nil {
			t.Fatal(err)
		}
	}
	texts := func(list []events.Event) string {
		var all []string
		for i, e := range list {
			all = append(all, e.What)
			if e.Who != "uid 0" || e.Time.IsZero() || i > 0 && e.Cursor <= list[i-1].Cursor {
				t.Errorf("event %+v", e)
			}
		}
		return strings.Join(all, " ")
	}
	for n := range 5 {
		commit(n)
	}
	if w := events.With(ctx, nil); len(w) > 0 {
		t.Errorf("an event of nobody: %v", w)
	}
	list, at, err := log.List(ctx, 0)
	if got := texts(list); err != nil || got != "0 1 2 3 4" {
		t.Fatalf("listed %s, %v", got, err)
	}
	if rest, _, err := log.List(ctx, list[2].Cursor); err != nil || texts(rest) != "3 4" {
		t.Errorf("after the third: %s, %v", texts(rest), err)
	}
	// A transaction that is refused has no event.
	by := events.By(ctx, events.Event{Kind: "operator", What: "refused"})
	if _, err := s.Commit(by, events.With(by, []store.Write{{Key: "k", If: store.Absent}})...); err == nil {
		t.Error("it was not refused")
	}
	var followed []events.Event
	enough := errors.New("enough")
	done := make(chan error, 1)
	seen := make(chan struct{}, 10)
	go func() {
		done <- log.Follow(ctx, list[3].Cursor, func(e events.Event) error {
			followed = append(followed, e)
			seen <- struct{}{}
			if len(followed) == 3 {
				return enough
			}
			return nil
		})
	}()
	<-seen
	commit(5)
	commit(6)
	if err := <-done; !errors.Is(err, enough) || texts(followed) != "4 5 6" {
		t.Errorf("followed %s, %v", texts(followed), err)
	}
	if _, now, err := log.List(ctx, at); err != nil || now <= at {
		t.Errorf("the cursor is %d after %d, %v", now, at, err)
	}

	go func() { done <- log.Trim(ctx, 3, slog.New(slog.DiscardHandler)) }()
	kept := func(want string) {
		t.Helper()
		for {
			list, rev, err := log.List(ctx, 0)
			if err != nil {
				t.Fatal(err)
			}
			if texts(list) == want {
				return
			}
			// It continues with the next change of an event.
			wait, stop := context.WithTimeout(ctx, storetest.Patience)
			err = s.Watch(wait, "event/", rev, func(int64, []store.Change) error { return enough })
			stop()
			if !errors.Is(err, enough) {
				t.Fatalf("kept %s, want %s: %v", texts(list), want, err)
			}
		}
	}
	kept("4 5 6")
	for n := range 3 {
		commit(7 + n)
	}
	kept("7 8 9")
	cancel(context.Canceled)
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
}

// TestTextsAreBounded: others' texts are cut.
func TestTextsAreBounded(t *testing.T) {
	t.Parallel()
	w := events.Event{Kind: "node", Who: strings.Repeat("w", 1<<20), What: strings.Repeat("ä\xff", 1<<20)}.Write()
	if w.Err != nil || len(w.Value) > 4<<10 {
		t.Errorf("%d bytes, %v", len(w.Value), w.Err)
	}
}

package keylock_test

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/longshore/longshore/internal/keylock"
)

func TestOneHolderPerKey(t *testing.T) {
	var m keylock.Map[string]
	var wg sync.WaitGroup
	n := 0
	for range 50 {
		wg.Go(func() {
			unlock, err := m.Lock(t.Context(), "a")
			if err != nil {
				t.Error(err)
				return
			}
			n++ // the race detector watches
			unlock()
			unlock()
		})
	}
	wg.Wait()
	if n != 50 || m.Held("a") {
		t.Fatalf("n = %d, held = %v", n, m.Held("a"))
	}
}

func TestOtherKeysAreFreeAndWaitingEndsWithTheContext(t *testing.T) {
	var m keylock.Map[string]
	unlock, err := m.Lock(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	other, err := m.Lock(t.Context(), "b")
	if err != nil {
		t.Fatal(err)
	}
	other()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := m.Lock(ctx, "a"); !errors.Is(err, context.Canceled) {
		t.Fatalf("err = %v", err)
	}
	unlock()
	if m.Held("a") {
		t.Fatal("still held")
	}
}

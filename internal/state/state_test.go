package state_test

import (
	"errors"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/state"
	"github.com/longshore/longshore/internal/state/statetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	statetest.Run(t, func(*testing.T) core.Store { return state.NewMemory(64) })
}

func BenchmarkGet(b *testing.B) {
	s := state.NewMemory(0)
	c := core.Container{Meta: core.Meta{ID: "1", Owner: core.OwnerCRI, Key: "k", Labels: map[string]string{"a": "b"}, Data: make([]byte, 1000)}, Sandbox: "s"}
	if err := s.Update(func(tx core.Tx) error { return tx.Containers().Put(c) }); err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		_ = s.View(func(tx core.Tx) error { _, err := tx.Containers().Get("1"); return err })
	}
}

// TestUpdatesAreObserved, each once, also those that fail; Views are not.
func TestUpdatesAreObserved(t *testing.T) {
	var told []time.Duration
	s := state.New(0, state.Contents{}, nil, func(took time.Duration) { told = append(told, took) })
	if err := s.View(func(core.Tx) error { return nil }); err != nil {
		t.Fatal(err)
	}
	failed := errors.New("no")
	for _, want := range []error{nil, failed} {
		if err := s.Update(func(core.Tx) error { return want }); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
	if len(told) != 2 || told[0] < 0 {
		t.Errorf("%v", told)
	}
}

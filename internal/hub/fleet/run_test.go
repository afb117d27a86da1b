package fleet

import (
	"testing"
	"testing/synctest"
	"time"
)

// TestRoundsRest: after a round comes a pause that is a multiple of the round's time, so that the rounds of a large fleet
// use a fifth of a processor at most. A small fleet waits for a moment, and none for longer than a second.
func TestRoundsRest(t *testing.T) { //nolint:paralleltest // synctest has no parallel tests
	for took, want := range map[time.Duration]time.Duration{
		0: 20 * time.Millisecond, time.Millisecond: 20 * time.Millisecond, 25 * time.Millisecond: 100 * time.Millisecond, time.Minute: time.Second,
	} {
		if got := restOf(took); got != want {
			t.Errorf("after a round of %s: %s, want %s", took, got, want)
		}
	}
	synctest.Test(t, func(t *testing.T) {
		changed := make(chan struct{})
		close(changed)
		began := time.Now()
		if err := wait(t.Context(), changed, time.Time{}, restOf(25*time.Millisecond)); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took != 100*time.Millisecond {
			t.Errorf("a change is scheduled after %s", took)
		}
	})
}

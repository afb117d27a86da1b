package engine

import (
	"testing"

	"github.com/longshore/longshore/internal/core"
)

func TestOnlyThoseWhoWaitAreWoken(t *testing.T) {
	var table waitTable
	one, other := core.Ref{Container: "a"}, core.Ref{Container: "b"}
	w1, w2, w3 := table.join(one), table.join(one), table.join(other)
	defer table.leave(other, w3)
	table.ended(one, core.Autopsy{Verdict: "over"})
	for _, w := range []*exitWait{w1, w2} {
		<-w.done
		if w.autopsy.Verdict != "over" {
			t.Errorf("autopsy %+v", w.autopsy)
		}
		table.leave(one, w)
	}
	select {
	case <-w3.done:
		t.Error("somebody else was woken")
	default:
	}
	// The next waiter waits for another process.
	w4 := table.join(one)
	defer table.leave(one, w4)
	select {
	case <-w4.done:
		t.Error("an end was told again")
	default:
	}
}

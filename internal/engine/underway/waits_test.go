package underway

import (
	"testing"

	"github.com/longshore/longshore/internal/core"
)

func TestOnlyThoseWhoWaitAreWoken(t *testing.T) {
	var table Waits
	one, other := core.Ref{Container: "a"}, core.Ref{Container: "b"}
	w1, w2, w3 := table.Join(one), table.Join(one), table.Join(other)
	defer table.Leave(other, w3)
	table.Ended(one, core.Autopsy{Verdict: "over"})
	for _, w := range []*Wait{w1, w2} {
		<-w.Done
		if w.Autopsy.Verdict != "over" {
			t.Errorf("autopsy %+v", w.Autopsy)
		}
		table.Leave(one, w)
	}
	select {
	case <-w3.Done:
		t.Error("somebody else was woken")
	default:
	}
	// The next waiter waits for another process.
	w4 := table.Join(one)
	defer table.Leave(one, w4)
	select {
	case <-w4.Done:
		t.Error("an end was told again")
	default:
	}
}

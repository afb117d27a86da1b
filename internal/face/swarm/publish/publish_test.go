package publish

import (
	"testing"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// TestTheRate: a burst goes at once, and then no more than the rate.
func TestTheRate(t *testing.T) {
	var b bucket
	now := time.Unix(1000, 0)
	if d := b.take(maxRate, now); d != 0 {
		t.Errorf("the first burst waits %s", d)
	}
	if d := b.take(maxRate/2, now); d != time.Second/2 {
		t.Errorf("the next half of it waits %s", d)
	}
	if d := b.take(maxRate/2, now.Add(time.Second/2)); d != time.Second/2 {
		t.Errorf("and the next %s", d)
	}
	if d := b.take(maxRate, now.Add(time.Hour)); d != 0 {
		t.Errorf("after a pause %s", d)
	}
}

// TestSelectors: their lists are joined, and an empty one selects nothing.
func TestSelectors(t *testing.T) {
	for sel, want := range map[*swarmv1.LogSelector]bool{
		nil:                               false,
		{}:                                false,
		{ServiceIds: []string{"s"}}:       true,
		{TaskIds: []string{"x", "t"}}:     true,
		{NodeIds: []string{"n"}}:          true,
		{NodeIds: []string{"t", "s", ""}}: false,
		{ServiceIds: []string{"x"}, TaskIds: []string{"t"}}: true,
	} {
		if got := matches(sel, "n", "s", "t"); got != want {
			t.Errorf("%v: %v", sel, got)
		}
	}
}

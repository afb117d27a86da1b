package underway

import "testing"

func TestOnlyTheCreateThatIsGivenUpEnds(t *testing.T) {
	var c Creates
	c.GiveUp("a") // nobody creates it
	a, endA := c.Begin(t.Context(), "a")
	b, endB := c.Begin(t.Context(), "b")
	defer endB()
	if GivenUp(a) || a.Err() != nil {
		t.Error("it was given up before it began")
	}
	c.GiveUp("a")
	if !GivenUp(a) || a.Err() == nil || GivenUp(b) || b.Err() != nil {
		t.Errorf("a: %v, b: %v", a.Err(), b.Err())
	}
	endA()
	again, end := c.Begin(t.Context(), "a")
	if again.Err() != nil {
		t.Error("the next create ends at once")
	}
	end()
	c.GiveUp("a")
	if GivenUp(again) || len(c.cancels) != 1 {
		t.Errorf("a create that has ended was given up; %d are left", len(c.cancels))
	}
}

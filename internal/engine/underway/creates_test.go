package underway

import "testing"

func TestOnlyTheCreatesOfASandboxThatIsStoppedEnd(t *testing.T) {
	var c Creates
	c.GiveUp("a")() // nobody creates in it
	first, endFirst := c.Begin(t.Context(), "a")
	second, endSecond := c.Begin(t.Context(), "a")
	other, endOther := c.Begin(t.Context(), "b")
	defer endOther()
	if GivenUp(first) || first.Err() != nil {
		t.Error("it was given up before it began")
	}
	stopped := c.GiveUp("a")
	if !GivenUp(first) || !GivenUp(second) || GivenUp(other) || other.Err() != nil {
		t.Errorf("the first: %v, the second: %v, of another sandbox: %v", first.Err(), second.Err(), other.Err())
	}
	endFirst()
	late, endLate := c.Begin(t.Context(), "a")
	if !GivenUp(late) {
		t.Error("a create that begins while the sandbox is being stopped goes on")
	}
	endSecond()
	endLate()
	stopped()
	again, end := c.Begin(t.Context(), "a")
	if again.Err() != nil {
		t.Error("the next create ends at once")
	}
	end()
	c.GiveUp("a")()
	if GivenUp(again) || len(c.of) != 1 {
		t.Errorf("a create that has ended was given up; %d sandboxes are left", len(c.of))
	}
}

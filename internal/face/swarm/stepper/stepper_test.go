package stepper

import (
	"slices"
	"testing"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// life is the way of a task that ends well.
var life = []swarmv1.TaskState{assigned, accepted, preparing, ready, starting, running, complete}

// states are all that there are, in their order.
func states() []swarmv1.TaskState {
	var all []swarmv1.TaskState
	for n := range swarmv1.TaskState_name {
		all = append(all, swarmv1.TaskState(n))
	}
	slices.Sort(all)
	return all
}

// TestEveryStep walks every desired state, every actual state and every outcome: a
// state never goes down, goes up by one step of a task's life at most, or to an end,
// and an end is an end.
func TestEveryStep(t *testing.T) {
	for _, desired := range states() {
		for _, actual := range states() {
			a := Next(desired, actual)
			for _, o := range []Outcome{Done, Wait, Retry, Failed} {
				got := After(actual, a, o)
				say := func(why string) {
					t.Errorf("desired %s, actual %s: %s is %s, then %s: %s", desired, actual, a, o, got, why)
				}
				if got < actual {
					say("it goes down")
				}
				if Ended(actual) && (a != Rest || got != actual) {
					say("an end is not an end")
				}
				if (o == Wait || o == Retry) && got != actual {
					say("nothing was done")
				}
				if got == actual {
					continue
				}
				i, j := slices.Index(life, max(actual, assigned)), slices.Index(life, got)
				switch got {
				case shutdown:
					if a != Stop || desired < shutdown {
						say("nobody wanted that")
					}
				case rejected:
					if actual >= starting || o != Failed {
						say("it had begun to start, or was not refused")
					}
				case failed:
					if o != Failed || actual < starting {
						say("it had not begun to start, or was not refused")
					}
				default:
					if j != i+1 {
						say("a step is left out")
					}
					if got > desired && got < complete {
						say("it is not to go so far")
					}
				}
			}
		}
	}
}

// TestNext is the table of the action in each state, for each desired state.
func TestNext(t *testing.T) {
	const ( // the desired states of a worker's task
		wantReady    = swarmv1.TaskState_READY
		wantRunning  = swarmv1.TaskState_RUNNING
		wantComplete = swarmv1.TaskState_COMPLETE
		wantShutdown = swarmv1.TaskState_SHUTDOWN
		wantRemove   = swarmv1.TaskState_REMOVE
	)
	table := []struct {
		actual                                     swarmv1.TaskState
		ready, running, complete, shutdown, remove Action
	}{
		{assigned, Advance, Advance, Advance, Stop, Stop},
		{accepted, Advance, Advance, Advance, Stop, Stop},
		{preparing, Prepare, Prepare, Prepare, Stop, Stop},
		{ready, Rest, Advance, Advance, Stop, Stop},
		{starting, Rest, Start, Start, Stop, Stop},
		{running, Watch, Watch, Watch, Stop, Stop},
		{complete, Rest, Rest, Rest, Rest, Rest},
		{shutdown, Rest, Rest, Rest, Rest, Rest},
		{failed, Rest, Rest, Rest, Rest, Rest},
		{rejected, Rest, Rest, Rest, Rest, Rest},
		{swarmv1.TaskState_ORPHANED, Rest, Rest, Rest, Rest, Rest},
	}
	for _, row := range table {
		for desired, want := range map[swarmv1.TaskState]Action{
			wantReady: row.ready, wantRunning: row.running, wantComplete: row.complete, wantShutdown: row.shutdown, wantRemove: row.remove,
		} {
			if got := Next(desired, row.actual); got != want {
				t.Errorf("desired %s, actual %s: %s, want %s", desired, row.actual, got, want)
			}
		}
	}
}

// TestALife is a task's way to each of its ends.
func TestALife(t *testing.T) {
	type step struct {
		a Action
		o Outcome
	}
	for name, c := range map[string]struct {
		desired swarmv1.TaskState
		from    swarmv1.TaskState
		steps   []step
		want    swarmv1.TaskState
	}{
		"it ends well":         {running, assigned, []step{{Advance, Done}, {Advance, Done}, {Prepare, Retry}, {Prepare, Done}, {Advance, Done}, {Start, Done}, {Watch, Wait}, {Watch, Done}}, complete},
		"it cannot be made":    {running, assigned, []step{{Advance, Done}, {Advance, Done}, {Prepare, Failed}}, rejected},
		"it cannot be started": {running, ready, []step{{Advance, Done}, {Start, Failed}}, failed},
		"it ends badly":        {running, running, []step{{Watch, Failed}}, failed},
		"it waits":             {running, assigned, []step{{Advance, Done}, {Advance, Done}, {Prepare, Wait}, {Prepare, Done}, {Advance, Done}, {Start, Wait}, {Start, Done}}, running},
		"it is to be ready":    {ready, assigned, []step{{Advance, Done}, {Advance, Done}, {Prepare, Done}, {Rest, Done}}, ready},
		"it is not wanted":     {shutdown, preparing, []step{{Stop, Retry}, {Stop, Done}}, shutdown},
		"it will not go":       {shutdown, running, []step{{Stop, Failed}, {Stop, Retry}, {Stop, Done}}, shutdown},
	} {
		s := c.from
		for _, st := range c.steps {
			if a := Next(c.desired, s); a != st.a {
				t.Fatalf("%s: %s in %s, want %s", name, a, s, st.a)
			}
			s = After(s, st.a, st.o)
		}
		if s != c.want {
			t.Errorf("%s: %s, want %s", name, s, c.want)
		}
	}
}

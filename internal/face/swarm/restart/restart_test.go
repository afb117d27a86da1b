package restart

import (
	"encoding/json"
	"math"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// clock is a fake one: only a test moves it.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) pass(d time.Duration) time.Time {
	c.now = c.now.Add(d)
	return c.now
}

// TestDecide is every condition with every kind of end, each number of restarts before,
// with a window and without, with and without a manager.
func TestDecide(t *testing.T) {
	const delay, window = 10 * time.Second, time.Minute
	for _, condition := range []Condition{never, onFailure, always, 77} {
		for _, well := range []bool{true, false} {
			for _, limit := range []uint64{0, 1, 3} {
				for _, w := range []time.Duration{0, window} {
					for before := range uint64(5) {
						for _, answers := range []bool{true, false} {
							p := Policy{Condition: condition, Delay: delay, Max: limit, Window: w}
							c := newClock()
							var h History
							for range before {
								h = h.Begin(p, c.pass(delay), "", "").Done()
							}
							e := End{Well: well, At: c.pass(time.Second), Seen: c.now}
							wanted := condition == always || condition == onFailure && !well
							allowed := limit == 0 || before < limit
							decided := wanted && allowed && !answers
							undecided := Final
							if wanted && allowed {
								undecided = Tell
							}
							got, wait := Decide(p, h, e, Contact{Answers: answers, CutOff: c.now}, c.now)
							switch {
							case !decided && got != undecided:
								t.Errorf("%+v, well %v, %d before, answers %v: %s", p, well, before, answers, got)
							case decided && (got != Wait || wait != delay):
								t.Errorf("%+v, well %v, %d before, answers %v: %s for %s", p, well, before, answers, got, wait)
							case decided:
								if got, _ = Decide(p, h, e, Contact{CutOff: e.At}, c.pass(wait-time.Nanosecond)); got != Wait {
									t.Errorf("%+v: %s before its delay has passed", p, got)
								}
								if got, _ = Decide(p, h, e, Contact{CutOff: e.At}, c.pass(time.Nanosecond)); got != Again {
									t.Errorf("%+v: %s after its delay has passed", p, got)
								}
							}
						}
					}
				}
			}
		}
	}
}

// TestTheWindowMovesOn: restarts that it does not have any more do not count, and those
// without a window always do.
func TestTheWindowMovesOn(t *testing.T) {
	c := newClock()
	p := Policy{Condition: always, Max: 2, Window: time.Minute}
	var h History
	ask := func(p Policy) Verdict {
		v, _ := Decide(p, h, End{At: c.now.Add(-time.Hour), Seen: c.now.Add(-time.Hour)}, Contact{}, c.now)
		return v
	}
	for i, step := range []struct {
		pass time.Duration
		want Verdict
	}{{0, Again}, {30 * time.Second, Again}, {20 * time.Second, Final}, {10 * time.Second, Again}, {10 * time.Second, Final}, {time.Hour, Again}} {
		c.pass(step.pass)
		got := ask(p)
		if got != step.want {
			t.Errorf("step %d: %s, want %s; %+v", i, got, step.want, h)
		}
		if got == Again {
			h = h.Begin(p, c.now, "", "").Done()
		}
	}
	if got := ask(Policy{Condition: always, Max: h.Count}); got != Final {
		t.Errorf("%d restarts of %d without a window: %s", h.Count, h.Count, got)
	}
}

// TestCutOff: nothing is started again before the managers have given the node up, and a restart
// that has begun continues in any case.
func TestCutOff(t *testing.T) {
	c := newClock()
	p := Policy{Condition: always, Delay: 2 * time.Second}
	e := End{At: c.now, Seen: c.now}
	contact := Contact{CutOff: c.now.Add(15 * time.Second)}
	if v, wait := Decide(p, History{}, e, contact, c.now); v != Wait || wait != 15*time.Second {
		t.Errorf("%s for %s", v, wait)
	}
	if v, _ := Decide(p, History{}, e, contact, c.pass(15*time.Second)); v != Again {
		t.Errorf("given up: %s", v)
	}
	h := History{}.Begin(p, c.now, "old", "it ended")
	for _, answers := range []bool{true, false} {
		if v, _ := Decide(Policy{Condition: never}, h, e, Contact{Answers: answers, CutOff: c.now.Add(time.Hour)}, c.now); v != Again {
			t.Errorf("a restart that has begun: %s", v)
		}
	}
	if v, _ := Decide(p, h.Done(), e, Contact{Answers: true}, c.now); v != Tell {
		t.Errorf("one that is done, with a manager: %s", v)
	}
}

// TestSpacing: a first restart comes after the policy's delay, which may be nothing, and
// another one not sooner than a second after it.
func TestSpacing(t *testing.T) {
	c := newClock()
	p := Policy{Condition: always}
	v, _ := Decide(p, History{}, End{At: c.now, Seen: c.now}, Contact{}, c.now)
	if v != Again {
		t.Errorf("the first: %s", v)
	}
	h := History{}.Begin(p, c.now, "", "").Done()
	c.pass(100 * time.Millisecond)
	e := End{At: c.now, Seen: c.now}
	v, wait := Decide(p, h, e, Contact{}, c.now)
	if v != Wait || wait != 900*time.Millisecond {
		t.Errorf("the second: %s for %s", v, wait)
	}
	if v, _ = Decide(p, h, e, Contact{}, c.pass(wait)); v != Again {
		t.Errorf("the second, a second later: %s", v)
	}
}

// TestAClockThatWasSet: an end or restarts in the future, by a clock that was set back
// since, neither keep a task from its restart nor count.
func TestAClockThatWasSet(t *testing.T) {
	c := newClock()
	p := Policy{Condition: always, Delay: 5 * time.Second, Max: 1, Window: time.Hour}
	h := History{}.Begin(p, c.now.Add(1000*time.Hour), "", "").Done()
	e := End{At: c.now.Add(1000 * time.Hour), Seen: c.now}
	v, wait := Decide(p, h, e, Contact{}, c.now)
	if v != Wait || wait > 5*time.Second {
		t.Errorf("%s for %s", v, wait)
	}
	if v, _ = Decide(p, h, e, Contact{}, c.pass(wait)); v != Again {
		t.Errorf("after %s: %s", wait, v)
	}
}

// TestOf reads policies, those that say nothing and those that say too much among them.
func TestOf(t *testing.T) {
	task := func(r *swarmv1.RestartPolicy) *swarmv1.Task {
		return &swarmv1.Task{DesiredState: swarmv1.TaskState_RUNNING, Spec: &swarmv1.TaskSpec{Restart: r}}
	}
	job := task(nil)
	job.DesiredState = swarmv1.TaskState_COMPLETE
	strange := &swarmv1.RestartPolicy{Condition: 77, Delay: durationpb.New(-time.Hour), Window: &durationpb.Duration{Seconds: math.MaxInt64}, MaxAttempts: math.MaxUint64}
	for name, c := range map[string]struct {
		task *swarmv1.Task
		want Policy
	}{
		"nothing":    {task(nil), Policy{Condition: always, Delay: 5 * time.Second}},
		"no delay":   {task(&swarmv1.RestartPolicy{Condition: onFailure}), Policy{Condition: onFailure, Delay: 5 * time.Second}},
		"all":        {task(&swarmv1.RestartPolicy{Condition: always, Delay: durationpb.New(0), MaxAttempts: 3, Window: durationpb.New(time.Minute)}), Policy{Condition: always, Max: 3, Window: time.Minute}},
		"a job":      {job, Policy{Condition: onFailure, Delay: 5 * time.Second}},
		"of strange": {task(strange), Policy{Condition: 77, Max: math.MaxUint64, Window: math.MaxInt64}},
	} {
		if got := Of(c.task); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// TestAHistoryIsBounded under any policy.
func TestAHistoryIsBounded(t *testing.T) {
	c := newClock()
	p := Policy{Condition: always, Max: math.MaxUint64, Window: math.MaxInt64}
	var h History
	again := 0
	for range 3 * maxTimes {
		e := End{At: c.pass(time.Minute), Seen: c.now}
		if v, _ := Decide(p, h, e, Contact{}, c.now); v == Again {
			again++
			h = h.Begin(p, c.now, strings.Repeat("x", 64), "it ended").Done()
		}
	}
	data, err := json.Marshal(h)
	if err != nil || len(data) > 16<<10 || again != maxTimes || len(h.Times) != maxTimes {
		t.Errorf("%d bytes after %d restarts, %d are kept: %v", len(data), again, len(h.Times), err)
	}
	var read History
	if err := json.Unmarshal(data, &read); err != nil || read.Count != h.Count || !read.Last.Equal(h.Last) {
		t.Errorf("%+v, %v", read, err)
	}
}

func TestWhatIsTold(t *testing.T) {
	p := Policy{}
	h := History{}.Begin(p, time.Now(), "", "it was killed")
	if got := h.String(); !strings.HasPrefix(got, "started again once by the node") || !strings.HasSuffix(got, "it was killed") {
		t.Error(got)
	}
	h = h.Fail("no image")
	if h.Pending || h.Failed != "no image" {
		t.Errorf("%+v", h)
	}
	h = h.Begin(p, time.Now(), "", "it ended")
	if got := h.String(); !strings.Contains(got, "2 times") || h.Failed != "" {
		t.Error(got)
	}
}

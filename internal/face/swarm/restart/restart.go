// Package restart decides whether a node restarts a task after the end of its program,
// because no manager can be reached to replace it: by the task's own restart policy,
// which the managers apply otherwise.
//
// It is pure; the time is an argument. It must not know containers. Start at Decide.
package restart

import (
	"fmt"
	"slices"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// Policy is when a task is started again.
type Policy struct {
	Condition Condition
	// Delay is the time between the program's end and its next start.
	Delay time.Duration
	// Max is how often the task is started again at most, within Window when that is not
	// 0. With 0 there is no bound.
	Max    uint64
	Window time.Duration
}

// Condition says after which ends a task is started again.
type Condition = swarmv1.RestartPolicy_RestartCondition

// The conditions, by shorter names.
const (
	never     = swarmv1.RestartPolicy_NONE
	onFailure = swarmv1.RestartPolicy_ON_FAILURE
	always    = swarmv1.RestartPolicy_ANY
)

const (
	// defaultDelay is the managers' when a policy has none.
	defaultDelay = 5 * time.Second
	// spacing is between two restarts of a task at least, however short its delay is: a
	// program that ends at once would keep the node busy with nothing else.
	spacing = time.Second
	// maxTimes bounds the times in a task's history, and so the restarts within a window.
	maxTimes = 256
)

// Of returns the policy of a task, with the managers' defaults.
func Of(t *swarmv1.Task) Policy {
	p := Policy{Condition: always, Delay: defaultDelay}
	if r := t.GetSpec().GetRestart(); r != nil {
		p.Condition, p.Max, p.Window = r.GetCondition(), r.GetMaxAttempts(), max(r.GetWindow().AsDuration(), 0)
		if r.GetDelay() != nil {
			p.Delay = max(r.GetDelay().AsDuration(), 0)
		}
	}
	if t.GetDesiredState() == swarmv1.TaskState_COMPLETE && p.Condition != never {
		p.Condition = onFailure // a job that has ended well is done
	}
	return p
}

// History has the restarts of a task by its node. It is kept until the task is removed.
type History struct {
	Count uint64      `json:"count"`
	Last  time.Time   `json:"last"`            // when the last restart began
	Times []time.Time `json:"times,omitempty"` // of the restarts that count in the policy's window
	// Pending says that the last restart has begun and the start of the program is not confirmed;
	// Of is the replaced container, "" if that was gone.
	Pending bool   `json:"pending,omitempty"`
	Of      string `json:"of,omitempty"`
	// Why is how the program had ended; Failed is why it could not be started again.
	Why    string `json:"why,omitempty"`
	Failed string `json:"failed,omitempty"`
}

// Begin is the history when a restart begins: it is kept before anything is done, so that
// an agent that comes later neither forgets it nor does it twice.
func (h History) Begin(p Policy, now time.Time, of, why string) History {
	next := History{Count: h.Count + 1, Last: now, Pending: true, Of: of, Why: why}
	if p.Max > 0 && p.Window > 0 {
		next.Times = append(within(h.Times, p.Window, now), now)
		next.Times = next.Times[max(0, len(next.Times)-int(min(p.Max, maxTimes))):]
	}
	return next
}

// Done returns the history after the start of the program.
func (h History) Done() History {
	h.Pending, h.Of = false, ""
	return h
}

// Fail is the history when it could not be.
func (h History) Fail(why string) History {
	h = h.Done()
	h.Failed = why
	return h
}

// String tells the managers of it.
func (h History) String() string {
	times := "once"
	if h.Count > 1 {
		times = fmt.Sprintf("%d times", h.Count)
	}
	return fmt.Sprintf("started again %s by the node, which could reach no manager; before that: %s", times, h.Why)
}

// within are the times that a window up to now still has. Those after now are from before
// the clock was set back, and say nothing.
func within(times []time.Time, window time.Duration, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(times), func(t time.Time) bool { return t.After(now) || now.Sub(t) >= window })
}

// exhausted reports whether the policy allows no more.
func (h History) exhausted(p Policy, now time.Time) bool {
	switch {
	case p.Max == 0:
		return false
	case p.Window == 0:
		return h.Count >= p.Max
	}
	return uint64(len(within(h.Times, p.Window, now))) >= min(p.Max, maxTimes)
}

// End is how a task's program ended.
type End struct {
	Well bool      // with the status 0
	At   time.Time // by the clock that the node had then
	Seen time.Time // when the agent found it, by its own clock
}

// wants reports whether a task is started again after such an end. Conditions that this
// version does not know are the managers'.
func (p Policy) wants(e End) bool {
	return p.Condition == always || p.Condition == onFailure && !e.Well
}

// Contact is whether the managers can be reached.
type Contact struct {
	// Answers says that a manager can be reached to judge the end.
	Answers bool
	// CutOff is the time when the managers give this node up for its silence. Before that they wait
	// for it.
	CutOff time.Time
}

// Verdict is the decision about an end.
type Verdict int

// The verdicts.
const (
	Final Verdict = iota // it stands, by the policy
	Tell                 // a manager judges it after the report
	Wait                 // nothing is done for now
	Again                // the program is started again
)

func (v Verdict) String() string { return [...]string{"final", "tell", "wait", "again"}[v] }

// Decide returns the verdict on an end now, and how long Wait lasts if nothing happens before. A
// restart that has begun continues.
func Decide(p Policy, h History, e End, c Contact, now time.Time) (Verdict, time.Duration) {
	switch {
	case h.Pending:
		return Again, 0
	case !p.wants(e) || h.exhausted(p, now):
		return Final, 0
	case c.Answers:
		return Tell, 0
	}
	due := c.CutOff
	// Times of a clock that was set since count from the time of their first reading.
	for _, t := range []time.Time{e.At.Add(p.Delay), h.Last.Add(max(p.Delay, spacing))} {
		if latest := e.Seen.Add(max(p.Delay, spacing)); t.After(latest) {
			t = latest
		}
		if t.After(due) {
			due = t
		}
	}
	if wait := due.Sub(now); wait > 0 {
		return Wait, wait
	}
	return Again, 0
}

package attack

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/weaken"
)

// actor is the attacker, as docs/security.md names them.
type actor string

const (
	containerRoot actor = "container root"
	withPtrace    actor = "container root, SYS_PTRACE"
	withoutAdmin  actor = "container root, all but SYS_ADMIN"
	hostUser      actor = "host user"
	jobAuthor     actor = "job author"
	registry      actor = "registry"
	networkClient actor = "network client"
	hubOperator   actor = "operator of a hub"
	hubToken      actor = "holder of a join token"
)

func actors() []actor {
	return []actor{containerRoot, withPtrace, withoutAdmin, hostUser, jobAuthor, registry, networkClient, hubOperator, hubToken}
}

// outcome is how an attempt ended.
type outcome string

const (
	// refused: an error, or there was nothing to reach.
	refused outcome = "refused"
	// bounded: it succeeded only up to a limit set for it.
	bounded outcome = "bounded"
	// reached: it succeeded.
	reached outcome = "reached"
	// absent: this kernel lacks the attacked feature, and has told the host's root so
	// too. It does not count as an attempt.
	absent outcome = "absent"
	// unmade: the attempt was not made.
	unmade outcome = "not made"
)

// result is an outcome with the proof that the attempt was made: the calls and their
// results.
type result struct {
	Outcome  outcome `json:"outcome"`
	Evidence string  `json:"evidence"`
}

func (r result) String() string { return fmt.Sprintf("%s: %s", r.Outcome, r.Evidence) }

func is(o outcome, format string, args ...any) result {
	return result{o, fmt.Sprintf(format, args...)}
}

// answered returns the outcome of one call. An error that is neither a denial nor among
// also means that the attempt was not made.
func answered(call string, err error, also ...unix.Errno) result {
	var no unix.Errno
	switch {
	case err == nil:
		return is(reached, "%s: done", call)
	case !errors.As(err, &no):
		return is(unmade, "%s: %v", call, err)
	case slices.Contains(append(also, unix.EPERM, unix.EACCES, unix.EROFS), no):
		return is(refused, "%s: %v", call, err)
	case no == unix.ENOENT || no == unix.ENOSYS || no == unix.ENODEV || no == unix.ENXIO:
		return is(absent, "%s: %v", call, err)
	}
	return is(unmade, "%s: %v", call, err)
}

// attempt is one attack.
type attempt struct {
	name  string
	actor actor
	run   func(t *testing.T, w *world) result
	// weak is the defence without which the attempt succeeds, or several with commas
	// between them if it takes more than one. It is "" if there is no control of this
	// kind.
	weak weaken.Defence
	// long attempts are made only in the long form.
	long bool
	// alone attempts get a node of their own, because they change it for good.
	alone bool
}

// minimum is how many attempts even the short form makes.
const minimum = 60

// tally counts attempts.
type tally struct {
	counts map[actor]map[outcome]int
	faults []string
}

func newTally() *tally { return &tally{counts: map[actor]map[outcome]int{}} }

// add counts one attempt, and returns the fault of its result, or "".
func (c *tally) add(a actor, name string, r result) string {
	if c.counts[a] == nil {
		c.counts[a] = map[outcome]int{}
	}
	c.counts[a][r.Outcome]++
	fault := ""
	switch {
	case r.Outcome == reached:
		fault = fmt.Sprintf("%s reached what it wanted as %s: %s", name, a, r.Evidence)
	case r.Outcome == absent && r.Evidence != "":
	case r.Outcome != refused && r.Outcome != bounded:
		fault = fmt.Sprintf("%s was not made as %s: %s", name, a, r.Evidence)
	case r.Evidence == "":
		fault = fmt.Sprintf("%s as %s has no evidence that it was made", name, a)
	}
	if fault != "" {
		c.faults = append(c.faults, fault)
	}
	return fault
}

// made returns how many attempts were made.
func (c *tally) made() (n int) {
	for _, o := range c.counts {
		n += o[refused] + o[bounded] + o[reached]
	}
	return n
}

// verdict returns the summary, with a line per actor, and whether the run passes.
func (c *tally) verdict() (summary string, err error) {
	var b strings.Builder
	for _, a := range actors() {
		o := c.counts[a]
		fmt.Fprintf(&b, "%-34s %3d refused %3d bounded %3d reached", a, o[refused], o[bounded], o[reached])
		if o[absent] > 0 {
			fmt.Fprintf(&b, " (%d absent in this kernel)", o[absent])
		}
		b.WriteByte('\n')
		if o[refused]+o[bounded]+o[reached] == 0 {
			err = errors.Join(err, fmt.Errorf("no attempt was made as %s", a))
		}
	}
	fmt.Fprintf(&b, "%-34s %3d attempts\n", "all", c.made())
	if c.made() < minimum {
		err = errors.Join(err, fmt.Errorf("%d attempts were made, at least %d are wanted", c.made(), minimum))
	}
	for _, f := range c.faults {
		err = errors.Join(err, errors.New(f))
	}
	return b.String(), err
}

// decode reads the result that a probe has printed.
func decode(out []byte) result {
	var r result
	if err := json.Unmarshal(out, &r); err != nil {
		return is(unmade, "the probe said %q: %v", out, err)
	}
	return r
}

func TestTally(t *testing.T) {
	full := func() *tally {
		c := newTally()
		for i := range minimum {
			c.add(actors()[i%len(actors())], "a", is(refused, "open: no"))
		}
		return c
	}
	if _, err := full().verdict(); err != nil {
		t.Errorf("a good run: %v", err)
	}
	for name, r := range map[string]result{
		"reached": is(reached, "done"), "not made": is(unmade, "no such program"), "no evidence": is(refused, ""), "nothing": {}, "absent without evidence": is(absent, ""),
	} {
		c := full()
		c.add(hostUser, name, r)
		if _, err := c.verdict(); err == nil {
			t.Errorf("%s: the run counts", name)
		}
	}
	if _, err := newTally().verdict(); err == nil {
		t.Error("an empty run counts")
	}
	c := newTally()
	for range minimum {
		c.add(hostUser, "a", is(refused, "no"))
	}
	if _, err := c.verdict(); err == nil {
		t.Error("a run without an actor counts")
	}
	for errno, want := range map[error]outcome{nil: reached, unix.EPERM: refused, unix.EROFS: refused, unix.ENOENT: absent, unix.EINVAL: unmade, errors.New("x"): unmade} {
		if got := answered("call", errno); got.Outcome != want {
			t.Errorf("%v is %s, want %s", errno, got.Outcome, want)
		}
	}
}

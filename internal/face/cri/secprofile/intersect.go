package secprofile

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// maxAlternatives bounds the alternatives of one system call in an intersection.
const maxAlternatives = 256

// strictness orders actions as the kernel does for filters that disagree: the strictest one decides.
var strictness = []specs.LinuxSeccompAction{ //nolint:gochecknoglobals // constant
	specs.ActAllow, specs.ActLog, specs.ActErrno, specs.ActTrap, specs.ActKillThread, specs.ActKill, specs.ActKillProcess,
}

// answer is a profile's answer to a call: an action, and the error number of ActErrno.
type answer struct {
	action specs.LinuxSeccompAction
	errno  *uint
}

func (a answer) permits() bool { return a.action == specs.ActAllow || a.action == specs.ActLog }

func (a answer) equal(b answer) bool {
	same := func(p, q *uint) bool { return p == q || p != nil && q != nil && *p == *q }
	return a.action == b.action && same(a.errno, b.errno)
}

// stricter returns the stricter of two answers, and the first of two that are as strict.
func stricter(a, b answer) answer {
	if slices.Index(strictness, b.action) > slices.Index(strictness, a.action) {
		return b
	}
	return a
}

// condition is a set of conditions on a call's arguments, at most one for each argument, which must all hold. The empty
// one always holds.
type condition []specs.LinuxSeccompArg

// call has the rules of a profile for one system call. Of rules that contradict each other, the one that denies counts.
type call struct {
	permits []alternative // conditions under which a rule permits it
	denies  []denial      // conditions under which a rule denies it
	denied  *answer       // the answer of a rule that denies it without a condition
}

type alternative struct {
	when   condition
	action specs.LinuxSeccompAction // ActAllow or ActLog
}

type denial struct {
	when condition
	answer
}

// profile is a profile by system call.
type profile struct {
	fallback answer
	calls    map[string]*call
}

// Intersect returns a profile that permits a call only if both profiles permit it. It answers a call that one of them
// denies as that one does, and one that both deny by the stricter answer, or as base does. It fails rather than permit
// more: InvalidArgument for profiles that leave decisions to other processes, and for conditions that one rule cannot
// have together.
func Intersect(base, with *specs.LinuxSeccomp) (*specs.LinuxSeccomp, error) {
	a, err := read(base)
	if err != nil {
		return nil, fmt.Errorf("base profile: %w", err)
	}
	b, err := read(with)
	if err != nil {
		return nil, fmt.Errorf("profile: %w", err)
	}
	out := &specs.LinuxSeccomp{Flags: flags(base.Flags, with.Flags)}
	if out.Architectures, err = architectures(base.Architectures, with.Architectures); err != nil {
		return nil, err
	}
	fallback := stricter(a.fallback, b.fallback)
	out.DefaultAction, out.DefaultErrnoRet = fallback.action, fallback.errno
	var names []string
	for _, p := range []profile{a, b} {
		for name := range p.calls {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	for _, name := range slices.Compact(names) {
		rules, err := both(a, b, name, fallback)
		if err != nil {
			return nil, fmt.Errorf("system call %s: %w", name, err)
		}
		out.Syscalls = append(out.Syscalls, rules...)
	}
	return out, nil
}

// denials returns the rules for a call of two profiles that permit other calls: all rules that deny it.
func denials(a, b profile, name string) (rules []specs.LinuxSyscall) {
	var always *answer
	for _, p := range []profile{a, b} {
		c := p.calls[name]
		if c == nil {
			continue
		}
		for _, d := range c.denies {
			rules = append(rules, rule(name, d.when, d.answer))
		}
		if c.denied != nil && (always == nil || stricter(*always, *c.denied) != *always) {
			always = c.denied
		}
	}
	if always != nil {
		rules = []specs.LinuxSyscall{rule(name, nil, *always)}
	}
	return rules
}

func rule(name string, when condition, a answer) specs.LinuxSyscall {
	return specs.LinuxSyscall{Names: []string{name}, Action: a.action, ErrnoRet: a.errno, Args: when}
}

// both returns the rules of the intersection for one system call.
func both(a, b profile, name string, fallback answer) ([]specs.LinuxSyscall, error) {
	if fallback.permits() {
		return denials(a, b, name), nil
	}
	first, err := a.permitted(name)
	if err != nil {
		return nil, err
	}
	second, err := b.permitted(name)
	if err != nil {
		return nil, err
	}
	allowed, err := conjoin(first, second)
	if err != nil {
		return nil, err
	}
	always := slices.IndexFunc(allowed, func(x alternative) bool { return len(x.when) == 0 })
	var rules []specs.LinuxSyscall
	switch {
	case always >= 0: // the other alternatives hold less often
		rules = append(rules, rule(name, nil, answer{action: allowed[always].action}))
	case len(allowed) > 0:
		for _, x := range allowed {
			rules = append(rules, rule(name, x.when, answer{action: x.action}))
		}
	default:
		if got := deny(a, b, name); !got.equal(fallback) {
			rules = append(rules, rule(name, nil, got))
		}
	}
	return rules, nil
}

// deny returns the answer for a call that is not permitted.
func deny(a, b profile, name string) answer {
	x, y := a.answer(name), b.answer(name)
	switch {
	case x.permits() && y.permits(): // each denies some arguments
		return answer{action: specs.ActErrno}
	case x.permits():
		return y
	case y.permits():
		return x
	case a.calls[name] == nil && y.action == x.action: // the rule, rather than the default
		return y
	}
	return stricter(x, y)
}

// answer returns the profile's answer to a call without regard to conditions.
func (p profile) answer(name string) answer {
	if c := p.calls[name]; c != nil && c.denied != nil {
		return *c.denied
	}
	return p.fallback
}

// permitted returns the conditions under which the profile permits a call.
func (p profile) permitted(name string) ([]alternative, error) {
	var out []alternative
	c := p.calls[name]
	if p.fallback.permits() {
		out = []alternative{{action: p.fallback.action}}
	}
	if c == nil {
		return out, nil
	}
	if c.denied != nil {
		return nil, nil
	}
	out = append(out, c.permits...)
	for _, d := range c.denies {
		var not []alternative
		for _, arg := range d.when {
			n, ok := negate(arg)
			if !ok {
				return nil, fmt.Errorf("its conditions cannot be inverted: %w", errdefs.ErrInvalidArgument)
			}
			for _, x := range n {
				not = append(not, alternative{condition{x}, specs.ActAllow})
			}
		}
		var err error
		if out, err = conjoin(out, not); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// conjoin returns the conjunctions of each alternative of a with each one of b.
func conjoin(a, b []alternative) (out []alternative, err error) {
	for _, x := range a {
		for _, y := range b {
			when, possible, err := join(x.when, y.when)
			if err != nil {
				return nil, err
			}
			if !possible {
				continue
			}
			one := alternative{when, x.action}
			if y.action == specs.ActLog {
				one.action = y.action
			}
			if !slices.ContainsFunc(out, func(o alternative) bool { return o.action == one.action && slices.Equal(o.when, one.when) }) {
				out = append(out, one)
			}
			if len(out) > maxAlternatives {
				return nil, fmt.Errorf("more than %d combinations of conditions: %w", maxAlternatives, errdefs.ErrInvalidArgument)
			}
		}
	}
	return out, nil
}

// join returns a condition that holds where both do, and whether it can hold at all.
func join(a, b condition) (out condition, possible bool, err error) {
	out = slices.Clone(a)
	for _, y := range b {
		i := slices.IndexFunc(out, func(x specs.LinuxSeccompArg) bool { return x.Index == y.Index })
		if i < 0 {
			out = append(out, y)
			continue
		}
		x, possible, ok := joinArgs(out[i], y)
		switch {
		case !ok:
			return nil, false, fmt.Errorf("the conditions on its argument %d cannot be combined: %w", y.Index, errdefs.ErrInvalidArgument)
		case !possible:
			return nil, false, nil
		}
		out[i] = x
	}
	slices.SortFunc(out, func(x, y specs.LinuxSeccompArg) int { return int(x.Index) - int(y.Index) })
	return out, true, nil
}

// joinArgs returns one condition that holds where both do. ok is false if there is none.
func joinArgs(x, y specs.LinuxSeccompArg) (out specs.LinuxSeccompArg, possible, ok bool) {
	if y.Op == specs.OpEqualTo {
		x, y = y, x
	}
	switch {
	case x == y:
		return x, true, true
	case x.Op == specs.OpEqualTo:
		return x, holds(y, x.Value), true
	case x.Op == specs.OpMaskedEqual && y.Op == specs.OpMaskedEqual:
		both := x.Value & y.Value
		out = specs.LinuxSeccompArg{Index: x.Index, Op: x.Op, Value: x.Value | y.Value, ValueTwo: x.ValueTwo | y.ValueTwo}
		return out, x.ValueTwo&both == y.ValueTwo&both, true
	case x.Op == specs.OpMaskedEqual || y.Op == specs.OpMaskedEqual:
		return x, false, false
	}
	a, b := spanOf(x), spanOf(y)
	switch {
	case x.Op == specs.OpNotEqual && y.Op == specs.OpNotEqual: // a span only if one of the values is the first or the last
		if a, ok = a.without(x.Value); ok {
			a, ok = a.without(y.Value)
		} else if a, ok = b.without(y.Value); ok {
			a, ok = a.without(x.Value)
		}
	case x.Op == specs.OpNotEqual:
		a, ok = b.without(x.Value)
	case y.Op == specs.OpNotEqual:
		a, ok = a.without(y.Value)
	default:
		a, ok = span{max(a.from, b.from), min(a.to, b.to)}, true
	}
	if !ok {
		return x, false, false
	}
	out, ok = a.condition(x.Index)
	return out, a.from <= a.to, ok
}

// span has the values from one to another, both included. It is empty if from is above to.
type span struct{ from, to uint64 }

// spanOf returns the values that fulfil a condition with another operator than OpMaskedEqual and OpNotEqual.
func spanOf(c specs.LinuxSeccompArg) span {
	switch {
	case c.Op == specs.OpEqualTo:
		return span{c.Value, c.Value}
	case c.Op == specs.OpLessThan && c.Value == 0, c.Op == specs.OpGreaterThan && c.Value == math.MaxUint64:
		return span{1, 0}
	case c.Op == specs.OpLessThan:
		return span{0, c.Value - 1}
	case c.Op == specs.OpLessEqual:
		return span{0, c.Value}
	case c.Op == specs.OpGreaterThan:
		return span{c.Value + 1, math.MaxUint64}
	case c.Op == specs.OpGreaterEqual:
		return span{c.Value, math.MaxUint64}
	}
	return span{0, math.MaxUint64}
}

// without returns s without a value, if that is one span.
func (s span) without(v uint64) (span, bool) {
	switch {
	case v < s.from || v > s.to:
		return s, true
	case s.from == s.to:
		return span{1, 0}, true
	case v == s.from:
		return span{v + 1, s.to}, true
	case v == s.to:
		return span{s.from, v - 1}, true
	}
	return s, false
}

// condition returns the condition that holds for the values of s, if there is one.
func (s span) condition(index uint) (specs.LinuxSeccompArg, bool) {
	c := specs.LinuxSeccompArg{Index: index}
	switch {
	case s.from > s.to:
		return c, true // the caller drops it
	case s.from == s.to:
		c.Op, c.Value = specs.OpEqualTo, s.from
	case s.from == 0:
		c.Op, c.Value = specs.OpLessEqual, s.to
	case s.to == math.MaxUint64:
		c.Op, c.Value = specs.OpGreaterEqual, s.from
	default:
		return c, false
	}
	return c, true
}

// holds reports whether a condition holds for a value.
func holds(c specs.LinuxSeccompArg, v uint64) bool {
	switch c.Op {
	case specs.OpEqualTo:
		return v == c.Value
	case specs.OpNotEqual:
		return v != c.Value
	case specs.OpLessThan:
		return v < c.Value
	case specs.OpLessEqual:
		return v <= c.Value
	case specs.OpGreaterThan:
		return v > c.Value
	case specs.OpGreaterEqual:
		return v >= c.Value
	case specs.OpMaskedEqual:
		return v&c.Value == c.ValueTwo
	}
	return false
}

// maxNegatedBits bounds the alternatives of a negated mask.
const maxNegatedBits = 8

// negate returns the negation of c as alternatives.
func negate(c specs.LinuxSeccompArg) ([]specs.LinuxSeccompArg, bool) {
	inverse := map[specs.LinuxSeccompOperator]specs.LinuxSeccompOperator{
		specs.OpEqualTo: specs.OpNotEqual, specs.OpNotEqual: specs.OpEqualTo, specs.OpLessThan: specs.OpGreaterEqual,
		specs.OpGreaterEqual: specs.OpLessThan, specs.OpLessEqual: specs.OpGreaterThan, specs.OpGreaterThan: specs.OpLessEqual,
	}
	if op, ok := inverse[c.Op]; ok {
		c.Op = op
		return []specs.LinuxSeccompArg{c}, true
	}
	if c.ValueTwo&^c.Value != 0 || bits.OnesCount64(c.Value) > maxNegatedBits {
		return nil, false
	}
	var out []specs.LinuxSeccompArg
	for bit := range uint(64) { // one of the bits differs
		if m := uint64(1) << bit; c.Value&m != 0 {
			out = append(out, specs.LinuxSeccompArg{Index: c.Index, Op: c.Op, Value: m, ValueTwo: m &^ c.ValueTwo})
		}
	}
	return out, true
}

// read sorts the rules of a profile by system call.
func read(s *specs.LinuxSeccomp) (profile, error) {
	p := profile{fallback: answer{s.DefaultAction, s.DefaultErrnoRet}, calls: map[string]*call{}}
	if s.ListenerPath != "" {
		return p, fmt.Errorf("listenerPath: %w", errdefs.ErrInvalidArgument)
	}
	if !slices.Contains(strictness, s.DefaultAction) {
		return p, fmt.Errorf("action %q: %w", s.DefaultAction, errdefs.ErrInvalidArgument)
	}
	for _, r := range s.Syscalls {
		if !slices.Contains(strictness, r.Action) {
			return p, fmt.Errorf("action %q: %w", r.Action, errdefs.ErrInvalidArgument)
		}
		when, err := conditions(r.Args)
		if err != nil {
			return p, err
		}
		for _, name := range r.Names {
			if p.calls[name] == nil {
				p.calls[name] = &call{}
			}
			p.calls[name].add(answer{r.Action, r.ErrnoRet}, when)
		}
	}
	return p, nil
}

// add adds a rule with alternative conditions.
func (c *call) add(a answer, when []condition) {
	for _, w := range when {
		switch {
		case a.permits():
			c.permits = append(c.permits, alternative{w, a.action})
		case len(w) > 0:
			c.denies = append(c.denies, denial{w, a})
		case c.denied == nil:
			c.denied = &a
		default:
			*c.denied = stricter(*c.denied, a)
		}
	}
}

// conditions returns the alternatives of a rule. As for runc and our native runtime, several conditions on one argument
// are alternatives.
func conditions(args []specs.LinuxSeccompArg) (out []condition, err error) {
	twice := false
	for i, x := range args {
		if x.Index > 5 || !known(x.Op) {
			return nil, fmt.Errorf("condition on argument %d with operator %q: %w", x.Index, x.Op, errdefs.ErrInvalidArgument)
		}
		twice = twice || slices.ContainsFunc(args[:i], func(o specs.LinuxSeccompArg) bool { return o.Index == x.Index })
	}
	if !twice {
		sorted, _, err := join(nil, args)
		return []condition{sorted}, err
	}
	for _, x := range args {
		out = append(out, condition{x})
	}
	return out, nil
}

func known(op specs.LinuxSeccompOperator) bool {
	switch op {
	case specs.OpEqualTo, specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpGreaterThan, specs.OpGreaterEqual, specs.OpMaskedEqual:
		return true
	}
	return false
}

// flags returns the flags of an intersection: a flag that permits more needs both profiles.
func flags(a, b []specs.LinuxSeccompFlag) []specs.LinuxSeccompFlag {
	var out []specs.LinuxSeccompFlag
	for _, f := range slices.Concat(a, b) {
		common := slices.Contains(a, f) && slices.Contains(b, f)
		if slices.Contains(out, f) || f == specs.LinuxSeccompFlagSpecAllow && !common {
			continue
		}
		out = append(out, f)
	}
	return out
}

// architectures returns those of both profiles. A profile without any has the node's own.
func architectures(a, b []specs.Arch) ([]specs.Arch, error) {
	if len(a) == 0 || len(b) == 0 {
		return slices.Concat(a, b), nil
	}
	out := slices.DeleteFunc(slices.Clone(a), func(x specs.Arch) bool { return !slices.Contains(b, x) })
	if len(out) == 0 {
		return nil, fmt.Errorf("the profiles have no architecture in common: %w", errdefs.ErrInvalidArgument)
	}
	return out, nil
}

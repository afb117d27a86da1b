package core

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// Trace has the durations of the parts of a start. It is kept with an object's record, which is
// encoded with every change of the object, so it is a text that costs little to extend and to
// encode:
//
//	VERB@MICROSECONDS[:OWNER] {NAME=MICROSECONDS} [#BYTES]
//
// for each verb that took part, with blanks between them. The first number is the time at which the
// verb began, since 1970; OWNER is the caller, if that need not be the object's owner.
type Trace string

// maxTrace bounds a trace. The longest ones have four verbs and less than forty stages.
const maxTrace = 2 << 10

// TracedVerb is a verb's part of a trace.
type TracedVerb struct {
	Verb   string
	At     time.Time // its beginning
	By     Owner     // the caller, if it is not the object's owner
	Stages []TracedStage
	Bytes  int64 // bytes that a pull fetched
}

// Took returns how long the stages took together.
func (v *TracedVerb) Took() (sum time.Duration) {
	for _, s := range v.Stages {
		sum += s.Took
	}
	return sum
}

// TracedStage is one stage of a verb.
type TracedStage struct {
	Name string
	Took time.Duration
}

// AppendVerb begins a verb in b, which is a Trace.
func AppendVerb(b []byte, verb string, at time.Time) []byte {
	b = append(blank(b), verb...)
	return strconv.AppendInt(append(b, '@'), at.UnixMicro(), 10)
}

// AppendStage adds a stage to the last verb in b.
func AppendStage(b []byte, name string, took time.Duration) []byte {
	b = append(blank(b), name...)
	return strconv.AppendInt(append(b, '='), took.Microseconds(), 10)
}

func blank(b []byte) []byte {
	if len(b) > 0 {
		b = append(b, ' ')
	}
	return b
}

// Trace returns the verb as a trace.
func (v *TracedVerb) Trace() Trace {
	b := AppendVerb(nil, v.Verb, v.At)
	if v.By != "" {
		b = append(append(b, ':'), v.By...)
	}
	for _, s := range v.Stages {
		b = AppendStage(b, s.Name, s.Took)
	}
	if v.Bytes > 0 {
		b = strconv.AppendInt(append(blank(b), '#'), v.Bytes, 10)
	}
	return Trace(b)
}

// With returns t followed by other, as long as that is not too long.
func (t Trace) With(other Trace) Trace {
	if t == "" || other == "" || len(t)+len(other) >= maxTrace {
		return t + other[:min(len(other), max(0, maxTrace-len(t)))]
	}
	return t + " " + other
}

// Verbs returns the parts of a trace in their order. Words that are none of a trace's are left
// out.
func (t Trace) Verbs() (all []TracedVerb) {
	for word := range strings.FieldsSeq(string(t)) {
		if verb, rest, ok := strings.Cut(word, "@"); ok {
			at, by, _ := strings.Cut(rest, ":")
			if n, err := strconv.ParseInt(at, 10, 64); err == nil && n >= 0 {
				all = append(all, TracedVerb{Verb: verb, At: time.UnixMicro(n), By: Owner(by)})
			}
			continue
		}
		if len(all) == 0 {
			continue
		}
		last := &all[len(all)-1]
		if size, ok := strings.CutPrefix(word, "#"); ok {
			if n, err := strconv.ParseInt(size, 10, 64); err == nil && n >= 0 {
				last.Bytes = n
			}
			continue
		}
		name, took, _ := strings.Cut(word, "=")
		if n, err := strconv.ParseInt(took, 10, 64); err == nil && n >= 0 && n <= maxMicros {
			last.Stages = append(last.Stages, TracedStage{name, time.Duration(n) * time.Microsecond})
		}
	}
	return all
}

// maxMicros is the longest duration that is taken from a trace: a year.
const maxMicros = 366 * 24 * int64(time.Hour/time.Microsecond)

// Verb returns the last part of the trace that is of one of these verbs, or nil.
func (t Trace) Verb(names ...string) *TracedVerb {
	all := t.Verbs()
	for i := range slices.Backward(all) {
		if slices.Contains(names, all[i].Verb) {
			return &all[i]
		}
	}
	return nil
}

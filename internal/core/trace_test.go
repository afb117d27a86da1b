package core

import (
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestATraceIsReadAsItWasWritten(t *testing.T) {
	at := time.UnixMicro(1_732_371_281_123_456)
	pull := TracedVerb{Verb: "pull", At: at, By: "cri", Stages: []TracedStage{{"resolve", 1200 * time.Microsecond}, {"fetch", time.Hour}}, Bytes: 42}
	b := AppendVerb(nil, "create", at.Add(time.Second))
	b = AppendStage(AppendStage(b, "root", 356*time.Microsecond), "spec", 0)
	start := AppendStage(AppendVerb(nil, "start", at.Add(2*time.Second)), "launch", time.Millisecond)
	trace := pull.Trace().With(Trace(b)).With(Trace(start))
	want := []TracedVerb{
		pull,
		{Verb: "create", At: at.Add(time.Second), Stages: []TracedStage{{"root", 356 * time.Microsecond}, {"spec", 0}}},
		{Verb: "start", At: at.Add(2 * time.Second), Stages: []TracedStage{{"launch", time.Millisecond}}},
	}
	if got := trace.Verbs(); !reflect.DeepEqual(got, want) {
		t.Errorf("%q is read as\n%v, want\n%v", trace, got, want)
	}
	if v := trace.Verb("create", "renew"); v == nil || v.Took() != 356*time.Microsecond {
		t.Errorf("the create is %v", v)
	}
	if v := trace.Verb("renew"); v != nil {
		t.Errorf("a verb that is not there: %v", v)
	}
}

func TestATraceStaysShort(t *testing.T) {
	var trace Trace
	for range 1000 {
		trace = trace.With(Trace(AppendStage(AppendVerb(nil, "start", time.UnixMicro(1)), "launch", time.Second)))
	}
	if len(trace) > maxTrace {
		t.Errorf("it has %d bytes, at most %d are kept", len(trace), maxTrace)
	}
	if n := len(trace.Verbs()); n < 50 {
		t.Errorf("only %d verbs are left", n)
	}
}

func TestAStrangeTraceIsReadAsFarAsItGoes(t *testing.T) {
	for _, word := range []string{"", "a=b", "@", "x@y", "x@-1", "x@1:o a=-1 b=99999999999999999999 c #-3 #x =", "a=1 x@1", strings.Repeat("@", 99)} {
		for _, v := range Trace(word).Verbs() {
			if v.Bytes != 0 || v.Took() != 0 {
				t.Errorf("%q: %v", word, v)
			}
		}
	}
}

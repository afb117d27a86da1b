// Package rego evaluates a guest's policy, by the library of Open Policy Agent. It is the
// whole of longshore-policy.
//
// No part of an agent may import it: the library is larger than an agent for guests. The
// policy and what it is asked come from outside of the machine, so the process has no
// rights, a bound on its memory and one on the time of each evaluation. Start at Main, then
// Evaluator.
package rego

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/confine"
	"github.com/longshore/longshore/internal/guest/policy"
)

const (
	// evaluationTime is how long one evaluation may take.
	evaluationTime = 10 * time.Second
	// maxMemory bounds what the process writes to, in bytes. At the end of it, it dies, and
	// what it was asked is denied.
	maxMemory = 512 << 20
	// wantedMemory is where the garbage collector begins to work harder.
	wantedMemory = 96 << 20
)

// Main answers the messages on in until there are no more. It confines the process for good.
func Main(in io.Reader, out io.Writer) error {
	if err := limit(); err != nil {
		return err
	}
	if _, err := confine.Apply(confine.Leave{}); err != nil {
		return fmt.Errorf("give up rights: %w", err)
	}
	return Serve(in, out, evaluationTime)
}

// limit bounds what the process may take of the machine.
func limit() error {
	debug.SetMemoryLimit(wantedMemory)
	for what, most := range map[int]uint64{unix.RLIMIT_DATA: maxMemory, unix.RLIMIT_CORE: 0, unix.RLIMIT_FSIZE: 0} {
		if err := unix.Setrlimit(what, &unix.Rlimit{Cur: most, Max: most}); err != nil {
			return fmt.Errorf("limit resource %d: %w", what, err)
		}
	}
	// When the machine runs out of memory, it is better without this process than without
	// the agent: then requests are denied. A kernel may refuse it.
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte("500"), 0)
	return nil
}

// Serve answers messages. An evaluation may take as long as most.
func Serve(in io.Reader, out io.Writer, most time.Duration) error {
	var e *Evaluator
	for {
		kind, body, err := policy.ReadMessage(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var answer policy.Answer
		switch {
		case kind == policy.KindPolicy:
			e, answer = load(string(body), most)
		case e == nil:
			return errors.New("a message before the policy")
		case kind == policy.KindState:
			answer = verdict(e.SetState(body))
		case kind == policy.KindQuestion:
			answer = ask(e, body)
		default:
			return fmt.Errorf("a message of kind %d", kind)
		}
		if err := policy.WriteAnswer(out, answer); err != nil {
			return err
		}
	}
}

func verdict(err error) policy.Answer {
	if err != nil {
		return policy.Answer{Reason: err.Error()}
	}
	return policy.Answer{Done: true}
}

func load(text string, most time.Duration) (*Evaluator, policy.Answer) {
	e, err := New(context.Background(), text, most)
	answer := verdict(err)
	answer.Lenient = e != nil && e.lenient
	return e, answer
}

func ask(e *Evaluator, body []byte) policy.Answer {
	request, input, err := policy.SplitQuestion(body)
	if err != nil {
		return verdict(err)
	}
	d := e.Ask(context.Background(), request, input)
	return policy.Answer{Done: d.Allowed, Reason: d.Reason, State: d.State}
}

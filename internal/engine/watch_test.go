package engine_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// script is an event log that answers each read with the next of its rounds, and after the last
// one waits for the end of the context.
type script struct {
	rounds []scriptRound
	said   []string
	cancel context.CancelFunc
}

type scriptRound struct {
	last error // of LastSeq
	seqs []uint64
	end  error // nil: the log ends without an error
}

func (s *script) say(format string, args ...any) {
	s.said = append(s.said, fmt.Sprintf(format, args...))
}

func (s *script) LastSeq(context.Context) (uint64, error) {
	if len(s.rounds) > 0 && s.rounds[0].last != nil {
		err := s.rounds[0].last
		s.rounds = s.rounds[1:]
		return 0, err
	}
	return 7, nil
}

func (s *script) Events(_ context.Context, since uint64, _ core.Filter) iter.Seq2[core.Event, error] {
	return func(yield func(core.Event, error) bool) {
		s.say("read from %d", since)
		if len(s.rounds) == 0 {
			s.cancel()
			return
		}
		r := s.rounds[0]
		s.rounds = s.rounds[1:]
		for _, seq := range r.seqs {
			if !yield(core.Event{Seq: seq}, nil) {
				return
			}
		}
		if r.end != nil {
			yield(core.Event{}, r.end)
		}
	}
}

// watch returns a Watch that records its calls in s.
func (s *script) watch() engine.Watch {
	return engine.Watch{
		List:   func(context.Context) error { s.say("list"); return nil },
		Event:  func(_ context.Context, e core.Event) error { s.say("event %d", e.Seq); return nil },
		Failed: func(err error) { s.say("failed: %v", err) },
	}
}

// TestAWatchGoesOn in all cases: after trimmed events it lists at once, after errors it lists after
// a pause, and only its context ends it.
func TestAWatchGoesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		since := uint64(3)
		s := &script{cancel: cancel, rounds: []scriptRound{
			{seqs: []uint64{4, 5}, end: fmt.Errorf("trimmed: %w", errdefs.ErrOutOfRange)},
			{seqs: []uint64{8}, end: errors.New("a broken log")},
			{last: errors.New("no last one")},
			{}, // it ends without an error
		}}
		w := s.watch()
		w.Since = &since
		if err := w.Run(ctx, s); err != nil {
			t.Error(err)
		}
		want := []string{
			"read from 3", "event 4", "event 5", // trimmed
			"list", "read from 7", "event 8", "failed: watch events: a broken log",
			"failed: watch events: no last one",
			"list", "read from 7", "failed: watch events: the log has ended: unavailable",
			"list", "read from 7",
		}
		if !slices.Equal(s.said, want) {
			t.Errorf("got\n%q, want\n%q", s.said, want)
		}
	})
}

// TestAWatchTellsItsCaller the first error, when Failed is nil.
func TestAWatchTellsItsCaller(t *testing.T) {
	cause := errors.New("no")
	for what, change := range map[string]func(w *engine.Watch, s *script){
		"the log":   func(_ *engine.Watch, s *script) { s.rounds = []scriptRound{{end: cause}} },
		"the list":  func(w *engine.Watch, _ *script) { w.List = func(context.Context) error { return cause } },
		"the event": func(w *engine.Watch, _ *script) { w.Event = func(context.Context, core.Event) error { return cause } },
		"an event that was trimmed, says the caller": func(w *engine.Watch, _ *script) {
			w.Event = func(context.Context, core.Event) error { return errors.Join(cause, errdefs.ErrOutOfRange) }
		},
	} {
		s := &script{cancel: func() {}, rounds: []scriptRound{{seqs: []uint64{8}}}}
		w := s.watch()
		w.Failed = nil
		change(&w, s)
		if err := w.Run(t.Context(), s); !errors.Is(err, cause) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

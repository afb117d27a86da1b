package stages_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/stages"
)

type observer struct{ seen []string }

func (o *observer) Stage(owner core.Owner, verb, stage string, _ time.Duration) {
	o.seen = append(o.seen, string(owner)+" "+verb+"."+stage)
}

// run runs a verb of the stages one, two and three. The stage named bad fails, and dead is the name
// that the fail point refuses.
func run(t *testing.T, bad, dead string) (calls []string, seen []string, err error) {
	t.Helper()
	o := &observer{}
	s := stages.Settings{Observer: o, Logger: slog.New(slog.DiscardHandler)}
	if dead != "" {
		s.FailPoint = func(stage string) error {
			if stage == dead {
				return errors.New("died")
			}
			return nil
		}
	}
	pl := stages.New(t.Context(), &s, "cli", "v")
	var list []stages.Stage
	for _, name := range []string{"one", "two", "three"} {
		list = append(list, stages.Stage{Name: name, Do: func(context.Context) error {
			calls = append(calls, name)
			pl.Undo.Add(name, func(context.Context) error { calls = append(calls, "undo "+name); return nil })
			if name == bad {
				return errors.New("broken")
			}
			return nil
		}})
	}
	err = pl.Run(t.Context(), list)
	return calls, o.seen, err
}

func TestAFailedStageUndoesThoseBeforeIt(t *testing.T) {
	calls, seen, err := run(t, "two", "")
	if err == nil || stages.Crashed(err) || !slices.Equal(calls, []string{"one", "two", "undo two", "undo one"}) {
		t.Errorf("calls %q, error %v", calls, err)
	}
	if !slices.Equal(seen, []string{"cli v.one"}) {
		t.Errorf("observed %q", seen)
	}
	if calls, _, err := run(t, "", ""); err != nil || !slices.Equal(calls, []string{"one", "two", "three"}) {
		t.Errorf("a verb without a failure: calls %q, error %v", calls, err)
	}
}

func TestAFailPointUndoesNothing(t *testing.T) {
	calls, _, err := run(t, "", "v.two")
	if !stages.Crashed(err) || !slices.Equal(calls, []string{"one", "two"}) {
		t.Errorf("calls %q, error %v", calls, err)
	}
}

// Package stages runs the verbs of the engine stage by stage, with a fail point after each, and undoes
// the finished stages of one that fails. Start at Pipeline.
package stages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/underway"
	"github.com/longshore/longshore/internal/span"
)

// Settings are the same for all pipelines of an engine.
type Settings struct {
	// Observer may be nil.
	Observer Observer
	// FailPoint is called after each stage with "verb.stage", in tests. An error ends the verb as if
	// the agent had died there.
	FailPoint func(stage string) error
	Logger    *slog.Logger
}

// Observer receives the engine's timings.
type Observer interface {
	// Stage reports one stage of a verb, which has just ended, and the object's owner. All three names
	// come from closed sets (see engine.Stages).
	Stage(owner core.Owner, verb, stage string, took time.Duration)
}

// Pipeline is one run of a verb's stages, with an undo stack.
type Pipeline struct {
	Owner core.Owner // the object's
	Undo  Undo

	settings *Settings
	ctx      context.Context //nolint:containedctx // for spans only
	verb     string
	last     time.Time
	trace    []byte // of verb, a core.Trace
}

// New begins a verb on an object of owner. ctx is for its spans.
func New(ctx context.Context, s *Settings, owner core.Owner, verb string) *Pipeline {
	t := time.Now()
	return &Pipeline{settings: s, ctx: ctx, Owner: owner, verb: verb, last: t, trace: core.AppendVerb(make([]byte, 0, 256), verb, t)}
}

// Trace returns the stages that have passed, with their times.
func (pl *Pipeline) Trace() core.Trace { return core.Trace(pl.trace) }

// As continues the pipeline as another verb, with the same undo stack.
func (pl *Pipeline) As(verb string) *Pipeline {
	pl.verb, pl.trace = verb, core.AppendVerb(pl.trace[:0], verb, time.Now())
	return pl
}

// Pass ends a stage: it tells the observer how long the stage took, and a fail point may end the
// verb here.
func (pl *Pipeline) Pass(stage string) error {
	t := time.Now()
	took := t.Sub(pl.last)
	if span.On() {
		span.Record(pl.ctx, pl.verb+"."+stage, pl.last, t)
	}
	pl.last, pl.trace = t, core.AppendStage(pl.trace, stage, took)
	if o := pl.settings.Observer; o != nil {
		o.Stage(pl.Owner, pl.verb, stage, took)
	}
	if pl.settings.FailPoint == nil {
		return nil
	}
	name := pl.verb + "." + stage
	if err := pl.settings.FailPoint(name); err != nil {
		return &crash{name, err}
	}
	return nil
}

// Beside starts work of a later stage in the background and returns a function that waits for its
// result. When there are fail points the work runs at once, so that nothing runs any more when a
// fail point ends the verb.
func (pl *Pipeline) Beside(do func() error) (wait func() error) {
	done := make(chan error, 1)
	work := func() { done <- do() }
	if pl.settings.FailPoint != nil {
		work()
	} else {
		go work()
	}
	return sync.OnceValue(func() error { return <-done })
}

// Stage is one step of a pipeline.
type Stage struct {
	Name string
	Do   func(ctx context.Context) error
}

// Run executes the stages in order. At the first error it undoes the finished ones.
func (pl *Pipeline) Run(ctx context.Context, list []Stage) error {
	err := pl.Forward(ctx, list)
	pl.End(ctx, err)
	return err
}

// Forward executes the stages until one fails, and undoes nothing.
func (pl *Pipeline) Forward(ctx context.Context, list []Stage) error {
	for _, s := range list {
		err := ctx.Err()
		if err == nil {
			err = s.Do(ctx)
		}
		if err == nil {
			err = pl.Pass(s.Name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// End undoes the finished stages when err is not nil, and drops the undo stack otherwise.
func (pl *Pipeline) End(ctx context.Context, err error) {
	if err != nil {
		pl.back(ctx, err)
	} else {
		pl.Undo.Release()
	}
}

// back undoes the finished stages, unless a fail point ended the verb.
func (pl *Pipeline) back(ctx context.Context, err error) {
	if Crashed(err) {
		return
	}
	ctx, cancel := underway.Cleanup(ctx)
	defer cancel()
	if uerr := pl.Undo.Unwind(ctx); uerr != nil {
		// The rest has no record. The next recovery or Reclaim removes it.
		pl.settings.Logger.WarnContext(ctx, "could not undo a failed operation completely; the next recovery or reclaim removes the rest", "verb", pl.verb, "error", uerr)
	}
}

// crash is the error that a fail point causes. The agent counts as dead, so nothing may be
// undone.
type crash struct {
	stage string
	err   error
}

func (c *crash) Error() string { return fmt.Sprintf("crashed at %s: %v", c.stage, c.err) }
func (c *crash) Unwrap() error { return c.err }

// Crashed reports whether err is, or wraps, the error of a fail point.
func Crashed(err error) bool {
	var c *crash
	return errors.As(err, &c)
}

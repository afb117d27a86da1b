package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/networks"
)

// Stages returns the names of all fail points, "verb.stage", one after each stage. For verbs that
// run as lists of stages they are read from those lists. The other verbs list theirs here, and
// pass refuses a name that is not among them.
func Stages() []string {
	var all []string
	for _, v := range verbs() {
		for _, s := range v.stages {
			all = append(all, v.name+"."+s)
		}
	}
	return all
}

// verb names a verb and its stages, in their order.
type verb struct {
	name   string
	stages []string
}

func verbs() []verb {
	var t teardown // only the stages' names are used
	names := func(stages []stage, first ...string) []string {
		for _, s := range stages {
			first = append(first, s.name)
		}
		return first
	}
	return []verb{
		{"create_sandbox", names((&sandboxBuild{}).stages())},
		{"create", names((&build{}).stages())},
		{"start", []string{"begin", "launch", "commit"}},
		{"renew", names((&renewal{}).stages())},
		{"exec", []string{"begin", "launch", "commit"}},
		{"stop", []string{"asked", "signalled", "killed", "ended"}},
		{"stop_sandbox", names(t.releaseStages(nil), "containers", "recorded")},
		{"remove", names(t.containerStages(nil), "ended")},
		{"remove_sandbox", names(t.sandboxStages(nil), "containers")},
		{"exit", []string{"begin", "recorded", "acked"}},
		{"pull", []string{"begin", "pulled", "recorded"}},
		{networks.VerbAttach, networks.Stages()[networks.VerbAttach]},
		{networks.VerbDetach, networks.Stages()[networks.VerbDetach]},
	}
}

// pipeline is one run of a verb's stages, with an undo stack.
type pipeline struct {
	e     *Engine
	owner core.Owner // the object's
	verb  string
	last  time.Time
	trace []byte // of verb, a core.Trace
	undo  undoStack
}

func (e *Engine) pipeline(owner core.Owner, verb string) *pipeline {
	t := time.Now()
	return &pipeline{e: e, owner: owner, verb: verb, last: t, trace: core.AppendVerb(make([]byte, 0, 256), verb, t)}
}

// as continues the pipeline as another verb, with the same undo stack.
func (pl *pipeline) as(verb string) *pipeline {
	pl.verb, pl.trace = verb, core.AppendVerb(pl.trace[:0], verb, time.Now())
	return pl
}

// pass ends a stage: it tells the observer how long the stage took, and a fail point may end the
// verb here.
func (pl *pipeline) pass(stage string) error {
	t := time.Now()
	took := t.Sub(pl.last)
	pl.last, pl.trace = t, core.AppendStage(pl.trace, stage, took)
	if o := pl.e.o.Observer; o != nil {
		o.Stage(pl.owner, pl.verb, stage, took)
	}
	if pl.e.o.FailPoint == nil {
		return nil
	}
	name := pl.verb + "." + stage
	if !slices.Contains(Stages(), name) {
		return fmt.Errorf("stage %s is not among Stages, so no test dies there: %w", name, errdefs.ErrInternal)
	}
	if err := pl.e.o.FailPoint(name); err != nil {
		return &crash{name, err}
	}
	return nil
}

// beside starts work of a later stage in the background and returns a function that waits for its
// result. When there are fail points the work runs at once, so that nothing runs any more when a
// fail point ends the verb.
func (pl *pipeline) beside(do func() error) (wait func() error) {
	done := make(chan error, 1)
	work := func() { done <- do() }
	if pl.e.o.FailPoint != nil {
		work()
	} else {
		go work()
	}
	return sync.OnceValue(func() error { return <-done })
}

// stage is one step of a pipeline.
type stage struct {
	name string
	do   func(ctx context.Context) error
}

// run executes the stages in order. At the first error it undoes the finished ones.
func (pl *pipeline) run(ctx context.Context, stages []stage) error {
	err := pl.forward(ctx, stages)
	pl.end(ctx, err)
	return err
}

// forward executes the stages until one fails, and undoes nothing.
func (pl *pipeline) forward(ctx context.Context, stages []stage) error {
	for _, s := range stages {
		err := ctx.Err()
		if err == nil {
			err = s.do(ctx)
		}
		if err == nil {
			err = pl.pass(s.name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// end undoes the finished stages when err is not nil, and drops the undo stack otherwise.
func (pl *pipeline) end(ctx context.Context, err error) {
	if err != nil {
		pl.back(ctx, err)
	} else {
		pl.undo.release()
	}
}

// back undoes the finished stages, unless a fail point ended the verb.
func (pl *pipeline) back(ctx context.Context, err error) {
	if crashed(err) {
		return
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if uerr := pl.undo.unwind(ctx); uerr != nil {
		// The rest has no record. The next recovery or Reclaim removes it.
		pl.e.o.Logger.WarnContext(ctx, "could not undo a failed operation completely; the next recovery or reclaim removes what is left", "verb", pl.verb, "error", uerr)
	}
}

// notOurs replaces the class AlreadyExists in a port's error, because a create that returns it
// also returns the first object.
func notOurs(err error) error {
	if errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("%v: %w", err, errdefs.ErrFailedPrecondition) //nolint:errorlint // the chain must not contain AlreadyExists
	}
	return err
}

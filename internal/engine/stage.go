package engine

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/containerd/errdefs"
)

// Stages names the fail points, "verb.stage" each: one after each stage. Those of
// the straight lines are read from them; the other verbs name theirs here, and
// pass refuses one that does not stand here.
func Stages() []string {
	var all []string
	for _, v := range verbs() {
		for _, s := range v.stages {
			all = append(all, v.name+"."+s)
		}
	}
	return all
}

// verb is a verb with the names of its stages, in the order in which it passes
// them.
type verb struct {
	name   string
	stages []string
}

func verbs() []verb {
	var e *Engine // the stages are named and not run
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
		{"exec", []string{"begin", "launch", "commit"}},
		{"stop", []string{"asked", "signalled", "killed", "ended"}},
		{"stop_sandbox", names(releaseStages(e, nil), "containers", "recorded")},
		{"remove", names(containerTeardown(e, nil, change{}), "ended")},
		{"remove_sandbox", names(sandboxTeardown(e, nil, change{}), "containers")},
		{"exit", []string{"begin", "recorded", "acked"}},
		{"pull", []string{"begin", "pulled", "recorded"}},
	}
}

// pipeline is one run of a verb's stages.
type pipeline struct {
	e    *Engine
	verb string
	last time.Time
	undo undoStack
}

func (e *Engine) pipeline(verb string) *pipeline {
	return &pipeline{e: e, verb: verb, last: time.Now()}
}

// as goes on as the line of another verb, with the same way back.
func (l *pipeline) as(verb string) *pipeline {
	l.verb = verb
	return l
}

// pass ends a stage: it tells the observer how long the stage took, and a fail point may
// end the verb here.
func (l *pipeline) pass(stage string) error {
	if o := l.e.o.Observer; o != nil {
		t := time.Now()
		o.Stage(l.verb, stage, t.Sub(l.last))
		l.last = t
	}
	if l.e.o.FailPoint == nil {
		return nil
	}
	name := l.verb + "." + stage
	if !slices.Contains(Stages(), name) {
		return fmt.Errorf("stage %s is not among Stages, so no test dies there: %w", name, errdefs.ErrInternal)
	}
	if err := l.e.o.FailPoint(name); err != nil {
		return &crash{name, err}
	}
	return nil
}

// beside starts work of a later stage in the background and returns a function that waits
// for its result. With fail points it runs at once, so that nothing runs when one ends the
// verb.
func (l *pipeline) beside(do func() error) (wait func() error) {
	done := make(chan error, 1)
	work := func() { done <- do() }
	if l.e.o.FailPoint != nil {
		work()
	} else {
		go work()
	}
	return sync.OnceValue(func() error { return <-done })
}

// stage is one step of a straight line.
type stage struct {
	name string
	do   func(ctx context.Context) error
}

// run executes the stages in order. At the first error it undoes the finished ones.
func (l *pipeline) run(ctx context.Context, stages []stage) error {
	err := l.forward(ctx, stages)
	l.end(ctx, err)
	return err
}

// forward executes the stages until one fails, and undoes nothing.
func (l *pipeline) forward(ctx context.Context, stages []stage) error {
	for _, s := range stages {
		err := ctx.Err()
		if err == nil {
			err = s.do(ctx)
		}
		if err == nil {
			err = l.pass(s.name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// end undoes the finished stages when err is not nil.
func (l *pipeline) end(ctx context.Context, err error) {
	if err != nil {
		l.back(ctx, err)
	} else {
		l.undo.release()
	}
}

// back undoes the finished stages, unless a fail point ended the verb.
func (l *pipeline) back(ctx context.Context, err error) {
	if crashed(err) {
		return
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if uerr := l.undo.unwind(ctx); uerr != nil {
		// What is left behind has no record now; the next recovery or
		// Reclaim removes it.
		l.e.o.Logger.WarnContext(ctx, "could not undo a failed operation completely; the next recovery or reclaim removes what is left", "verb", l.verb, "error", uerr)
	}
}

// notOurs takes the class AlreadyExists off an error of a port: from a create
// it would say that the first object is in the answer.
func notOurs(err error) error {
	if errdefs.IsAlreadyExists(err) {
		return fmt.Errorf("%v: %w", err, errdefs.ErrFailedPrecondition) //nolint:errorlint // the chain is what must go
	}
	return err
}

package engine

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/undo"
)

// Stages names the fail points, "verb.stage" each: one after each stage.
func Stages() []string {
	var all []string
	for _, v := range []struct {
		verb   string
		stages []string
	}{
		{"create_sandbox", []string{"reserve", "pin", "network", "files", "cgroup", "init", "admit", "commit"}},
		{"create", []string{"reserve", "root", "volumes", "images", "spec", "own", "adjust", "cgroup", "launch", "commit"}},
		{"start", []string{"begin", "launch", "commit"}},
		{"exec", []string{"begin", "launch", "commit"}},
		{"stop", []string{"asked", "signalled", "killed", "ended"}},
		{"stop_sandbox", []string{"containers", "recorded", "network", "unpin", "done"}},
		{"remove", []string{"ended", "runtime", "unmount", "discard", "cgroup", "bundle", "record"}},
		{"remove_sandbox", []string{"containers", "runtime", "cgroup", "files", "record"}},
		{"exit", []string{"begin", "recorded", "acked"}},
		{"pull", []string{"begin", "pulled", "recorded"}},
	} {
		for _, s := range v.stages {
			all = append(all, v.verb+"."+s)
		}
	}
	return all
}

// line is one run of a verb's stages.
type line struct {
	e    *Engine
	verb string
	last time.Time
	undo undo.Stack
}

func (e *Engine) line(verb string) *line { return &line{e: e, verb: verb, last: time.Now()} }

// pass says that a stage is done; a fail point may end the verb here.
func (l *line) pass(stage string) error {
	if o := l.e.o.Observer; o != nil {
		t := time.Now()
		o.Stage(l.verb, stage, t.Sub(l.last))
		l.last = t
	}
	if l.e.o.FailPoint == nil {
		return nil
	}
	name := l.verb + "." + stage
	if err := l.e.o.FailPoint(name); err != nil {
		return &crash{name, err}
	}
	return nil
}

// beside begins work of a later stage; what it returns waits for it. Where a
// fail point may end the verb nothing goes on beside the stages.
func (l *line) beside(do func() error) (wait func() error) {
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

// run goes through the stages; the first error takes back what was done.
func (l *line) run(ctx context.Context, stages []stage) error {
	for _, s := range stages {
		err := ctx.Err()
		if err == nil {
			err = s.do(ctx)
		}
		if err == nil {
			err = l.pass(s.name)
		}
		if err != nil {
			l.back(ctx, err)
			return err
		}
	}
	l.undo.Release()
	return nil
}

// back unwinds, unless the process counts as dead.
func (l *line) back(ctx context.Context, err error) {
	if crashed(err) {
		return
	}
	ctx, cancel := detached(ctx)
	defer cancel()
	if uerr := l.undo.Unwind(ctx); uerr != nil {
		// What is left behind has no record now; the next recovery or
		// Reclaim removes it.
		l.e.o.Logger.WarnContext(ctx, "a failed operation was not wholly undone", "verb", l.verb, "error", uerr)
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

package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/audit"
)

// Violation is one way in which records, events and node do not agree.
type Violation struct {
	Kind   string // unfinished, lost, missing, orphan, events
	Object string // "container 3f…", "cgroup /longshore/…"
	Detail string
}

func (v Violation) String() string { return v.Kind + " " + v.Object + ": " + v.Detail }

// Check holds the invariants against the node through the ports, and the event
// log against itself. It may run while others work: what is in somebody's hands
// is left out, and only what stands after a second look is told.
func (e *Engine) Check(ctx context.Context) ([]Violation, error) {
	found, err := e.settled(ctx)
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	var list []Violation
	for _, f := range found {
		list = append(list, f.Violation)
	}
	var events []audit.Fault
	err = e.o.Store.View(func(tx core.Tx) (err error) {
		events, err = audit.Events(tx)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	for _, f := range events {
		list = append(list, Violation{"events", f.Object, f.Detail})
	}
	return list, nil
}

// Reclaim removes what no record names: what the failed undo of an operation
// has left. It returns what it removed.
func (e *Engine) Reclaim(ctx context.Context) ([]Violation, error) {
	found, err := e.settled(ctx)
	if err != nil {
		return nil, fmt.Errorf("reclaim: %w", err)
	}
	var done []Violation
	var errs []error
	for _, f := range found {
		if !f.orphan {
			continue
		}
		if err := f.repair(ctx); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("reclaim %s: %w", f.Object, err))
			continue
		}
		done = append(done, f.Violation)
	}
	return done, errors.Join(errs...)
}

// settled finds the disagreements that two surveys tell and nobody is at work
// on.
func (e *Engine) settled(ctx context.Context) ([]finding, error) {
	var last []finding
	for i := range 2 {
		s, err := e.survey(ctx)
		if err != nil {
			return nil, err
		}
		found := slices.DeleteFunc(s.compare(), func(f finding) bool {
			if f.sandbox != "" && e.sandboxes.Held(f.sandbox) || f.ref != (core.Ref{}) && e.launches.Held(f.ref) {
				return true
			}
			return i > 0 && !slices.ContainsFunc(last, func(l finding) bool { return l.Violation == f.Violation })
		})
		if len(found) == 0 {
			return nil, nil
		}
		last = found
	}
	return last, nil
}

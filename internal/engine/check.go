package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/audit"
	"github.com/longshore/longshore/internal/engine/survey"
)

// Violation is one disagreement between records, events and node.
type Violation = survey.Violation

// Check asserts the invariants: it compares the records with the node, through the ports, and the
// event log with itself. It may run while verbs run: it leaves out objects that a verb is changing,
// and reports only differences that a second survey confirms.
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
		list = append(list, Violation{Kind: "events", Object: f.Object, Detail: f.Detail})
	}
	if st, err := e.o.Supervisor.Status(ctx); err == nil && st.Exposed() != "" {
		list = append(list, Violation{Kind: "redundancy", Object: "keeper", Detail: st.Exposed()})
	}
	return list, nil
}

// Reclaim removes everything without a record, such as the rest of a failed undo. It returns a list
// of the removed things.
func (e *Engine) Reclaim(ctx context.Context) ([]Violation, error) {
	found, err := e.settled(ctx)
	if err != nil {
		return nil, fmt.Errorf("reclaim: %w", err)
	}
	var done []Violation
	var errs []error
	for _, f := range found {
		if !f.Orphan {
			continue
		}
		if err := f.Repair(ctx); err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("reclaim %s: %w", f.Object, err))
			continue
		}
		done = append(done, f.Violation)
	}
	return done, errors.Join(errs...)
}

// settled returns the disagreements that two surveys find and that are in objects which no verb
// is at work on.
func (e *Engine) settled(ctx context.Context) ([]survey.Finding, error) {
	var last []survey.Finding
	for i := range 2 {
		s, err := e.node().Take(ctx)
		if err != nil {
			return nil, err
		}
		found := slices.DeleteFunc(s.Compare(), func(f survey.Finding) bool {
			if f.Sandbox != "" && e.sandboxes.Held(f.Sandbox) || f.Ref != (core.Ref{}) && e.launches.Held(f.Ref) {
				return true
			}
			return i > 0 && !slices.ContainsFunc(last, func(l survey.Finding) bool { return l.Violation == f.Violation })
		})
		if len(found) == 0 {
			return nil, nil
		}
		last = found
	}
	return last, nil
}

package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
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
	events, err := e.checkEvents()
	if err != nil {
		return nil, fmt.Errorf("check: %w", err)
	}
	return append(list, events...), nil
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
			if f.sandbox != "" && e.sandboxes.Held(f.sandbox) || f.ref != (core.Ref{}) && e.births.Held(f.ref) {
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

// checkEvents walks the log that is kept: no gap, one exit for each start, and
// nothing of an object after its removal.
func (e *Engine) checkEvents() ([]Violation, error) {
	w := eventWalk{started: map[core.Ref]bool{}, ended: map[core.Ref]bool{}, gone: map[core.ID]bool{}}
	err := e.o.Store.View(func(tx core.Tx) error {
		since, err := oldest(tx)
		if err != nil {
			return err
		}
		w.next = since + 1
		w.whole = since == 0
		for ev, err := range tx.Events(since) {
			if err != nil {
				return err
			}
			w.step(&ev)
		}
		for c, err := range tx.Containers().All("") {
			if err != nil {
				return err
			}
			w.record(&c)
		}
		return nil
	})
	return w.found, err
}

// oldest finds the Seq before the oldest event kept, by halving.
func oldest(tx core.Tx) (uint64, error) {
	lo, hi := uint64(0), tx.LastSeq()
	for lo < hi {
		mid := (lo + hi) / 2
		var err error
		for _, err = range tx.Events(mid) {
			break
		}
		switch {
		case errdefs.IsOutOfRange(err):
			lo = mid + 1
		case err != nil:
			return 0, err
		default:
			hi = mid
		}
	}
	return lo, nil
}

type eventWalk struct {
	next           uint64
	whole          bool // the log is kept from its first event on
	started, ended map[core.Ref]bool
	gone           map[core.ID]bool
	found          []Violation
}

func (w *eventWalk) bad(ev *core.Event, detail string) {
	w.found = append(w.found, Violation{"events", fmt.Sprintf("event %d", ev.Seq), detail})
}

func (w *eventWalk) step(ev *core.Event) {
	if ev.Seq != w.next {
		w.bad(ev, fmt.Sprintf("it stands where %d should", w.next))
	}
	w.next = ev.Seq + 1
	id := ev.Container
	if id == "" {
		id = ev.Sandbox
	}
	if id == "" {
		return
	}
	if w.gone[id] {
		w.bad(ev, fmt.Sprintf("%s of %s, which was removed before", ev.Kind, id))
	}
	ref := core.Ref{Container: ev.Container, Process: ev.Process}
	switch ev.Kind {
	case core.EventContainerStarted, core.EventProcessStarted:
		if w.started[ref] {
			w.bad(ev, fmt.Sprintf("process %v started twice", ref))
		}
		w.started[ref] = true
	case core.EventContainerExited, core.EventProcessExited:
		if w.ended[ref] {
			w.bad(ev, fmt.Sprintf("process %v ended twice", ref))
		}
		w.ended[ref] = true
	case core.EventContainerRemoved:
		w.removed(ev)
	case core.EventSandboxRemoved:
		w.gone[id] = true
	default:
	}
}

func (w *eventWalk) removed(ev *core.Event) {
	w.gone[ev.Container] = true
	for ref := range w.started {
		if ref.Container == ev.Container && !w.ended[ref] {
			w.bad(ev, fmt.Sprintf("process %v started and never ended", ref))
		}
		if ref.Container == ev.Container {
			delete(w.started, ref)
			delete(w.ended, ref)
		}
	}
}

// record holds the log against a record that is still there.
func (w *eventWalk) record(c *core.Container) {
	if !w.whole {
		return
	}
	for _, p := range append([]core.Process{c.Main}, c.Execs...) {
		ref := core.Ref{Container: c.ID, Process: p.ID}
		if p.Autopsy != nil && !w.ended[ref] {
			w.found = append(w.found, Violation{"events", "container " + string(c.ID), fmt.Sprintf("process %q has ended on record and not in the log", p.ID)})
		}
		if p.Autopsy == nil && w.ended[ref] {
			w.found = append(w.found, Violation{"events", "container " + string(c.ID), fmt.Sprintf("process %q has ended in the log and not on record", p.ID)})
		}
	}
}

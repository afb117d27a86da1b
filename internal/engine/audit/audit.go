// Package audit checks the event log for consistency, in itself and with the records. It reads
// one transaction and knows no engine. Start at Events.
package audit

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Fault is one inconsistency.
type Fault struct{ Object, Detail string }

// Events checks the events that are kept: no gap, one exit for each start, no event of an object
// after its removal, and the same ends as in the records.
func Events(tx core.Tx) ([]Fault, error) {
	w := walk{started: map[core.Ref]bool{}, ended: map[core.Ref]bool{}, gone: map[core.ID]bool{}}
	since, err := Oldest(tx)
	if err != nil {
		return nil, err
	}
	w.next, w.whole = since+1, since == 0
	for ev, err := range tx.Events(since) {
		if err != nil {
			return nil, err
		}
		w.step(&ev)
	}
	for c, err := range tx.Containers().All("") {
		if err != nil {
			return nil, err
		}
		w.record(&c)
	}
	return w.found, nil
}

// Oldest returns the Seq before the oldest event that is kept, by bisection.
func Oldest(tx core.Tx) (uint64, error) {
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

type walk struct {
	next           uint64
	whole          bool // the log is complete from its first event on
	started, ended map[core.Ref]bool
	gone           map[core.ID]bool
	found          []Fault
}

func (w *walk) bad(ev *core.Event, detail string) {
	w.found = append(w.found, Fault{fmt.Sprintf("event %d", ev.Seq), detail})
}

func (w *walk) step(ev *core.Event) {
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
	case core.EventContainerCreated:
		if w.started[ref] && !w.ended[ref] {
			w.bad(ev, fmt.Sprintf("container %s was created again while it ran", id))
		}
		delete(w.started, ref)
		delete(w.ended, ref)
	case core.EventContainerStarted, core.EventProcessStarted:
		// When an exec has ended, another one may get its ID. A main process has a successor only
		// if its container was renewed.
		if w.started[ref] && (ref.Process == core.Main || !w.ended[ref]) {
			w.bad(ev, fmt.Sprintf("process %v started twice", ref))
		}
		w.started[ref] = true
		delete(w.ended, ref)
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

func (w *walk) removed(ev *core.Event) {
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

// record compares the log with a record that still exists.
func (w *walk) record(c *core.Container) {
	if !w.whole {
		return
	}
	for _, p := range append([]core.Process{c.Main}, c.Execs...) {
		ref := core.Ref{Container: c.ID, Process: p.ID}
		if never := c.Resting && p.ID == core.Main; p.Autopsy != nil && !w.ended[ref] && !never {
			w.found = append(w.found, Fault{"container " + string(c.ID), fmt.Sprintf("process %q has ended on record and not in the log", p.ID)})
		}
		if p.Autopsy == nil && w.ended[ref] {
			w.found = append(w.found, Fault{"container " + string(c.ID), fmt.Sprintf("process %q has ended in the log and not on record", p.ID)})
		}
	}
}

// Package quiet holds the execs that have no record (those of health probes) and those that their callers have left.
package quiet

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/underway"
)

// Execs holds the processes that were started with ProcessConfig.Quiet and are not removed
// yet, and has the verbs on them. They have no record: the recovery of the next agent kills them.
type Execs struct {
	Records    scope.Records
	Supervisor core.Supervisor
	Waits      *underway.Waits
	Logger     *slog.Logger
	// DropExec removes an ended process from its container's record.
	DropExec func(core.Ref) error
	// abandoned has the ephemeral processes of an earlier agent's callers, and quiet ones that
	// their callers could not remove: core.Ref → true.
	abandoned sync.Map

	mu sync.Mutex // guards of
	of map[core.ID]map[core.ProcessID]core.Process
}

func (q *Execs) put(container core.ID, p core.Process) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.of == nil {
		q.of = map[core.ID]map[core.ProcessID]core.Process{}
	}
	if q.of[container] == nil {
		q.of[container] = map[core.ProcessID]core.Process{}
	}
	q.of[container][p.ID] = p
}

// Get returns a copy of a process; nil when there is none.
func (q *Execs) Get(ref core.Ref) *core.Process {
	q.mu.Lock()
	defer q.mu.Unlock()
	p, ok := q.of[ref.Container][ref.Process]
	if !ok {
		return nil
	}
	return &p
}

// store stores how a process has ended, and reports whether that was not known yet.
func (q *Execs) store(ref core.Ref, a core.Autopsy) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	p, ok := q.of[ref.Container][ref.Process]
	if !ok || p.Autopsy != nil {
		return false
	}
	p.Autopsy, p.Finished, p.Pid = &a, a.Exit.At, 0
	q.of[ref.Container][ref.Process] = p
	return true
}

// Drop forgets a process, and reports whether there was one.
func (q *Execs) Drop(ref core.Ref) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	procs := q.of[ref.Container]
	_, ok := procs[ref.Process]
	delete(procs, ref.Process)
	if len(procs) == 0 {
		delete(q.of, ref.Container)
	}
	return ok
}

// In returns the processes of one container.
func (q *Execs) In(container core.ID) []core.Process {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Values(q.of[container]))
}

// All returns all processes.
func (q *Execs) All() map[core.Ref]core.Process {
	q.mu.Lock()
	defer q.mu.Unlock()
	all := map[core.Ref]core.Process{}
	for id, procs := range q.of {
		for _, p := range procs {
			all[core.Ref{Container: id, Process: p.ID}] = p
		}
	}
	return all
}

// Add makes a quiet process known. It fails when the container does not run any more: its end
// may have come too early to kill the process.
func (q *Execs) Add(container core.ID, p core.Process) error {
	q.put(container, p)
	ct, err := q.Records.Container(container)
	if err == nil && !ct.State.Live() {
		err = fmt.Errorf("it is %s: %w", ct.State, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		q.Drop(core.Ref{Container: container, Process: p.ID})
	}
	return err
}

// End stores the end of a quiet process, and wakes the waiting goroutines.
func (q *Execs) End(ref core.Ref, a core.Autopsy) {
	if q.store(ref, a) {
		q.Waits.Ended(ref, a)
	}
}

// Adopt marks a process of an earlier agent's caller as abandoned.
func (q *Execs) Adopt(ref core.Ref) { q.abandoned.Store(ref, true) }

// Abandoned reports whether a process was adopted, or its removal has failed.
func (q *Execs) Abandoned(ref core.Ref) bool {
	_, ok := q.abandoned.Load(ref)
	return ok
}

// Abandon is called when the removal of an exec has failed. A quiet one that runs is killed,
// since its caller does not come back; it is removed when its end is seen, at the latest
// with its container.
func (q *Execs) Abandon(ctx context.Context, ref core.Ref) {
	if q.Get(ref) == nil {
		return
	}
	q.abandoned.Store(ref, true)
	ctx, cancel := underway.Cleanup(ctx)
	defer cancel()
	p := q.Get(ref)
	if p == nil {
		return
	}
	if p.Autopsy == nil {
		if err := q.Supervisor.Signal(ctx, ref, int(unix.SIGKILL)); err != nil && !errdefs.IsNotFound(err) {
			q.Logger.WarnContext(ctx, "could not kill a process whose removal was cut off; its container's removal does", "container", ref.Container, "process", ref.Process, "error", err)
		}
		return
	}
	if err := q.DropAbandoned(ctx, ref); err != nil {
		q.Logger.WarnContext(ctx, "the keeper could not forget a process that has ended; it does so with its container", "container", ref.Container, "process", ref.Process, "error", err)
	}
}

// Kill kills the quiet processes of a container that has ended.
func (q *Execs) Kill(ctx context.Context, container core.ID) {
	for _, p := range q.In(container) {
		if p.Autopsy != nil {
			continue
		}
		if err := q.Supervisor.Signal(ctx, core.Ref{Container: container, Process: p.ID}, int(unix.SIGKILL)); err != nil && !errdefs.IsNotFound(err) {
			q.Logger.WarnContext(ctx, "could not kill a process of an ended container; its removal does", "container", container, "process", p.ID, "error", err)
		}
	}
}

// Forget forgets the quiet processes of a container that is removed.
func (q *Execs) Forget(container core.ID) {
	for _, p := range q.In(container) {
		ref := core.Ref{Container: container, Process: p.ID}
		q.abandoned.Delete(ref)
		q.Drop(ref)
	}
}

// DropAbandoned forgets an ended process that is abandoned. The exit of one that was started with
// KeepExit stays.
func (q *Execs) DropAbandoned(ctx context.Context, ref core.Ref) error {
	if !q.Abandoned(ref) {
		return nil
	}
	if err := q.Supervisor.Forget(ctx, ref); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	q.abandoned.Delete(ref)
	if q.Drop(ref) {
		return nil
	}
	return q.DropExec(ref)
}

package engine

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/underway"
)

// quietExecs holds the processes that were started with ProcessConfig.Quiet and are not removed
// yet, and has the verbs on them. They have no record: the recovery of the next agent kills them.
type quietExecs struct {
	records    records
	supervisor core.Supervisor
	waits      *underway.Waits
	log        *slog.Logger
	// abandoned has the ephemeral processes of an earlier agent's callers, and quiet ones that
	// their callers could not remove: core.Ref → true.
	abandoned sync.Map

	mu sync.Mutex // guards of
	of map[core.ID]map[core.ProcessID]core.Process
}

func (q *quietExecs) put(container core.ID, p core.Process) {
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

// get returns a copy of a process; nil when there is none.
func (q *quietExecs) get(ref core.Ref) *core.Process {
	q.mu.Lock()
	defer q.mu.Unlock()
	p, ok := q.of[ref.Container][ref.Process]
	if !ok {
		return nil
	}
	return &p
}

// store stores how a process has ended, and reports whether that was not known yet.
func (q *quietExecs) store(ref core.Ref, a core.Autopsy) bool {
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

// drop forgets a process, and reports whether there was one.
func (q *quietExecs) drop(ref core.Ref) bool {
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

// in returns the processes of one container.
func (q *quietExecs) in(container core.ID) []core.Process {
	q.mu.Lock()
	defer q.mu.Unlock()
	return slices.Collect(maps.Values(q.of[container]))
}

// all returns all processes.
func (q *quietExecs) all() map[core.Ref]core.Process {
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

// validQuiet refuses a quiet exec that could not be one.
func validQuiet(by view, cfg core.ProcessConfig) error {
	switch {
	case !cfg.Quiet:
		return nil
	case len(cfg.IO.Sinks) > 0 || cfg.KeepExit || cfg.Data != nil:
		return fmt.Errorf("a quiet process has no sinks, no data and no exit that is kept: %w", errdefs.ErrInvalidArgument)
	}
	_, err := by.Creates("a quiet process") // operations of the unscoped view on others' objects are recorded
	return err
}

// process returns a process of a container, recorded or quiet, or nil.
func (e *Engine) process(ct *core.Container, id core.ProcessID) *core.Process {
	if p := ct.Process(id); p != nil {
		return p
	}
	return e.quiet.get(core.Ref{Container: ct.ID, Process: id})
}

// recorded reports whether a process stands in its container's record.
func recorded(ct *core.Container, ref core.Ref) bool { return ct.Process(ref.Process) != nil }

// add makes a quiet process known. It fails when the container does not run any more: its end
// may have come too early to kill the process.
func (q *quietExecs) add(container core.ID, p core.Process) error {
	q.put(container, p)
	ct, err := q.records.Container(container)
	if err == nil && !alive(ct.State) {
		err = fmt.Errorf("it is %s: %w", ct.State, errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		q.drop(core.Ref{Container: container, Process: p.ID})
	}
	return err
}

// end stores the end of a quiet process, and wakes the waiting goroutines.
func (q *quietExecs) end(ref core.Ref, a core.Autopsy) {
	if q.store(ref, a) {
		q.waits.Ended(ref, a)
	}
}

// abandon is called when the removal of an exec has failed. A quiet one that runs is killed,
// since its caller does not come back; it is removed when its end is seen, at the latest
// with its container.
func (q *quietExecs) abandon(ctx context.Context, ref core.Ref) {
	if q.get(ref) == nil {
		return
	}
	q.abandoned.Store(ref, true)
	ctx, cancel := underway.Cleanup(ctx)
	defer cancel()
	p := q.get(ref)
	if p == nil {
		return
	}
	if p.Autopsy == nil {
		if err := q.supervisor.Signal(ctx, ref, sigkill); err != nil && !errdefs.IsNotFound(err) {
			q.log.WarnContext(ctx, "could not kill a process whose removal was cut off; its container's removal does", "container", ref.Container, "process", ref.Process, "error", err)
		}
		return
	}
	if err := q.dropAbandoned(ctx, ref); err != nil {
		q.log.WarnContext(ctx, "the keeper could not forget a process that has ended; it does so with its container", "container", ref.Container, "process", ref.Process, "error", err)
	}
}

// kill kills the quiet processes of a container that has ended.
func (q *quietExecs) kill(ctx context.Context, container core.ID) {
	for _, p := range q.in(container) {
		if p.Autopsy != nil {
			continue
		}
		if err := q.supervisor.Signal(ctx, core.Ref{Container: container, Process: p.ID}, sigkill); err != nil && !errdefs.IsNotFound(err) {
			q.log.WarnContext(ctx, "could not kill a process of an ended container; its removal does", "container", container, "process", p.ID, "error", err)
		}
	}
}

// forget forgets the quiet processes of a container that is removed.
func (q *quietExecs) forget(container core.ID) {
	for _, p := range q.in(container) {
		ref := core.Ref{Container: container, Process: p.ID}
		q.abandoned.Delete(ref)
		q.drop(ref)
	}
}

// dropAbandoned forgets an ended process that is abandoned. The exit of one that was started with
// KeepExit stays.
func (q *quietExecs) dropAbandoned(ctx context.Context, ref core.Ref) error {
	if _, ok := q.abandoned.Load(ref); !ok {
		return nil
	}
	if err := ignoreNotFound(q.supervisor.Forget(ctx, ref)); err != nil {
		return err
	}
	q.abandoned.Delete(ref)
	if q.drop(ref) {
		return nil
	}
	return q.records.dropExec(ref, scope.Change{})
}

// killExec kills an exec with all that it has started. It succeeds when the exec has ended.
func (e *Engine) killExec(ctx context.Context, ct *core.Container, p *core.Process) error {
	ref := core.Ref{Container: ct.ID, Process: p.ID}
	if e.o.Supervisor.Signal(ctx, ref, sigstop) == nil { // it is alive, so its pid has not been reused
		e.endTree(ctx, ct, p)
	}
	return ignoreNotFound(e.o.Supervisor.Signal(ctx, ref, sigkill))
}

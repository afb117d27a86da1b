package swarm

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/swarm/assignment"
	"github.com/longshore/longshore/internal/face/swarm/csi"
	"github.com/longshore/longshore/internal/face/swarm/overlays"
	"github.com/longshore/longshore/internal/face/swarm/publish"
	"github.com/longshore/longshore/internal/face/swarm/session"
	"github.com/longshore/longshore/internal/face/swarm/translate"
	"github.com/longshore/longshore/internal/restart/runner"
)

// worker has the tasks of the node.
type worker struct {
	face    *Face
	engine  *engine.Client
	node    translate.Node
	reports *session.Reports
	records records
	log     *slog.Logger
	volumes *csi.Volumes // since openVolumes
	outputs *outputs
	output  *publish.Publisher // of outputs
	images  *images
	nets    *overlays.Networks

	checks   *checks
	restarts *restarts
	due      *runner.Queue[string] // tasks that are stepped at a time, without a change

	mu      sync.Mutex // guards tasks, devices, set, base, stopped
	tasks   map[string]*task
	devices map[string]string // the task that has a device or had it last, by the device's CDI name
	set     assignment.Set
	base    context.Context //nolint:containedctx // that of resume, which ends all steps
	running sync.WaitGroup  // steps and removals
	stopped bool            // no step begins any more
}

var _ session.Worker = (*worker)(nil)

// task is one task. While somebody steps it, nobody else does.
type task struct {
	swarm    *swarmv1.Task // as it was assigned last, its status being ours; replaced, never changed
	stepping bool
	again    bool // its inputs have changed
	removed  bool // it is the node's no more
	// interrupt ends the action that is under way.
	interrupt context.CancelFunc
	// endReported says that the end of its program is in the reports, and counts once the managers have received it.
	endReported bool
}

func newWorker(f *Face, n translate.Node, r *session.Reports) *worker {
	w := &worker{
		face: f, engine: f.o.Engine, node: n, reports: r, records: records{f.o.KV}, log: f.log, tasks: map[string]*task{}, devices: map[string]string{},
	}
	w.checks = newChecks(w.engine, w.log, w.step)
	w.restarts = &restarts{enabled: f.o.Config.LocalRestarts, records: w.records, seen: map[string]time.Time{}}
	w.due = runner.NewQueue(1, func(_ context.Context, id string) { w.step(id) })
	w.outputs = &outputs{engine: w.engine, node: n, tasks: w.assigned}
	w.output = publish.New(publish.Options{Node: n.ID, Source: w.outputs, Logger: f.log, File: f.outputFile()})
	w.images = newImages(w.engine, w.log, time.Duration(f.o.Config.ImageDelay), w.assigned)
	r.Notify(w.reportSent)
	return w
}

// resume continues the tasks of an earlier agent, and removes objects that belong to none. Steps go
// on until ctx ends.
func (w *worker) resume(ctx context.Context) error {
	kept, damaged := w.records.tasks()
	var ids []string
	w.checks.start(ctx) // before a step can see a task
	w.mu.Lock()
	w.base = ctx
	for _, t := range kept {
		ids = append(ids, t.GetId())
		w.tasks[t.GetId()] = &task{swarm: t, interrupt: func() {}}
		w.set.Resume(t.GetId())
	}
	w.mu.Unlock()
	for _, t := range kept {
		w.resumeVolumes(ctx, t)
	}
	w.volumes.Start(ctx)
	w.running.Go(func() { w.due.Run(ctx) })
	for _, id := range damaged {
		w.log.WarnContext(ctx, "could not read a task's record; it is dropped", "task", id)
		if err := w.records.dropTask(id); err != nil {
			return err
		}
	}
	w.joinNetworks(ctx)
	w.nets.Resumed()
	sandboxes, err := w.engine.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return err
	}
	has := map[core.ID]bool{}
	for _, sb := range sandboxes {
		has[sb.ID] = true
		if w.task(string(sb.Key)) == nil {
			w.running.Go(func() { w.remove(ctx, string(sb.Key)) })
		}
	}
	if err := w.face.sweep(ctx, has, ids); err != nil {
		return err
	}
	if err := w.records.dropRestarts(func(id string) bool { return w.task(id) != nil }); err != nil {
		return err
	}
	w.kickAll()
	return nil
}

// wait returns when nothing is done any more; the context of resume must have ended.
func (w *worker) wait() {
	w.mu.Lock()
	w.stopped = true
	w.mu.Unlock()
	w.running.Wait()
	w.checks.wait()
	w.volumes.Wait()
}

// task is one of the node's tasks; nil when it is none.
func (w *worker) task(id string) *task {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.tasks[id]
}

func (w *worker) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.tasks)
}

// assigned returns the node's tasks as they were assigned last, without removed ones.
func (w *worker) assigned() (list []*swarmv1.Task) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, t := range w.tasks {
		if !t.removed {
			list = append(list, t.swarm)
		}
	}
	return list
}

// watchEvents steps tasks when their programs end, and starts reading the output of new ones.
func (w *worker) watchEvents(ctx context.Context) error {
	return engine.Watch{
		Kinds: []core.EventKind{core.EventContainerStarted, core.EventContainerExited, core.EventContainerRemoved},
		List: func(context.Context) error {
			w.kickAll()
			return nil
		},
		Event: func(ctx context.Context, e core.Event) error {
			switch e.Kind {
			case core.EventContainerStarted:
				if o, ok := w.outputs.started(ctx, e); ok {
					w.output.Started(o)
				}
			case core.EventContainerRemoved:
				w.output.Removed(e.Container)
			default:
				w.step(string(e.Key))
			}
			return nil
		},
		Failed: func(err error) {
			w.log.ErrorContext(ctx, "could not read the event log: ends of tasks are not seen", "error", err)
		},
	}.Run(ctx, w.engine)
}

func (w *worker) kickAll() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id := range w.tasks {
		w.kick(id)
	}
}

// step schedules a step of a task.
func (w *worker) step(id string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kick(id)
}

// kick schedules a step of a task. Preconditions: mu is held.
func (w *worker) kick(id string) {
	t := w.tasks[id]
	switch {
	case t == nil || t.removed || w.stopped:
	case t.stepping:
		t.again = true
	default:
		t.stepping = true
		w.running.Go(func() { w.run(id, t) })
	}
}

// later schedules a step of a task after a time, unless it is stepped before; 0 is never. Restarts are due so, by the
// task's own policy.
func (w *worker) later(id string, after time.Duration) {
	if after <= 0 {
		w.due.Drop(id)
		return
	}
	w.due.Put(id, time.Now().Add(after), time.Time{})
}

// Assigned implements session.Worker: it applies a message, and schedules the steps of the changed tasks.
func (w *worker) Assigned(m *swarmv1.AssignmentsMessage, first bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if first {
		w.set.Opened()
	}
	c, err := w.set.Apply(m)
	if err != nil {
		return err
	}
	for _, err := range c.Ignored {
		w.log.Warn("ignored an assignment", "error", err)
	}
	for _, id := range c.Removed {
		w.unassign(id)
	}
	for _, t := range c.Tasks {
		w.update(t)
	}
	w.changeVolumes(c)
	return nil
}

// unassign removes a task with all its objects. Preconditions: mu is held.
func (w *worker) unassign(id string) {
	t := w.tasks[id]
	if t == nil || t.removed {
		return
	}
	t.removed = true
	w.reports.Drop(id)
	if t.stepping {
		t.interrupt() // its step removes it
		return
	}
	t.stepping = true
	w.running.Go(func() { w.remove(w.base, id) })
}

// update stores a new or changed task, and schedules a step of it. Preconditions: mu is held.
func (w *worker) update(asked *swarmv1.Task) {
	id := asked.GetId()
	t := w.tasks[id]
	if t != nil && t.removed {
		return // it is removed, and then asked for again with the next stream
	}
	next := proto.CloneOf(asked)
	if t == nil {
		// Without a record here, the managers' last status counts.
		if next.GetStatus().GetState() < swarmv1.TaskState_ASSIGNED {
			next.Status = &swarmv1.TaskStatus{State: swarmv1.TaskState_ASSIGNED, Timestamp: timestamppb.Now()}
		}
		t = &task{interrupt: func() {}}
		w.tasks[id] = t
	} else {
		next.Status = t.swarm.GetStatus()
		next.DesiredState = max(next.GetDesiredState(), t.swarm.GetDesiredState())
	}
	ending := next.GetDesiredState() >= swarmv1.TaskState_SHUTDOWN && t.swarm.GetDesiredState() < swarmv1.TaskState_SHUTDOWN
	t.swarm = next
	if t.endReported && ending {
		t.endReported = false
		w.reports.Drop(id)
	}
	if t.stepping && ending {
		t.interrupt()
	}
	w.kick(id)
}

// Registered implements session.Worker: it queues the statuses of all tasks again.
func (w *worker) Registered() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for id, t := range w.tasks {
		if t.swarm.GetStatus().GetState() > swarmv1.TaskState_ASSIGNED && !t.removed {
			w.reports.Put(id, t.swarm.GetStatus())
		}
	}
}

// Listen implements session.Worker.
func (w *worker) Listen(ctx context.Context, api swarmv1.LogBrokerClient) error {
	return w.output.Listen(ctx, api)
}

// content finds a secret or a config that a task refers to; known says that a missing one will not
// come.
func (w *worker) content(id string, f translate.File) (c translate.Content, found, known bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if f.Secret != "" {
		s := w.set.Secret(f.Secret, id)
		return translate.Content{Data: s.GetSpec().GetData(), Templating: s.GetSpec().GetTemplating()}, s != nil, w.set.Known()
	}
	s := w.set.Config(f.Config)
	return translate.Content{Data: s.GetSpec().GetData(), Templating: s.GetSpec().GetTemplating()}, s != nil, w.set.Known()
}

// known reports whether a manager has sent the complete assignments since the start of the agent.
func (w *worker) known() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.set.Known()
}

// The pauses between tries after temporary failures.
const (
	firstPause   = 100 * time.Millisecond
	longestPause = 30 * time.Second
)

// pause waits, and reports whether ctx is still valid.
func pause(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

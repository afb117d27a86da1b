// Package runner starts containers again when their restart policies want it.
//
// It has one queue for all owners. It decides nothing: the engine's records have the times, and package
// restart decides after a failed start. Start reading at Runner.Run.
package runner

import (
	"cmp"
	"container/heap"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/restart"
)

// Runner is the runner of a node. All exported fields are required.
type Runner struct {
	// All sees every owner's containers, As those of one owner.
	All *engine.Client
	As  func(core.Owner) *engine.Client
	// Parallel is how many containers are started at once.
	Parallel int
	Log      *slog.Logger

	mu       sync.Mutex // guards queue, starting
	queue    queue
	starting map[core.ID]bool
	wake     chan struct{} // has one value when the queue has changed
}

// pending is a container that is to be started.
type pending struct {
	id      core.ID
	owner   core.Owner
	due     time.Time
	created time.Time
}

// queue is a heap of pending restarts: the earliest first, and of those with one time, as after a boot,
// the oldest container.
type queue []pending

func (q queue) Len() int      { return len(q) }
func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(x any)   { *q = append(*q, x.(pending)) } //nolint:forcetypeassert // only add pushes
func (q queue) Less(i, j int) bool {
	return cmp.Or(q[i].due.Compare(q[j].due), q[i].created.Compare(q[j].created), cmp.Compare(q[i].id, q[j].id)) < 0
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	old := *q
	last := old[len(old)-1]
	*q = old[:len(old)-1]
	return last
}

// Run starts containers until ctx ends. It returns when all starts that it has begun are complete.
func (r *Runner) Run(ctx context.Context) {
	r.mu.Lock()
	r.wake, r.starting = make(chan struct{}, 1), map[core.ID]bool{}
	r.mu.Unlock()
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { r.start(ctx, &work) })
	w := engine.Watch{
		Kinds: []core.EventKind{core.EventContainerExited, core.EventContainerUpdated},
		List: func(ctx context.Context) error {
			list, err := r.All.Containers(ctx, core.Filter{})
			r.add(list...)
			return err
		},
		Event: func(ctx context.Context, e core.Event) error {
			c, err := r.All.Container(ctx, e.Container)
			if errdefs.IsNotFound(err) {
				return nil
			}
			r.add(c)
			return err
		},
		Failed: func(err error) {
			r.Log.ErrorContext(ctx, "could not follow the event log, so ended containers are not restarted; trying again", "error", err)
		},
	}
	_ = w.Run(ctx, r.All) // Failed gets every error
}

// add queues containers with a pending restart. An older entry of a container may stay in the queue:
// the start then finds that nothing is pending.
func (r *Runner) add(list ...core.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range list {
		if !c.Restarting() || r.starting[c.ID] {
			continue
		}
		// The clock may have been set back since the end: then the delay counts from now.
		due := c.Restarts.Due
		if latest := time.Now().Add(c.Restarts.Delay); due.After(latest) {
			due = latest
		}
		heap.Push(&r.queue, pending{c.ID, c.Owner, due, c.Created})
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// next removes the first pending restart if it is due; else it returns how long to wait for it. It
// waits for wake only if the queue is empty.
func (r *Runner) next() (p pending, ready bool, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.queue) > 0 {
		if wait = time.Until(r.queue[0].due); wait > 0 {
			return p, false, wait
		}
		p = heap.Pop(&r.queue).(pending) //nolint:forcetypeassert // only add pushes
		if !r.starting[p.id] {
			r.starting[p.id] = true
			return p, true, 0
		}
	}
	return p, false, -1
}

// start starts the containers that are due, at most Parallel at once, until ctx ends.
func (r *Runner) start(ctx context.Context, work *sync.WaitGroup) {
	free := make(chan struct{}, r.Parallel)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		p, ready, wait := r.next()
		if !ready {
			timer.Stop()
			if wait > 0 {
				timer.Reset(wait)
			}
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			case <-r.wake:
			}
			continue
		}
		select {
		case <-ctx.Done():
			return
		case free <- struct{}{}:
		}
		work.Go(func() {
			r.one(ctx, p)
			<-free
		})
	}
}

// startTime bounds one start, so that a network that hangs does not keep the others from starting.
const startTime = 2 * time.Minute

// putOffPause is the pause before the next try if a failure could not be recorded.
const putOffPause = time.Second

// one starts a container, and queues it again if another restart is pending afterwards. A start that has
// begun is completed even if the agent is being stopped: a start that is cut off would be a failed one.
func (r *Runner) one(ctx context.Context, p pending) {
	own := r.As(p.owner)
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTime)
	defer cancel()
	err := r.due(whole, own, p.id)
	if err != nil && ctx.Err() == nil {
		r.Log.WarnContext(ctx, "could not start a container again", "container", string(p.id), "error", err)
		if err := own.Restarts.PutOff(context.WithoutCancel(ctx), p.id, func(c *core.Container) { restart.Failed(c, err, time.Now().UTC()) }); err != nil {
			r.Log.ErrorContext(ctx, "could not record that a restart has failed; it is tried again", "container", string(p.id), "error", err)
			pause := time.NewTimer(putOffPause)
			defer pause.Stop()
			select {
			case <-ctx.Done():
			case <-pause.C:
			}
		}
	}
	r.mu.Lock()
	delete(r.starting, p.id)
	r.mu.Unlock()
	if c, err := r.All.Container(ctx, p.id); err == nil && ctx.Err() == nil {
		r.add(c)
	}
}

// due starts a container, unless its restart is due later than an old entry of the queue said.
func (r *Runner) due(ctx context.Context, own *engine.Client, id core.ID) error {
	c, err := own.Container(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if wait := time.Until(c.Restarts.Due); wait > 0 && wait <= c.Restarts.Delay {
		return nil
	}
	return engine.StartDue(ctx, own, id)
}

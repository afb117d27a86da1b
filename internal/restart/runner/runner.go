// Package runner starts containers again when their restart policies want it.
//
// Queue starts things at their times, for any policy. A Runner puts the containers of docker's policies, of all owners,
// into a Queue: the engine's records have the times, and package restart decides after a failed start. Start reading at
// Runner.Run.
package runner

import (
	"context"
	"errors"
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

	queue     *Queue[pending] // since Run
	followers followers
}

// pending is a container that is to be started.
type pending struct {
	id    core.ID
	owner core.Owner
}

// Run starts containers until ctx ends. It returns when all starts that it has begun are complete.
func (r *Runner) Run(ctx context.Context) {
	r.queue = NewQueue(r.Parallel, r.start)
	var work sync.WaitGroup
	defer work.Wait()
	work.Go(func() { r.queue.Run(ctx) })
	w := engine.Watch{
		Kinds: []core.EventKind{core.EventContainerExited, core.EventContainerUpdated, core.EventContainerStarted, core.EventContainerRemoved},
		List: func(ctx context.Context) error {
			list, err := r.All.Containers(ctx, core.Filter{})
			r.add(list...)
			return err
		},
		Event: func(ctx context.Context, e core.Event) error {
			r.follow(e.Container)
			if e.Kind == core.EventContainerStarted || e.Kind == core.EventContainerRemoved {
				return nil
			}
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

// add queues containers with a pending restart. The queue keeps the entry of a restart that is cancelled later: the
// start then finds nothing pending.
func (r *Runner) add(list ...core.Container) {
	for _, c := range list {
		if !c.Restarting() {
			continue
		}
		// The clock may have been set back since the end: then the delay counts from now.
		due := c.Restarts.Due
		if latest := time.Now().Add(c.Restarts.Delay); due.After(latest) {
			due = latest
		}
		if r.followers.isDue(c.ID) {
			due = time.Now()
		}
		r.queue.Put(pending{c.ID, c.Owner}, due, c.Created)
	}
}

// startTime bounds one start, so that a network that hangs does not keep the others from starting.
const startTime = 2 * time.Minute

// longestWait is the time until the next check of a container that waits for another one.
const longestWait = 30 * time.Second

// putOffPause is the pause before the next try if a failure could not be recorded.
const putOffPause = time.Second

// start starts a container, and queues it again if another restart is pending afterwards. A start that has
// begun is completed even if the agent is being stopped: a start that is cut off would be a failed one.
func (r *Runner) start(ctx context.Context, p pending) {
	own := r.As(p.owner)
	n := r.needs(ctx, own, p)
	if n.wait && n.gone == "" {
		// A caller may cancel the restart of the other one, which is no event.
		r.queue.Put(p, time.Now().Add(longestWait), time.Time{})
		return
	}
	whole, cancel := context.WithTimeout(context.WithoutCancel(ctx), startTime)
	defer cancel()
	err := r.due(whole, own, p.id)
	if err != nil && ctx.Err() == nil {
		r.Log.WarnContext(ctx, "could not start a container again", "container", string(p.id), "error", err)
		if err := r.putOff(context.WithoutCancel(ctx), own, p.id, n, err); err != nil {
			r.Log.ErrorContext(ctx, "could not record that a restart has failed; it is tried again", "container", string(p.id), "error", err)
			pause := time.NewTimer(putOffPause)
			defer pause.Stop()
			select {
			case <-ctx.Done():
			case <-pause.C:
			}
		}
	}
	if c, err := r.All.Container(ctx, p.id); err == nil && ctx.Err() == nil {
		r.add(c)
	}
}

// putOff records that a start has failed, and when the next try is.
func (r *Runner) putOff(ctx context.Context, own *engine.Client, id core.ID, n needs, cause error) error {
	var refused *core.StartError
	if n.gone == "" && (!n.joins || errors.As(cause, &refused)) {
		return own.Restarts.PutOff(ctx, id, func(c *core.Container) { restart.Failed(c, cause, time.Now().UTC()) })
	}
	if n.gone != "" { // it will not come back
		return own.Restarts.PutOff(ctx, id, func(c *core.Container) {
			c.Restarts.Due, c.Restarts.Boot, c.Restarts.Error = time.Time{}, false, cause.Error()
		})
	}
	// The holder may have ended at any moment of the start, which then fails with any error.
	err := own.Restarts.PutOff(ctx, id, func(c *core.Container) { restart.Again(c, cause, time.Now().UTC()) })
	return errors.Join(err, own.Restarts.Retry(id, func(c *core.Container) { restart.Again(c, cause, time.Now().UTC()) }))
}

// due starts a container, unless its restart is due later than an old entry of the queue said, and its holder has not
// changed.
func (r *Runner) due(ctx context.Context, own *engine.Client, id core.ID) error {
	follows := r.followers.begin(id)
	c, err := own.Container(ctx, id)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if wait := time.Until(c.Restarts.Due); !follows && wait > 0 && wait <= c.Restarts.Delay {
		return nil
	}
	return engine.StartDue(ctx, own, id)
}

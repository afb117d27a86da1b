package health

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// Runner makes the health checks of an owner's containers while they run. All fields are required.
type Runner struct {
	Engine *engine.Client
	Log    *slog.Logger
	Owner  core.Owner
	// Check returns the check of a container, nil when it has none.
	Check func(core.Container) *Check
	// Changed is called as Monitor.Changed is.
	Changed func(context.Context, core.Container, State)

	mu      sync.Mutex // guards running
	running map[core.ID]probed
}

// probed is a run of a program that is probed.
type probed struct {
	started time.Time
	stop    context.CancelFunc
}

// Run follows the event log until ctx ends. It returns when all monitors have ended.
func (r *Runner) Run(ctx context.Context) {
	var monitors sync.WaitGroup
	defer monitors.Wait()
	w := engine.Watch{
		Kinds: []core.EventKind{core.EventContainerStarted, core.EventContainerExited, core.EventContainerRemoved},
		List: func(ctx context.Context) error {
			list, err := r.Engine.Containers(ctx, core.Filter{})
			for _, c := range list {
				r.follow(ctx, &monitors, c)
			}
			return err
		},
		Event: func(ctx context.Context, e core.Event) error {
			c, err := r.Engine.Container(ctx, e.Container)
			if err != nil {
				c = core.Container{Meta: core.Meta{ID: e.Container}} // it was removed
			}
			r.follow(ctx, &monitors, c)
			return nil
		},
		Failed: func(err error) {
			r.Log.ErrorContext(ctx, "could not follow the event log, so the health of new containers is not checked; trying again", "error", err)
		},
	}
	_ = w.Run(ctx, r.Engine) // Failed gets every error
}

// follow has a monitor probe a container if it runs, and ends that of an earlier run.
func (r *Runner) follow(ctx context.Context, monitors *sync.WaitGroup, c core.Container) {
	runs := c.State.Live()
	r.mu.Lock()
	defer r.mu.Unlock()
	if old, ok := r.running[c.ID]; ok {
		if runs && old.started.Equal(c.Main.Started) {
			return
		}
		old.stop()
		delete(r.running, c.ID)
	}
	if !runs {
		return
	}
	check := r.Check(c)
	if check == nil {
		return
	}
	if r.running == nil {
		r.running = map[core.ID]probed{}
	}
	ctx, stop := context.WithCancel(ctx)
	r.running[c.ID] = probed{c.Main.Started, stop}
	m := Monitor{Engine: r.Engine, Log: r.Log, Owner: r.Owner, ID: c.ID, Check: check, Changed: func(s State) { r.Changed(ctx, c, s) }}
	monitors.Go(func() {
		defer stop()
		m.Run(ctx)
	})
}

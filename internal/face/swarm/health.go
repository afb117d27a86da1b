package swarm

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/swarm/stepper"
	"github.com/longshore/longshore/internal/face/swarm/translate"
	"github.com/longshore/longshore/internal/health"
)

var errUnhealthy = errors.New("unhealthy container") //nolint:gochecknoglobals // an error value

// checks runs the health checks of running tasks.
type checks struct {
	engine  *engine.Client
	log     *slog.Logger
	changed func(task string) // called after each change of a task's status
	running sync.WaitGroup

	mu    sync.Mutex      // guards base, tasks
	base  context.Context //nolint:containedctx // that of start, which ends all checks
	tasks map[string]*check
}

// check is the health check of a task.
type check struct {
	container core.ID
	state     health.State // guarded by mu of checks
	stop      context.CancelFunc
}

func newChecks(e *engine.Client, log *slog.Logger, changed func(task string)) *checks {
	return &checks{engine: e, log: log, changed: changed, tasks: map[string]*check{}}
}

// start allows checks until ctx ends.
func (x *checks) start(ctx context.Context) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.base = ctx
}

// wait returns when no check runs any more; the context of start must have ended.
func (x *checks) wait() { x.running.Wait() }

// health returns the health of a task's program. The first call, also of a new agent, starts the
// checks; changed is called at each change of the status. A task without a check is healthy.
func (x *checks) health(id string, c core.Container) health.State {
	config, err := translate.Check(c)
	if err != nil {
		x.log.Error("could not read a task's health check; it counts as healthy", "task", id, "error", err)
	}
	if config == nil {
		return health.State{Status: health.Healthy}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if h := x.tasks[id]; h != nil && h.container == c.ID {
		return h.state
	} else if h != nil {
		h.stop()
	}
	ctx, stop := context.WithCancel(x.base)
	h := &check{container: c.ID, state: health.State{Status: health.Starting}, stop: stop}
	x.tasks[id] = h
	m := health.Monitor{Engine: x.engine, Log: x.log, Owner: core.OwnerSwarm, ID: c.ID, Check: config, Changed: func(s health.State) {
		x.mu.Lock()
		h.state = s
		x.mu.Unlock()
		x.changed(id)
	}}
	x.running.Go(func() {
		defer stop()
		m.Run(ctx)
	})
	return h.state
}

// stop ends the health checks of a task.
func (x *checks) stop(id string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if h := x.tasks[id]; h != nil {
		h.stop()
		delete(x.tasks, id)
	}
}

// failure returns the error of a task that has failed its health check, with the check's output if
// this agent has it.
func (x *checks) failure(id string, c core.Container) error {
	x.mu.Lock()
	defer x.mu.Unlock()
	if h := x.tasks[id]; h != nil && h.container == c.ID && h.state.Output != "" {
		return fmt.Errorf("%w: %s", errUnhealthy, h.state.Output)
	}
	return errUnhealthy
}

// awaitHealthy completes the start of a task with a health check when its program is healthy: only then the task
// counts as running. One that has ended before with success was running too.
func (w *worker) awaitHealthy(ctx context.Context, s *swarmv1.Task, c core.Container) result {
	id := s.GetId()
	if c.State == core.ContainerExited {
		return w.watch(ctx, s)
	}
	switch w.checks.health(id, c).Status {
	case health.Starting:
		return result{outcome: stepper.Wait, reason: "waiting to be healthy", c: c}
	case health.Unhealthy:
		return w.failUnhealthy(ctx, id, c)
	case health.Healthy:
	}
	return result{c: c}
}

// failUnhealthy ends a task after its program has failed the health check without having been healthy.
func (w *worker) failUnhealthy(ctx context.Context, id string, c core.Container) result {
	ended, err := w.stopUnhealthy(ctx, c)
	if err != nil {
		return result{outcome: stepper.Retry, endless: true, err: err}
	}
	if err := w.engine.StopSandbox(ctx, c.Sandbox, engine.StopOptions{Request: request(core.UnhealthyCall)}); err != nil {
		return result{outcome: stepper.Retry, endless: true, err: err}
	}
	r := result{outcome: stepper.Failed, c: ended, err: w.checks.failure(id, c)}
	w.checks.stop(id)
	w.volumes.Release(id)
	w.nets.Release(id)
	return r
}

// stopUnhealthy ends a program that has failed its health check. The container's record keeps why.
func (w *worker) stopUnhealthy(ctx context.Context, c core.Container) (core.Container, error) {
	w.nets.Ending(string(c.Key))
	if err := w.engine.StopContainer(ctx, c.ID, engine.StopOptions{Request: request(core.UnhealthyCall)}); err != nil {
		return c, err
	}
	return w.engine.Container(ctx, c.ID)
}

// wasUnhealthy reports whether a program was ended because it had failed its health check.
func wasUnhealthy(c core.Container) bool {
	a := c.Main.Autopsy
	return a != nil && a.StopRequest != nil && a.StopRequest.Call == core.UnhealthyCall
}

package swarm

import (
	"context"
	"errors"
	"fmt"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/swarm/stepper"
	"github.com/longshore/longshore/internal/face/swarm/translate"
	"github.com/longshore/longshore/internal/health"
)

var errUnhealthy = errors.New("unhealthy container") //nolint:gochecknoglobals // an error value

// checked is a running task with a health check.
type checked struct {
	container core.ID
	state     health.State
	stop      context.CancelFunc
}

// checks are the health checks of a worker's tasks.
type checks struct{ w *worker }

// health returns the health of a task's program. The first call, also of a new agent, starts the
// checks; each change of the status steps the task. A task without a check is healthy.
func (x checks) health(id string, c core.Container) health.State {
	check, err := translate.Check(c)
	if err != nil {
		x.w.log.Error("the health of a task is not checked", "task", id, "error", err)
	}
	if check == nil {
		return health.State{Status: health.Healthy}
	}
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	if h := x.w.checks[id]; h != nil && h.container == c.ID {
		return h.state
	} else if h != nil {
		h.stop()
	}
	ctx, stop := context.WithCancel(x.w.base)
	h := &checked{container: c.ID, state: health.State{Status: health.Starting}, stop: stop}
	x.w.checks[id] = h
	m := health.Monitor{Engine: x.w.engine, Log: x.w.log, Owner: core.OwnerSwarm, ID: c.ID, Check: check, Changed: func(s health.State) {
		x.w.mu.Lock()
		defer x.w.mu.Unlock()
		h.state = s
		x.w.kick(id)
	}}
	x.w.running.Go(func() {
		defer stop()
		m.Run(ctx)
	})
	return h.state
}

// endCheck ends the health checks of a task.
func (x checks) endCheck(id string) {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	if h := x.w.checks[id]; h != nil {
		h.stop()
		delete(x.w.checks, id)
	}
}

// healthy completes the start of a task when its program is healthy: only then the task counts as
// running. One that has ended before with success was running too.
func (x checks) healthy(ctx context.Context, s *swarmv1.Task, c core.Container) result {
	id := s.GetId()
	if check, err := translate.Check(c); err != nil || check == nil {
		return result{c: c}
	}
	if c.State == core.ContainerExited {
		return x.w.ended(ctx, s)
	}
	switch x.health(id, c).Status {
	case health.Starting:
		return result{outcome: stepper.Wait, reason: "waiting to be healthy", c: c}
	case health.Unhealthy:
		return x.unhealthy(ctx, id, c)
	case health.Healthy:
	}
	return result{c: c}
}

// unhealthy ends a task after its program has failed the health check without having been healthy.
func (x checks) unhealthy(ctx context.Context, id string, c core.Container) result {
	ended, err := x.endUnhealthy(ctx, c)
	if err != nil {
		return result{outcome: stepper.Retry, endless: true, err: err}
	}
	if err := x.w.engine.StopSandbox(ctx, c.Sandbox, engine.StopOptions{Request: request(core.UnhealthyCall)}); err != nil {
		return result{outcome: stepper.Retry, endless: true, err: err}
	}
	r := result{outcome: stepper.Failed, c: ended, err: x.whyUnhealthy(id, c)}
	x.endCheck(id)
	x.w.volumes.Release(id)
	x.w.nets.Release(id)
	return r
}

// endUnhealthy ends a program that has failed its health check. The container's record keeps why.
func (x checks) endUnhealthy(ctx context.Context, c core.Container) (core.Container, error) {
	x.w.nets.Ending(string(c.Key))
	if err := x.w.engine.StopContainer(ctx, c.ID, engine.StopOptions{Request: request(core.UnhealthyCall)}); err != nil {
		return c, err
	}
	return x.w.engine.Container(ctx, c.ID)
}

// wasUnhealthy reports whether a program was ended because it had failed its health check.
func wasUnhealthy(c core.Container) bool {
	a := c.Main.Autopsy
	return a != nil && a.StopRequest != nil && a.StopRequest.Call == core.UnhealthyCall
}

// whyUnhealthy is the error of a task that has failed its health check, with the check's output if
// this agent has it.
func (x checks) whyUnhealthy(id string, c core.Container) error {
	x.w.mu.Lock()
	defer x.w.mu.Unlock()
	if h := x.w.checks[id]; h != nil && h.container == c.ID && h.state.Output != "" {
		return fmt.Errorf("%w: %s", errUnhealthy, h.state.Output)
	}
	return errUnhealthy
}

package solo

import (
	"context"
	"time"

	"github.com/containerd/errdefs"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/health"
	"github.com/longshore/longshore/internal/invalid"
)

// The actions on an unhealthy program.
const (
	onUnhealthyStop = "stop"
	onUnhealthyKill = "kill"
)

// healthOf returns the health check that a request asks for, nil for none.
func healthOf(req *longshorev1.CreateRequest, img core.Image) (*health.Check, error) {
	switch req.GetOnUnhealthy() {
	case "", "none", onUnhealthyStop, onUnhealthyKill:
	default:
		return nil, invalid.Errorf("the action for an unhealthy program is none, stop or kill, not %q", req.GetOnUnhealthy())
	}
	own := AskedHealth(req.GetHealth())
	if own != nil {
		for name, d := range map[string]time.Duration{"interval": own.Interval, "timeout": own.Timeout, "start period": own.StartPeriod, "start interval": own.StartInterval} {
			if d < 0 {
				return nil, invalid.Errorf("the health check's %s %v is negative", name, d)
			}
		}
		if own.Retries < 0 {
			return nil, invalid.Errorf("the health check's number of retries, %d, is negative", own.Retries)
		}
	}
	return health.Settle(own, img)
}

// AskedHealth returns the health check of a request, nil for none.
func AskedHealth(h *longshorev1.HealthCheck) *core.HealthCheck {
	if h == nil {
		return nil
	}
	return &core.HealthCheck{
		Test: h.GetTest(), Interval: h.GetInterval().AsDuration(), Timeout: h.GetTimeout().AsDuration(), StartPeriod: h.GetStartPeriod().AsDuration(),
		StartInterval: h.GetStartInterval().AsDuration(), Retries: int(h.GetRetries()),
	}
}

// checkHealth makes the health checks of our containers until ctx ends.
func (s *Service) checkHealth(ctx context.Context) {
	r := health.Runner{
		Engine: s.own, Log: s.o.Logger, Owner: s.o.Owner,
		Check:   func(c core.Container) *health.Check { return RecordOf(c).Health },
		Changed: s.healthChanged,
	}
	r.Run(ctx)
}

// healthChanged ends a program that has become unhealthy, if its user wants that. If the agent dies
// meanwhile, the next one gets the status again.
func (s *Service) healthChanged(ctx context.Context, c core.Container, now health.State) {
	action := RecordOf(c).OnUnhealthy
	if now.Status != health.Unhealthy || action != onUnhealthyStop && action != onUnhealthyKill {
		return
	}
	opts := engine.StopOptions{Request: core.StopRequest{Owner: s.o.Owner, Call: core.UnhealthyCall, At: time.Now()}}
	if action == onUnhealthyKill {
		var none time.Duration
		opts.Grace = &none
	}
	// The caller's context ends with the program.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.Config.Stop.Grace+cleanTimeout)
	defer cancel()
	if err := s.own.StopContainer(ctx, c.ID, opts); err != nil && !errdefs.IsNotFound(err) {
		s.o.Logger.WarnContext(ctx, "could not stop an unhealthy container", "container", string(c.ID), "error", err)
	}
}

// HealthStatus returns the status of a container's health, "" when it is not checked.
func HealthStatus(c core.Container) string {
	if h := c.HealthNow(); h != nil {
		return h.Status
	}
	r := RecordOf(c)
	return r.HealthStatus(&c)
}

// HealthStatus returns the status of the health of the record's container, "" when it is not checked.
func (r *Record) HealthStatus(c *core.Container) string {
	if h := c.HealthNow(); h != nil {
		return h.Status
	}
	if r.Health != nil && c.State != core.ContainerCreating && c.State != core.ContainerCreated {
		return string(health.Starting)
	}
	return ""
}

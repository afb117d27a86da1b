package translate

import (
	"encoding/json"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/health"
)

// data is this face's record in the container of a task, as JSON, because its image may be gone
// when an agent comes back.
type data struct {
	Health *health.Check `json:"health,omitempty"`
}

// health is the service's own health check, which may leave all or some to the image; nil is none.
func (a Task) health() *core.HealthCheck {
	h := a.spec.GetHealthcheck()
	if h == nil {
		return nil
	}
	return &core.HealthCheck{
		Test: h.GetTest(), Interval: h.GetInterval().AsDuration(), Timeout: h.GetTimeout().AsDuration(), StartPeriod: h.GetStartPeriod().AsDuration(),
		StartInterval: h.GetStartInterval().AsDuration(), Retries: int(h.GetRetries()),
	}
}

// Check is the health check of a task's container; nil when it has none.
func Check(c core.Container) (*health.Check, error) {
	if len(c.Data) == 0 {
		return nil, nil //nolint:nilnil // it has none
	}
	var d data
	if err := json.Unmarshal(c.Data, &d); err != nil {
		return nil, fmt.Errorf("health check of container %s: %w: %w", c.ID, err, errdefs.ErrDataLoss)
	}
	return d.Health, nil
}

package nomad

import (
	"time"

	"github.com/containerd/errdefs"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/face/nomad/stats"
)

// The least and the usual time between two samples of a task.
const (
	leastInterval = 100 * time.Millisecond
	usualInterval = time.Second
)

// TaskStats implements the service: a sample at once, and then one every
// interval, until the task has ended.
func (s *server) TaskStats(req *nomaddriver.TaskStatsRequest, out nomaddriver.Driver_TaskStatsServer) error {
	ctx := out.Context()
	sess, err := plugin.Incoming(ctx)
	if err != nil {
		return err
	}
	c, err := s.task(ctx, req.GetTaskId())
	if err != nil {
		return err
	}
	interval := usualInterval
	if d := req.GetCollectionInterval(); d.AsDuration() > 0 {
		interval = max(d.AsDuration(), leastInterval)
	}
	mhz := stats.Speed(sess.Topology)
	if mhz == 0 {
		mhz = s.mhz
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		if c, err = s.engine.Container(ctx, c.ID); err == nil && !c.State.Live() {
			return nil
		}
		var st *nomaddriver.TaskStats
		if err == nil {
			st, err = s.usage.Read(ctx, c, req.GetTaskId(), mhz)
		}
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := out.Send(&nomaddriver.TaskStatsResponse{Stats: st}); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// TaskEvents implements the service. It never ends by itself.
func (s *server) TaskEvents(_ *nomaddriver.TaskEventsRequest, out nomaddriver.Driver_TaskEventsServer) error {
	sess, err := plugin.Incoming(out.Context())
	if err != nil {
		return err
	}
	return s.events.Stream(out.Context(), sess.Name, out.Send)
}

package control

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/stats"
)

// minInterval bounds the load of a stream of stats.
const minInterval = 100 * time.Millisecond

// Stats sends the stats of containers once, or once per interval.
func (s *containerServer) Stats(req *longshorev1.StatsRequest, stream grpc.ServerStreamingServer[longshorev1.StatsResponse]) error {
	ctx := stream.Context()
	interval := req.GetInterval().AsDuration()
	if req.GetInterval() != nil && interval < minInterval {
		return invalid.Errorf("interval %v is shorter than %v", interval, minInterval)
	}
	var ids []core.ID
	for _, name := range req.GetNames() {
		c, err := s.srv.container(ctx, name)
		if err != nil {
			return err
		}
		ids = append(ids, c.ID)
	}
	before := map[core.ID]core.Stats{}
	round := func() error {
		resp, err := s.srv.statsRound(ctx, ids, before)
		if err != nil {
			return err
		}
		return stream.Send(resp)
	}
	if err := round(); err != nil || interval == 0 {
		return err
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
			if err := round(); err != nil {
				return err
			}
		}
	}
}

// statsRound reads the stats of ids (nil: of all that run) and stores them in before.
func (s *Server) statsRound(ctx context.Context, ids []core.ID, before map[core.ID]core.Stats) (*longshorev1.StatsResponse, error) {
	list, err := s.all.Stored.Containers()
	if err != nil {
		return nil, err
	}
	sandboxes, err := s.all.Stored.Sandboxes()
	if err != nil {
		return nil, err
	}
	net, err := s.all.Stats.Networks(ctx, sandboxes)
	if err != nil {
		return nil, fmt.Errorf("stats of networks: %w", err)
	}
	wanted := map[core.ID]bool{}
	for _, id := range ids {
		wanted[id] = true
	}
	resp := &longshorev1.StatsResponse{}
	for _, c := range list {
		running := c.State.Live()
		if !running || (len(ids) > 0 && !wanted[c.ID]) {
			continue
		}
		st, err := s.all.Stats.OfContainer(ctx, c, core.StatsUsage|core.StatsDetail|core.StatsRootfs)
		if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
			continue // it has ended meanwhile
		}
		if err != nil {
			return nil, fmt.Errorf("stats of %s: %w", c.ID.Short(), err)
		}
		st.Net = net[c.Sandbox]
		last := before[c.ID] // zero in the first round
		before[c.ID] = st
		resp.Containers = append(resp.Containers, view.Stats(*c, st, last))
	}
	return resp, nil
}

// Top lists the processes of a container.
func (s *containerServer) Top(ctx context.Context, req *longshorev1.TopRequest) (*longshorev1.TopResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if !c.State.Live() {
		return nil, fmt.Errorf("list processes of %s: it is %s: %w", c.ID.Short(), c.State, errdefs.ErrFailedPrecondition)
	}
	st, err := s.srv.all.Stats.Container(ctx, c.ID, core.StatsProcesses)
	if err != nil {
		return nil, err
	}
	pids := map[int]bool{}
	for _, p := range st.Processes {
		pids[p.Pid] = true
	}
	resp := &longshorev1.TopResponse{}
	for _, p := range append(st.Processes, stats.Zombies(ctx, pids)...) {
		resp.Processes = append(resp.Processes, &longshorev1.ProcessStats{
			Pid: int32(p.Pid), UserNs: p.User, SystemNs: p.System, RssBytes: p.RSS, SwapBytes: p.Swap, Threads: int32(p.Threads), Command: p.Comm,
		})
	}
	return resp, nil
}

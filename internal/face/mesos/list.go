package mesos

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/containerd/errdefs"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/view"
)

// getContainers lists running containers of the kinds that the call asks for.
// Executors' containers, which are those of the other owners, are always listed.
func (s *server) getContainers(ctx context.Context, x *api.Exchange) error {
	in := x.Call.GetGetContainers()
	all, err := s.engine.Stored.Containers()
	if err != nil {
		return err
	}
	all = slices.DeleteFunc(all, func(c *core.Container) bool { return !isRunning(c) })
	slices.SortFunc(all, func(a, b *core.Container) int { return strings.Compare(string(a.Key), string(b.Key)) })
	resp := &mesosagent.Response_GetContainers{}
	if resp.Containers, err = s.state.executorContainers(ctx); err != nil {
		return err
	}
	shown := map[core.ID]*mesosagent.Response_GetContainers_Container{}
	if err := s.containers(ctx, slices.DeleteFunc(slices.Clone(all), func(c *core.Container) bool {
		return c.Parent != "" && !in.GetShowNested() || c.Parent == "" && !in.GetShowStandalone()
	}), shown); err != nil {
		return err
	}
	for _, c := range all {
		if r := shown[c.ID]; r != nil {
			resp.Containers = append(resp.Containers, r)
		}
		for _, p := range c.Execs {
			if p.Autopsy == nil && in.GetShowNested() {
				resp.Containers = append(resp.Containers, view.SessionContainer(c, &p))
			}
		}
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_CONTAINERS.Enum(), GetContainers: resp})
}

// isRunning reports whether a container runs, which includes paused ones.
func isRunning(c *core.Container) bool {
	return c.State.Live()
}

// listStats are the statistics that lists show.
const listStats = core.StatsUsage | core.StatsTasks | core.StatsProcessCount

// containers adds running containers to shown, with their known statistics. It reads the statistics of a few at a time.
func (s *server) containers(ctx context.Context, list []*core.Container, shown map[core.ID]*mesosagent.Response_GetContainers_Container) error {
	all, err := s.engine.Stored.Sandboxes()
	if err != nil {
		return err
	}
	sandboxes := make(map[core.ID]*core.Sandbox, len(all))
	for _, sb := range all {
		sandboxes[sb.ID] = sb
	}
	var measured []*core.Sandbox
	for _, c := range list {
		if sb := sandboxes[c.Sandbox]; sb != nil && c.Parent == "" {
			measured = append(measured, sb)
		}
	}
	net, err := s.engine.Stats.Networks(ctx, measured)
	if err != nil {
		s.log.DebugContext(ctx, "could not read the traffic of all containers together", "error", err)
		net = nil
	} else if net == nil {
		net = map[core.ID][]core.NetStats{}
	}
	found := make([]*mesosagent.Response_GetContainers_Container, len(list))
	var next atomic.Int64
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(list)) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < len(list); i = int(next.Add(1)) - 1 {
				found[i] = s.container(ctx, list[i], sandboxes[list[i].Sandbox], net)
			}
		})
	}
	workers.Wait()
	for i, c := range list {
		shown[c.ID] = found[i]
	}
	return nil
}

// container is a container in a list, with its known statistics. Those of a standalone container
// include everything nested in it, as in Mesos. net has the traffic of all sandboxes. If it is nil, container reads
// that of its sandbox.
func (s *server) container(ctx context.Context, c *core.Container, sb *core.Sandbox, net map[core.ID][]core.NetStats) *mesosagent.Response_GetContainers_Container {
	if sb == nil {
		sb = &core.Sandbox{} // it is being removed
	}
	r := view.Container(c, sb)
	st, err := s.statistics(ctx, c, sb, net)
	if err == nil {
		r.ResourceStatistics = view.Statistics(st)
		s.diskQuota.addTo(*c, r.ResourceStatistics)
	} else if !errdefs.IsNotFound(err) {
		s.log.DebugContext(ctx, "could not read the statistics of a container; it is listed without", "container", string(c.ID), "error", err)
	}
	return r
}

func (s *server) statistics(ctx context.Context, c *core.Container, sb *core.Sandbox, net map[core.ID][]core.NetStats) (core.Stats, error) {
	if c.Parent != "" {
		return s.engine.Stats.OfContainer(ctx, c, listStats)
	}
	if sb.ID == "" {
		return core.Stats{}, fmt.Errorf("statistics of container %s: its sandbox: %w", c.ID, errdefs.ErrNotFound)
	}
	st, err := s.engine.Stats.OfSandbox(ctx, sb, listStats)
	if err == nil && net == nil {
		net, err = s.engine.Stats.Networks(ctx, []*core.Sandbox{sb})
	}
	st.Net = net[sb.ID]
	return st, err
}

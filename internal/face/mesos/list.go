package mesos

import (
	"context"
	"slices"
	"strings"

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
	all, err := s.engine.Containers(ctx, core.Filter{})
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b core.Container) int { return strings.Compare(string(a.Key), string(b.Key)) })
	resp := &mesosagent.Response_GetContainers{}
	if resp.Containers, err = s.state.executorContainers(ctx); err != nil {
		return err
	}
	for i, c := range all {
		if !isRunning(&all[i]) {
			continue
		}
		if nested := c.Parent != ""; nested && in.GetShowNested() || !nested && in.GetShowStandalone() {
			resp.Containers = append(resp.Containers, s.container(ctx, c))
		}
		for _, p := range c.Execs {
			if p.Autopsy == nil && in.GetShowNested() {
				resp.Containers = append(resp.Containers, view.SessionContainer(&c, &p))
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
const listStats = core.StatsUsage | core.StatsCommon | core.StatsProcessCount

// container is a container in a list, with its known statistics. Those of a standalone container
// include everything nested in it, as in Mesos.
func (s *server) container(ctx context.Context, c core.Container) *mesosagent.Response_GetContainers_Container {
	sb, err := s.engine.Sandbox(ctx, c.Sandbox)
	if err != nil {
		sb = core.Sandbox{} // it is being removed
	}
	r := view.Container(&c, &sb)
	var st core.Stats
	if c.Parent == "" {
		st, err = s.engine.Stats.Sandbox(ctx, c.Sandbox, listStats)
	} else {
		st, err = s.engine.Stats.OfContainer(ctx, &c, listStats)
	}
	if err == nil {
		r.ResourceStatistics = view.Statistics(st)
		s.diskQuota.addTo(c, r.ResourceStatistics)
	} else if !errdefs.IsNotFound(err) {
		s.log.DebugContext(ctx, "could not read the statistics of a container; it is listed without", "container", string(c.ID), "error", err)
	}
	return r
}

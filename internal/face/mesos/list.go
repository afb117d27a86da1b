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

// getContainers lists what runs, as far as it is asked for: executors' containers,
// which are the other owners', always.
func (s *server) getContainers(ctx context.Context, x *api.Exchange) error {
	in := x.Call.GetGetContainers()
	all, err := s.engine.Containers(ctx, core.Filter{})
	if err != nil {
		return err
	}
	slices.SortFunc(all, func(a, b core.Container) int { return strings.Compare(string(a.Key), string(b.Key)) })
	resp := &mesosagent.Response_GetContainers{}
	if resp.Containers, err = s.shows.others(ctx); err != nil {
		return err
	}
	for i, c := range all {
		if !runs(&all[i]) {
			continue
		}
		if nested := c.Parent != ""; nested && in.GetShowNested() || !nested && in.GetShowStandalone() {
			resp.Containers = append(resp.Containers, s.shown(ctx, c))
		}
		for _, p := range c.Execs {
			if p.Autopsy == nil && in.GetShowNested() {
				resp.Containers = append(resp.Containers, view.SessionContainer(&c, &p))
			}
		}
	}
	return x.Answer(&mesosagent.Response{Type: mesosagent.Response_GET_CONTAINERS.Enum(), GetContainers: resp})
}

func runs(c *core.Container) bool {
	return c.State == core.ContainerRunning || c.State == core.ContainerPaused
}

// wanted are the figures that a container is shown with.
const wanted = core.FigureUsage | core.FigureDetail | core.FigureCount

// shown is a container with what could be found out about it. A standalone one's
// figures are those of its whole tree, as Mesos has it.
func (s *server) shown(ctx context.Context, c core.Container) *mesosagent.Response_GetContainers_Container {
	sb, err := s.engine.Sandbox(ctx, c.Sandbox)
	if err != nil {
		sb = core.Sandbox{} // it goes
	}
	r := view.Container(&c, &sb)
	var st core.Stats
	if c.Parent == "" {
		st, err = s.engine.Stats.Sandbox(ctx, c.Sandbox, wanted)
	} else {
		st, err = s.engine.Stats.OfContainer(ctx, &c, wanted)
	}
	if err == nil {
		r.ResourceStatistics = view.Statistics(st)
		s.disks.show(c, r.ResourceStatistics)
	} else if !errdefs.IsNotFound(err) {
		s.log.DebugContext(ctx, "a container is shown without figures", "container", string(c.ID), "error", err)
	}
	return r
}

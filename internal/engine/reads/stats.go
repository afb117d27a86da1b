// Package reads answers questions about usage and about stored objects, without any lock of the
// engine's verbs. It changes nothing, and shows each owner only its own objects. Start at Stats.
package reads

import (
	"context"
	"fmt"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
)

// Stats reads the usage of an owner's sandboxes and containers. It changes nothing and takes no
// lock, so that a list of a thousand containers never delays a start. core.StatsFields selects the
// values to read.
type Stats struct {
	Scope   scope.Scope
	Cgroups core.Cgroups
	Images  core.Images
	Network core.Network
}

// Container returns the stats of a container.
func (s Stats) Container(ctx context.Context, container core.ID, want core.StatsFields) (core.Stats, error) {
	c, err := s.Scope.Container(container)
	if err != nil {
		return core.Stats{}, err
	}
	return s.OfContainer(ctx, &c, want)
}

// OfContainer returns the stats of a container from a fresh record; NotFound when its cgroup has
// been removed since.
func (s Stats) OfContainer(ctx context.Context, c *core.Container, want core.StatsFields) (core.Stats, error) {
	if err := s.Scope.Visible(&c.Meta, "container"); err != nil {
		return core.Stats{}, err
	}
	st, err := s.of(ctx, c.Cgroup, want)
	if err == nil && c.Image != "" && want.Has(core.StatsRootfs) {
		st.Root, err = s.Images.RootStats(ctx, c.ID)
	}
	if err != nil {
		return core.Stats{}, fmt.Errorf("stats of container %s: %w", c.ID, err)
	}
	return st, nil
}

// Sandbox returns the stats of a sandbox, including its network's.
func (s Stats) Sandbox(ctx context.Context, sandbox core.ID, want core.StatsFields) (core.Stats, error) {
	sb, err := s.Scope.Sandbox(sandbox)
	if err != nil {
		return core.Stats{}, err
	}
	st, err := s.OfSandbox(ctx, &sb, want)
	if err != nil {
		return core.Stats{}, err
	}
	net, err := s.Networks(ctx, []*core.Sandbox{&sb})
	st.Net = net[sandbox]
	return st, err
}

// OfSandbox returns the stats of a sandbox from a fresh record, without its network's: see
// Networks.
func (s Stats) OfSandbox(ctx context.Context, sb *core.Sandbox, want core.StatsFields) (core.Stats, error) {
	if err := s.Scope.Visible(&sb.Meta, "sandbox"); err != nil {
		return core.Stats{}, err
	}
	st, err := s.of(ctx, sb.Cgroup, want)
	if err != nil {
		return core.Stats{}, fmt.Errorf("stats of sandbox %s: %w", sb.ID, err)
	}
	return st, nil
}

// Networks returns the traffic of the sandboxes' interfaces. Sandboxes that are not ready, or
// have no network of their own, are left out.
func (s Stats) Networks(ctx context.Context, sandboxes []*core.Sandbox) (map[core.ID][]core.NetStats, error) {
	var reqs []core.NetworkRequest
	for _, sb := range sandboxes {
		if sb.State == core.SandboxReady && sb.Config.Namespaces.Net.Mode == core.Shared && s.Scope.Sees(&sb.Meta) {
			reqs = append(reqs, sb.NetworkRequest())
		}
	}
	if len(reqs) == 0 {
		return nil, nil
	}
	return s.Network.Stats(ctx, reqs)
}

func (s Stats) of(ctx context.Context, ref core.CgroupRef, want core.StatsFields) (core.Stats, error) {
	return s.Cgroups.Stats(ctx, ref, want)
}

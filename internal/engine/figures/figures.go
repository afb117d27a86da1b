// Package figures reads what sandboxes and containers use: the engine's part
// that only looks.
//
// It changes nothing and takes no lock, so that a list of a thousand containers
// never stands in the way of a start. It must not know who asks: which figures
// a protocol wants is said by core.Figures. Start at Reader.
package figures

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Ports are what figures are read from. Each is required.
type Ports struct {
	Store   core.Store
	Cgroups core.Cgroups
	Images  core.Images
	Network core.Network
}

// Reader reads figures as one owner may see them.
type Reader struct {
	from  Ports
	owner core.Owner
}

// New returns the reader of one owner; "" sees all.
func New(owner core.Owner, from Ports) Reader { return Reader{from, owner} }

func (r Reader) sees(m *core.Meta, kind string) error {
	if r.owner == "" || m.Owner == r.owner {
		return nil
	}
	return fmt.Errorf("%s %s: %w", kind, m.ID, errdefs.ErrNotFound)
}

// Stats are a container's figures, found by its ID.
func (r Reader) Stats(ctx context.Context, container core.ID, want core.Figures) (core.Stats, error) {
	var c core.Container
	err := r.from.Store.View(func(tx core.Tx) (err error) { c, err = tx.Containers().Get(container); return err })
	if err != nil {
		return core.Stats{}, err
	}
	return r.ContainerStats(ctx, &c, want)
}

// ContainerStats are the figures of a container that the caller has just looked
// up. NotFound when its cgroup has gone since.
func (r Reader) ContainerStats(ctx context.Context, c *core.Container, want core.Figures) (core.Stats, error) {
	if err := r.sees(&c.Meta, "container"); err != nil {
		return core.Stats{}, err
	}
	s, err := r.of(ctx, c.Cgroup, want)
	if err == nil && c.Image != "" && want.Has(core.FigureRoot) {
		s.Root, err = r.from.Images.RootStats(ctx, c.ID)
	}
	if err != nil {
		return core.Stats{}, fmt.Errorf("stats of container %s: %w", c.ID, err)
	}
	return s, nil
}

// SandboxStats are a sandbox's figures, its network's included, found by its ID.
func (r Reader) SandboxStats(ctx context.Context, sandbox core.ID, want core.Figures) (core.Stats, error) {
	var sb core.Sandbox
	err := r.from.Store.View(func(tx core.Tx) (err error) { sb, err = tx.Sandboxes().Get(sandbox); return err })
	if err != nil {
		return core.Stats{}, err
	}
	s, err := r.CgroupStats(ctx, &sb, want)
	if err != nil {
		return core.Stats{}, err
	}
	net, err := r.NetworkStats(ctx, []*core.Sandbox{&sb})
	s.Net = net[sandbox]
	return s, err
}

// CgroupStats are those of a sandbox that the caller has just looked up, without
// its network: see NetworkStats.
func (r Reader) CgroupStats(ctx context.Context, sb *core.Sandbox, want core.Figures) (core.Stats, error) {
	if err := r.sees(&sb.Meta, "sandbox"); err != nil {
		return core.Stats{}, err
	}
	s, err := r.of(ctx, sb.Cgroup, want)
	if err != nil {
		return core.Stats{}, fmt.Errorf("stats of sandbox %s: %w", sb.ID, err)
	}
	return s, nil
}

// NetworkStats are what the networks of sandboxes carried. One that is not
// ready, or has no network of its own, is not in the answer.
func (r Reader) NetworkStats(ctx context.Context, sandboxes []*core.Sandbox) (map[core.ID][]core.NetStats, error) {
	var reqs []core.NetworkRequest
	for _, sb := range sandboxes {
		if sb.State == core.SandboxReady && sb.Config.Namespaces.Net.Mode == core.Shared && r.sees(&sb.Meta, "sandbox") == nil {
			reqs = append(reqs, sb.NetworkRequest())
		}
	}
	if len(reqs) == 0 {
		return nil, nil
	}
	return r.from.Network.Stats(ctx, reqs)
}

func (r Reader) of(ctx context.Context, ref core.CgroupRef, want core.Figures) (core.Stats, error) {
	s, err := r.from.Cgroups.Stats(ctx, ref, want)
	if err == nil && want.Has(core.FigureLimits) {
		s.Limits, err = r.from.Cgroups.Resources(ctx, ref)
	}
	return s, err
}

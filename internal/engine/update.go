package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/changes"
	"github.com/longshore/longshore/internal/engine/scope"
)

// UpdateContainer changes a container's limits and returns those that the kernel then enforces.
func (c *Client) UpdateContainer(ctx context.Context, id core.ID, res *specs.LinuxResources) (enforced *specs.LinuxResources, err error) {
	ct, err := c.view.Container(id)
	if err != nil {
		return nil, err
	}
	op := core.Operation{Verb: core.VerbUpdate, Container: &ct, Resources: res}
	err = c.e.perform(ctx, &op, func() error {
		enforced, err = c.view.update(ctx, &ct, op.Resources)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("update container %s: %w", id, err)
	}
	return enforced, nil
}

func (c view) update(ctx context.Context, ct *core.Container, res *specs.LinuxResources) (*specs.LinuxResources, error) {
	unlock, err := c.e.sandboxes.Lock(ctx, ct.Sandbox)
	if err != nil {
		return nil, err
	}
	defer unlock()
	cur, err := c.Container(ct.ID)
	if err != nil {
		return nil, err
	}
	if cur.State == core.ContainerCreating || cur.State == core.ContainerExited {
		return nil, fmt.Errorf("it is %s: %w", cur.State, errdefs.ErrFailedPrecondition)
	}
	rt, err := c.e.runtime(cur.Runtime)
	if err != nil {
		return nil, err
	}
	limit := func() error { return rt.Update(ctx, ct.ID, res) }
	if cur.Refused != nil { // the runtime knows nothing of it
		limit = func() error { return c.e.o.Cgroups.Update(ctx, cur.Cgroup, res) }
	}
	if err := limit(); err != nil {
		return nil, err
	}
	err = c.ChangeContainer(ct.ID, scope.By{Verb: "update"}, func(_ *core.Container, n *scope.Change) error {
		n.Add(core.Event{Kind: core.EventContainerUpdated})
		return nil
	})
	if err != nil {
		return nil, err
	}
	return c.e.o.Cgroups.Resources(ctx, cur.Cgroup)
}

// UpdateNextStart stores limits in a container's spec, for its next start. Limits that are nil in res
// stay. It does not change the limits in force.
func (c *Client) UpdateNextStart(ctx context.Context, id core.ID, res *specs.LinuxResources) error {
	return changes.Changes{Scope: c.view.Scope}.Keep(ctx, id, res)
}

// RenameContainer gives a container another key, and its sandbox too where both were created together
// and have the same one. AlreadyExists when another container or sandbox has that key.
func (c *Client) RenameContainer(ctx context.Context, id core.ID, to core.Key) error {
	return changes.Changes{Scope: c.view.Scope}.Rename(ctx, id, to)
}

// SetContainerHealth stores the result of a container's health checks.
func (c *Client) SetContainerHealth(ctx context.Context, id core.ID, h core.Health) error {
	return changes.Changes{Scope: c.view.Scope}.Health(ctx, id, h)
}

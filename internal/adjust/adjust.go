// Package adjust holds the policies that every node has, and their one fixed
// order: first the devices that a container asks for by name, then what its owner
// has of its own, then what this node may give at all (seccomp, AppArmor and
// SELinux that the kernel lacks, capabilities and limits that the agent itself
// does not hold), which so has the last word.
//
// It must not know any orchestrator, nor link the library of CDI (package cdi does):
// an owner's policy and the devices are handed in. Start at Policies.
package adjust

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

// Options are what Policies are made of.
type Options struct {
	// CDI adds devices first of all; cdi.Devices does. nil: who asks for one is
	// refused.
	CDI Devices
	// Owners come next, in this order.
	Owners []Owned
	// Node is what this node may give. The zero Node may give nothing: use
	// ocispec.ReadNode.
	Node ocispec.Node
}

// Devices adds devices, by their qualified names (vendor.com/class=name), to a spec.
type Devices interface {
	// Inject does so. NotFound when a device is not known.
	Inject(spec *specs.Spec, names []string) error
}

// Policies are the engine's, in their order.
func Policies(o Options) []core.Policy {
	all := []core.Policy{devices{of: o.CDI}}
	for _, own := range o.Owners {
		all = append(all, own)
	}
	return append(all, node{of: o.Node})
}

// Owned is a policy that is asked about one owner's objects alone.
type Owned struct {
	Owner  core.Owner
	Policy core.Policy
}

var _ core.Policy = Owned{}

// AdmitSandbox asks it about the owner's sandbox.
func (o Owned) AdmitSandbox(ctx context.Context, sb *core.Sandbox) error {
	if sb.Owner != o.Owner {
		return nil
	}
	if err := o.Policy.AdmitSandbox(ctx, sb); err != nil {
		return fmt.Errorf("admit sandbox for %s: %w", o.Owner, err)
	}
	return nil
}

// AdjustContainer has it change the owner's container.
func (o Owned) AdjustContainer(ctx context.Context, sb *core.Sandbox, c *core.Container, spec *specs.Spec) error {
	if c.Owner != o.Owner {
		return nil
	}
	if err := o.Policy.AdjustContainer(ctx, sb, c, spec); err != nil {
		return fmt.Errorf("adjust spec for %s: %w", o.Owner, err)
	}
	return nil
}

// AdjustProcess has it change a process of the owner's container.
func (o Owned) AdjustProcess(ctx context.Context, sb *core.Sandbox, c *core.Container, p *specs.Process) error {
	if c.Owner != o.Owner {
		return nil
	}
	return o.Policy.AdjustProcess(ctx, sb, c, p)
}

// Before asks it about a verb on the owner's object.
func (o Owned) Before(ctx context.Context, op *core.Operation) (after func(error), err error) {
	if op.Owner() != o.Owner {
		return nil, nil
	}
	return o.Policy.Before(ctx, op)
}

// devices gives containers the devices that they ask for.
type devices struct {
	core.Permit
	of Devices
}

func (d devices) AdjustContainer(_ context.Context, _ *core.Sandbox, c *core.Container, spec *specs.Spec) error {
	names := c.Config.CDI
	switch {
	case len(names) == 0:
		return nil
	case d.of == nil:
		return fmt.Errorf("cdi: no device %s: this node has no CDI devices: %w", strings.Join(names, ", "), errdefs.ErrNotFound)
	}
	return d.of.Inject(spec, names)
}

// node fits specs to what the node may give and says in the container's Warnings
// what that is not.
type node struct {
	core.Permit
	of ocispec.Node
}

func (n node) AdjustContainer(_ context.Context, _ *core.Sandbox, c *core.Container, spec *specs.Spec) error {
	c.Warnings = append(c.Warnings, n.of.Clamp(spec)...)
	return nil
}

// AdjustProcess warns of nothing: that was done when the container was created.
func (n node) AdjustProcess(_ context.Context, _ *core.Sandbox, _ *core.Container, p *specs.Process) error {
	n.of.ClampProcess(p)
	return nil
}

// Package adjust holds the policies of every node, in a fixed order: first the devices that a
// container asks for by name, then the policies of its owner, and last the node's restrictions
// (seccomp, AppArmor and SELinux that the kernel lacks, capabilities and limits that the agent
// itself does not have), which therefore have the last word.
//
// It knows no orchestrator, and does not link the CDI library, which package cdi does: devices
// and owners' policies are passed in. Start at Policies.
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

// Options are the parameters of Policies.
type Options struct {
	// CDI adds devices, before everything else; cdi.Devices implements it. With nil, a container
	// that asks for a device is refused.
	CDI Devices
	// Owners are asked next, in this order.
	Owners []Owned
	// Node is what this node can give to containers. The zero Node can give nothing: use
	// ocispec.ReadNode.
	Node ocispec.Node
}

// Devices adds devices, by their qualified names (vendor.com/class=name), to a spec.
type Devices interface {
	// Inject adds the named devices. NotFound when a device is unknown.
	Inject(spec *specs.Spec, names []string) error
}

// Policies returns the engine's policies, in order.
func Policies(o Options) []core.Policy {
	all := []core.Policy{devices{of: o.CDI}}
	for _, own := range o.Owners {
		all = append(all, own)
	}
	return append(all, node{of: o.Node})
}

// Owned is a policy that is asked only about one owner's objects.
type Owned struct {
	Owner  core.Owner
	Policy core.Policy
}

var _ core.Policy = Owned{}

// AdmitSandbox asks the policy if the sandbox is the owner's.
func (o Owned) AdmitSandbox(ctx context.Context, sb *core.Sandbox) error {
	if sb.Owner != o.Owner {
		return nil
	}
	if err := o.Policy.AdmitSandbox(ctx, sb); err != nil {
		return fmt.Errorf("admit sandbox for %s: %w", o.Owner, err)
	}
	return nil
}

// AdjustContainer asks the policy if the container is the owner's.
func (o Owned) AdjustContainer(ctx context.Context, sb *core.Sandbox, c *core.Container, spec *specs.Spec) error {
	if c.Owner != o.Owner {
		return nil
	}
	if err := o.Policy.AdjustContainer(ctx, sb, c, spec); err != nil {
		return fmt.Errorf("adjust spec for %s: %w", o.Owner, err)
	}
	return nil
}

// AdjustProcess asks the policy if the container is the owner's.
func (o Owned) AdjustProcess(ctx context.Context, sb *core.Sandbox, c *core.Container, p *specs.Process) error {
	if c.Owner != o.Owner {
		return nil
	}
	return o.Policy.AdjustProcess(ctx, sb, c, p)
}

// Before asks the policy if the object is the owner's.
func (o Owned) Before(ctx context.Context, op *core.Operation) (after func(error), err error) {
	if op.Owner() != o.Owner {
		return nil, nil
	}
	return o.Policy.Before(ctx, op)
}

// devices adds the devices that containers ask for.
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

// node removes from specs what the node cannot give, and says so in the container's Warnings.
type node struct {
	core.Permit
	of ocispec.Node
}

func (n node) AdjustContainer(_ context.Context, _ *core.Sandbox, c *core.Container, spec *specs.Spec) error {
	c.Warnings = append(c.Warnings, n.of.Clamp(spec)...)
	return nil
}

// AdjustProcess adds no warnings, because the container got them when it was created.
func (n node) AdjustProcess(_ context.Context, _ *core.Sandbox, _ *core.Container, p *specs.Process) error {
	n.of.ClampProcess(p)
	return nil
}

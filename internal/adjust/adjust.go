// Package adjust holds the policies of every node, in a fixed order: first the devices that a
// container asks for by name, then the node's default limits, then the policies of its owner, and last the node's restrictions
// (seccomp, AppArmor and SELinux that the kernel lacks, capabilities and limits that the agent
// itself does not have), which therefore have the last word.
//
// It knows no orchestrator, and does not link the CDI library, which package cdi does: devices
// and owners' policies are passed in. Start at Policies.
package adjust

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

// Options are the parameters of Policies.
type Options struct {
	// First come before all others. They see the verbs that others refuse.
	First []core.Policy
	// CDI adds devices, before everything else; cdi.Devices implements it. With nil, a container
	// that asks for a device is refused.
	CDI Devices
	// Ulimits are the default resource limits of containers. The owners' policies see them, and can change them.
	Ulimits []specs.POSIXRlimit
	// Owners are asked next, in this order.
	Owners []Owned
	// Node is what this node can give to containers. The zero Node can give nothing: use
	// ocispec.ReadNode.
	Node ocispec.Node
	// Egress restricts the processes of sandboxes with an egress list, last of all; nil for none.
	Egress core.Policy
	// Profiles makes sure that the kernel has a container's AppArmor profile. With nil, profiles
	// are left to the kernel.
	Profiles Profiles
}

// Profiles has the AppArmor profiles of the kernel.
type Profiles interface {
	// Ensure returns when the kernel has the profile. unable explains why this node cannot load
	// its default profile; then the container runs without one.
	Ensure(ctx context.Context, name string) (unable string, err error)
}

// Devices adds devices, by their qualified names (vendor.com/class=name), to a spec.
type Devices interface {
	// Inject adds the named devices. NotFound when a device is unknown.
	Inject(spec *specs.Spec, names []string) error
}

// Policies returns the engine's policies, in order.
func Policies(o Options) []core.Policy {
	all := append(slices.Clone(o.First), devices{of: o.CDI}, ulimits{of: o.Ulimits})
	for _, own := range o.Owners {
		all = append(all, own)
	}
	all = append(all, node{of: o.Node, profiles: o.Profiles})
	if o.Egress != nil {
		all = append(all, o.Egress)
	}
	return all
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

// ulimits adds the node's default resource limits. Processes of an exec have those of their container's spec.
type ulimits struct {
	core.Permit
	of []specs.POSIXRlimit
}

func (u ulimits) AdjustContainer(_ context.Context, _ *core.Sandbox, _ *core.Container, spec *specs.Spec) error {
	if spec.Process == nil {
		return nil
	}
	for _, l := range u.of {
		if !slices.ContainsFunc(spec.Process.Rlimits, func(o specs.POSIXRlimit) bool { return o.Type == l.Type }) {
			spec.Process.Rlimits = append(spec.Process.Rlimits, l)
		}
	}
	return nil
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
	of       ocispec.Node
	profiles Profiles
}

func (n node) AdjustContainer(ctx context.Context, _ *core.Sandbox, c *core.Container, spec *specs.Spec) error {
	c.Warnings = append(c.Warnings, n.of.Clamp(spec)...)
	if err := ocispec.ApplyLevels(spec); err != nil {
		return err
	}
	if spec.Process == nil {
		return nil
	}
	if !n.profiled(spec.Process) {
		return nil
	}
	unable, err := n.profiles.Ensure(ctx, spec.Process.ApparmorProfile)
	if unable != "" {
		c.Warnings = append(c.Warnings, "no apparmor profile: "+unable)
		spec.Process.ApparmorProfile = ""
	}
	return err
}

// profiled reports whether the kernel must have the process's AppArmor profile. AppArmor may have
// been reloaded since the agent's start, which removes profiles that are in no file.
func (n node) profiled(p *specs.Process) bool {
	return n.profiles != nil && p.ApparmorProfile != "" && p.ApparmorProfile != "unconfined"
}

// AdjustProcess adds no warnings, because the container got them when it was created. A process of
// a container with a profile never runs without it.
func (n node) AdjustProcess(ctx context.Context, _ *core.Sandbox, _ *core.Container, p *specs.Process) error {
	n.of.ClampProcess(p)
	if !n.profiled(p) {
		return nil
	}
	unable, err := n.profiles.Ensure(ctx, p.ApparmorProfile)
	if unable != "" {
		return fmt.Errorf("its apparmor profile is no longer loaded: %s: %w", unable, errdefs.ErrFailedPrecondition)
	}
	return err
}

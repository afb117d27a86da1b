// Package adjust brings everything that changes a container's spec on its way to
// the runtime into one fixed order: first the devices it asks for by name, then
// what an owner has of its own, then what this node may give at all (seccomp, AppArmor and SELinux that the kernel
// lacks, capabilities and limits that the agent itself does not hold), which so
// has the last word.
//
// It must not know any orchestrator, nor link the library of CDI (package cdi does):
// an owner's adjuster and the devices are handed in. Start at Chain.
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

// Options are what a Chain is made of.
type Options struct {
	// CDI adds devices first of all; cdi.Devices does. nil: who asks for one is
	// refused.
	CDI Devices
	// Owners run first, in this order, each for the containers of one owner.
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

// Owned is one owner's own adjuster.
type Owned struct {
	Owner    core.Owner
	Adjuster core.Adjuster
}

// Chain is the fixed order as one core.Adjuster.
type Chain struct{ o Options }

var (
	_ core.Adjuster = (*Chain)(nil)
	_ core.Admitter = (*Chain)(nil)
)

// New returns the chain of o.
func New(o Options) *Chain { return &Chain{o} }

// Adjust runs every adjuster that concerns c.
func (a *Chain) Adjust(ctx context.Context, sb *core.Sandbox, c *core.Container, spec *specs.Spec) error {
	if err := a.inject(spec, c.Config.CDI); err != nil {
		return err
	}
	for _, own := range a.o.Owners {
		if own.Owner != c.Owner {
			continue
		}
		if err := own.Adjuster.Adjust(ctx, sb, c, spec); err != nil {
			return fmt.Errorf("adjust spec for %s: %w", own.Owner, err)
		}
	}
	return a.o.Node.Adjust(ctx, sb, c, spec)
}

func (a *Chain) inject(spec *specs.Spec, names []string) error {
	switch {
	case len(names) == 0:
		return nil
	case a.o.CDI == nil:
		return fmt.Errorf("cdi: no device %s: this node has no CDI devices: %w", strings.Join(names, ", "), errdefs.ErrNotFound)
	}
	return a.o.CDI.Inject(spec, names)
}

// Admit asks every owner's adjuster that wants to be asked about its sandboxes.
func (a *Chain) Admit(ctx context.Context, sb *core.Sandbox) error {
	for _, own := range a.o.Owners {
		if ad, ok := own.Adjuster.(core.Admitter); ok && own.Owner == sb.Owner {
			if err := ad.Admit(ctx, sb); err != nil {
				return fmt.Errorf("admit sandbox for %s: %w", own.Owner, err)
			}
		}
	}
	return nil
}

// AdjustProcess fits a further process to what this node may give. What it could
// not give was said when the container was created.
func (a *Chain) AdjustProcess(_ context.Context, _ *core.Container, p *specs.Process) error {
	a.o.Node.ClampProcess(p)
	return nil
}

package adjust_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/adjust"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

type adjuster func(spec *specs.Spec) error

func (f adjuster) Adjust(_ context.Context, _ *core.Sandbox, _ *core.Container, spec *specs.Spec) error {
	return f(spec)
}

func grant(spec *specs.Spec) error {
	spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL", "CAP_SYS_RESOURCE"}}
	return nil
}

// TestTheNodeHasTheLastWord: an owner's adjuster cannot give what the agent
// itself does not hold.
func TestTheNodeHasTheLastWord(t *testing.T) {
	chain := adjust.New(adjust.Options{
		Owners: []adjust.Owned{{core.OwnerCRI, adjuster(grant)}},
		Node:   ocispec.Node{Capabilities: []string{"CAP_KILL"}},
	})
	for owner, want := range map[core.Owner][]string{core.OwnerCRI: {"CAP_KILL"}, core.OwnerNomad: nil} {
		c := core.Container{Meta: core.Meta{Owner: owner}}
		spec := &specs.Spec{Process: &specs.Process{}}
		if err := chain.Adjust(t.Context(), &core.Sandbox{}, &c, spec); err != nil {
			t.Fatal(err)
		}
		var got []string
		if spec.Process.Capabilities != nil {
			got = spec.Process.Capabilities.Bounding
		}
		if !slices.Equal(got, want) || (len(c.Warnings) > 0) != (owner == core.OwnerCRI) {
			t.Errorf("%s: %v, warnings %v", owner, got, c.Warnings)
		}
	}
}

func TestAnOwnersErrorEndsIt(t *testing.T) {
	bad := errors.New("no")
	chain := adjust.New(adjust.Options{Owners: []adjust.Owned{{core.OwnerCRI, adjuster(func(*specs.Spec) error { return bad })}}})
	err := chain.Adjust(t.Context(), &core.Sandbox{}, &core.Container{Meta: core.Meta{Owner: core.OwnerCRI}}, &specs.Spec{})
	if !errors.Is(err, bad) {
		t.Fatalf("err = %v", err)
	}
}

func TestAFurtherProcessIsFittedToo(t *testing.T) {
	chain := adjust.New(adjust.Options{Node: ocispec.Node{Capabilities: []string{"CAP_KILL"}}})
	p := &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL", "CAP_SYS_ADMIN"}}}
	if err := chain.AdjustProcess(t.Context(), &core.Container{}, p); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(p.Capabilities.Bounding, []string{"CAP_KILL"}) {
		t.Fatalf("%v", p.Capabilities.Bounding)
	}
}

// TestWithoutCDIADeviceIsRefused: who asks for none is served.
func TestWithoutCDIADeviceIsRefused(t *testing.T) {
	chain := adjust.New(adjust.Options{})
	for name, c := range map[string]core.Container{"": {}, "vendor.com/net=one": {Config: core.ContainerConfig{CDI: []string{"vendor.com/net=one"}}}} {
		err := chain.Adjust(t.Context(), &core.Sandbox{}, &c, &specs.Spec{Process: &specs.Process{}})
		if name == "" && err != nil || name != "" && (!errdefs.IsNotFound(err) || !strings.Contains(err.Error(), name)) {
			t.Errorf("devices %q: %v", name, err)
		}
	}
}

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

func (f adjuster) AdmitSandbox(context.Context, *core.Sandbox) error { return f(nil) }

func (f adjuster) AdjustContainer(_ context.Context, _ *core.Sandbox, _ *core.Container, spec *specs.Spec) error {
	return f(spec)
}

func (f adjuster) AdjustProcess(context.Context, *core.Sandbox, *core.Container, *specs.Process) error {
	return f(nil)
}

func (f adjuster) Before(context.Context, *core.Operation) (after func(error), err error) {
	return nil, f(nil)
}

func grant(spec *specs.Spec) error {
	spec.Process.Capabilities = &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL", "CAP_SYS_RESOURCE"}}
	return nil
}

// adjustContainer asks all policies, as the engine does.
func adjustContainer(t *testing.T, o adjust.Options, c *core.Container, spec *specs.Spec) error {
	t.Helper()
	for _, p := range adjust.Policies(o) {
		if err := p.AdjustContainer(t.Context(), &core.Sandbox{}, c, spec); err != nil {
			return err
		}
	}
	return nil
}

// TestTheNodeHasTheLastWord: an owner's policy cannot grant a privilege that the agent itself
// lacks.
func TestTheNodeHasTheLastWord(t *testing.T) {
	o := adjust.Options{
		Owners: []adjust.Owned{{core.OwnerCRI, adjuster(grant)}},
		Node:   ocispec.Node{Capabilities: []string{"CAP_KILL"}},
	}
	for owner, want := range map[core.Owner][]string{core.OwnerCRI: {"CAP_KILL"}, core.OwnerNomad: nil} {
		c := core.Container{Meta: core.Meta{Owner: owner}}
		spec := &specs.Spec{Process: &specs.Process{}}
		if err := adjustContainer(t, o, &c, spec); err != nil {
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

// TestAnOwnersPolicyIsAskedAboutItsOwn objects only, and its errors are the engine's.
func TestAnOwnersPolicyIsAskedAboutItsOwn(t *testing.T) {
	bad := errors.New("no")
	p := adjust.Owned{Owner: core.OwnerCRI, Policy: adjuster(func(*specs.Spec) error { return bad })}
	for owner, want := range map[core.Owner]error{core.OwnerCRI: bad, core.OwnerNomad: nil} {
		m := core.Meta{Owner: owner}
		sb, c := &core.Sandbox{Meta: m}, &core.Container{Meta: m}
		_, ofSandbox := p.Before(t.Context(), &core.Operation{Sandbox: sb})
		_, ofContainer := p.Before(t.Context(), &core.Operation{Container: c})
		for what, err := range map[string]error{
			"admit":             p.AdmitSandbox(t.Context(), sb),
			"adjust container":  p.AdjustContainer(t.Context(), sb, c, &specs.Spec{}),
			"adjust process":    p.AdjustProcess(t.Context(), sb, c, &specs.Process{}),
			"before, sandbox":   ofSandbox,
			"before, container": ofContainer,
		} {
			if !errors.Is(err, want) {
				t.Errorf("%s of %s: %v, want %v", what, owner, err, want)
			}
		}
	}
}

func TestAFurtherProcessIsFittedToo(t *testing.T) {
	p := &specs.Process{Capabilities: &specs.LinuxCapabilities{Bounding: []string{"CAP_KILL", "CAP_SYS_ADMIN"}}}
	for _, policy := range adjust.Policies(adjust.Options{Node: ocispec.Node{Capabilities: []string{"CAP_KILL"}}}) {
		if err := policy.AdjustProcess(t.Context(), &core.Sandbox{}, &core.Container{}, p); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(p.Capabilities.Bounding, []string{"CAP_KILL"}) {
		t.Fatalf("%v", p.Capabilities.Bounding)
	}
}

// TestWithoutCDIADeviceIsRefused, and containers that ask for none are not.
func TestWithoutCDIADeviceIsRefused(t *testing.T) {
	for name, c := range map[string]core.Container{"": {}, "vendor.com/net=one": {Config: core.ContainerConfig{CDI: []string{"vendor.com/net=one"}}}} {
		err := adjustContainer(t, adjust.Options{}, &c, &specs.Spec{Process: &specs.Process{}})
		if name == "" && err != nil || name != "" && (!errdefs.IsNotFound(err) || !strings.Contains(err.Error(), name)) {
			t.Errorf("devices %q: %v", name, err)
		}
	}
}

// kernel has the AppArmor profiles of a node.
type kernel struct {
	unable string
	err    error
	asked  []string
}

func (k *kernel) Ensure(_ context.Context, name string) (string, error) {
	k.asked = append(k.asked, name)
	return k.unable, k.err
}

// TestProfilesAreLoadedBeforeTheyAreNeeded: of a container that asks for one, on a node that has
// AppArmor. Where the node cannot load it the container runs without, and its warnings say so.
func TestProfilesAreLoadedBeforeTheyAreNeeded(t *testing.T) {
	bad := errors.New("no such rule")
	for name, c := range map[string]struct {
		node  ocispec.Node
		asks  string
		has   kernel
		asked int
		want  string
		err   error
		warns bool
	}{
		"loaded":     {node: ocispec.Node{AppArmor: true}, asks: "mine", asked: 1, want: "mine"},
		"none":       {node: ocispec.Node{AppArmor: true}},
		"unconfined": {node: ocispec.Node{AppArmor: true}, asks: "unconfined", want: "unconfined"},
		"off":        {asks: ocispec.DefaultProfile},
		"unable":     {node: ocispec.Node{AppArmor: true}, asks: ocispec.DefaultProfile, has: kernel{unable: "install apparmor"}, asked: 1, warns: true},
		"failed":     {node: ocispec.Node{AppArmor: true}, asks: "mine", has: kernel{err: bad}, asked: 1, want: "mine", err: bad},
	} {
		t.Run(name, func(t *testing.T) {
			var ct core.Container
			spec := &specs.Spec{Process: &specs.Process{ApparmorProfile: c.asks}}
			err := adjustContainer(t, adjust.Options{Node: c.node, Profiles: &c.has}, &ct, spec)
			if !errors.Is(err, c.err) || spec.Process.ApparmorProfile != c.want || len(c.has.asked) != c.asked {
				t.Errorf("error %v, profile %q, the kernel was asked about %q", err, spec.Process.ApparmorProfile, c.has.asked)
			}
			if warns := strings.Contains(strings.Join(ct.Warnings, "\n"), c.has.unable); len(ct.Warnings) > 0 != c.warns || !warns {
				t.Errorf("warnings %q", ct.Warnings)
			}
		})
	}
}

// TestAFurtherProcessNeverRunsWithoutTheProfile of its container.
func TestAFurtherProcessNeverRunsWithoutTheProfile(t *testing.T) {
	bad := errors.New("no such rule")
	for name, c := range map[string]struct {
		asks  string
		has   kernel
		fails func(error) bool
	}{
		"loaded":     {asks: "mine", fails: func(err error) bool { return err == nil }},
		"unconfined": {has: kernel{unable: "install apparmor"}, fails: func(err error) bool { return err == nil }},
		"unable":     {asks: "mine", has: kernel{unable: "install apparmor"}, fails: errdefs.IsFailedPrecondition},
		"failed":     {asks: "mine", has: kernel{err: bad}, fails: func(err error) bool { return errors.Is(err, bad) }},
	} {
		t.Run(name, func(t *testing.T) {
			p := &specs.Process{ApparmorProfile: c.asks}
			var err error
			for _, policy := range adjust.Policies(adjust.Options{Node: ocispec.Node{AppArmor: true}, Profiles: &c.has}) {
				err = errors.Join(err, policy.AdjustProcess(t.Context(), &core.Sandbox{}, &core.Container{}, p))
			}
			if !c.fails(err) || p.ApparmorProfile != c.asks {
				t.Errorf("error %v, profile %q", err, p.ApparmorProfile)
			}
		})
	}
}

// TestDefaultLimits shows that a container has the node's limits, except where its request or its owner's policy sets another
// one, and that the node's abilities bound them.
func TestDefaultLimits(t *testing.T) {
	limit := func(name string, soft, hard uint64) specs.POSIXRlimit {
		return specs.POSIXRlimit{Type: "RLIMIT_" + name, Soft: soft, Hard: hard}
	}
	seen := 0
	o := adjust.Options{
		Ulimits: []specs.POSIXRlimit{limit("NOFILE", 10, 20), limit("NPROC", 30, 40), limit("FSIZE", 5, 5000)},
		Owners: []adjust.Owned{{core.OwnerCRI, adjuster(func(s *specs.Spec) error {
			seen = len(s.Process.Rlimits)
			s.Process.Rlimits[1] = limit("NPROC", 1, 2)
			return nil
		})}},
		Node: ocispec.Node{Rlimits: map[string]uint64{"RLIMIT_FSIZE": 100}},
	}
	for owner, procs := range map[core.Owner]specs.POSIXRlimit{core.OwnerCRI: limit("NPROC", 1, 2), core.OwnerNomad: limit("NPROC", 30, 40)} {
		spec := &specs.Spec{Process: &specs.Process{Rlimits: []specs.POSIXRlimit{limit("NOFILE", 7, 8)}}}
		if err := adjustContainer(t, o, &core.Container{Meta: core.Meta{Owner: owner}}, spec); err != nil {
			t.Fatal(err)
		}
		want := []specs.POSIXRlimit{limit("NOFILE", 7, 8), procs, limit("FSIZE", 5, 100)}
		if got := spec.Process.Rlimits; !slices.Equal(got, want) {
			t.Errorf("%s: %v, want %v", owner, got, want)
		}
	}
	if seen != 3 {
		t.Errorf("the owner's policy saw %d limits", seen)
	}
	if err := adjustContainer(t, o, &core.Container{}, &specs.Spec{}); err != nil {
		t.Errorf("a spec without a process: %v", err)
	}
}

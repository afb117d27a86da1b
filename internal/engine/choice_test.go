package engine_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

func refuses(call string) error {
	if call != "Create" {
		return nil
	}
	return fmt.Errorf("linux.uidMappings: not done by the fake runtime: %w", errdefs.ErrNotImplemented)
}

// TestWhatOneRuntimeRefusesAnotherRuns: all verbs on the container and on the sandbox's tiny init
// use the runtime that accepted them.
func TestWhatOneRuntimeRefusesAnotherRuns(t *testing.T) {
	n := enginetest.Fakes(t)
	second := n.AddRuntime("second")
	n.Start()
	n.Runtime.Fail(refuses)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	client := n.As(core.OwnerCRI)
	shared := core.SandboxConfig{Key: "pod", Namespaces: core.Namespaces{PID: core.Namespace{Mode: core.Shared}}}
	sb, err := client.CreateSandbox(t.Context(), shared)
	if err != nil {
		t.Fatal(err)
	}
	if sb.Config.Runtime != "second" || sb.Init == 0 || second.Spec(sb.ID) == nil {
		t.Errorf("sandbox by %s, init %d", sb.Config.Runtime, sb.Init)
	}
	c := n.Running(sb, "c", img, "sleep")
	want := []string{"linux.uidMappings: not done by the fake runtime; run by second"}
	if c.Runtime != "second" || !slices.Equal(c.Warnings, want) {
		t.Errorf("container by %s, warnings %q", c.Runtime, c.Warnings)
	}
	// The first runtime may run the next container.
	n.Runtime.Fail(nil)
	if d := n.Running(sb, "d", img, "sleep"); d.Runtime != "fake" || len(d.Warnings) > 0 {
		t.Errorf("container by %s, warnings %q", d.Runtime, d.Warnings)
	}
	n.Restart()
	client = n.As(core.OwnerCRI)
	if err := client.StopSandbox(t.Context(), sb.ID, engine.StopOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := client.RemoveSandbox(t.Context(), sb.ID, engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	if ids, err := second.List(t.Context()); err != nil || len(ids) > 0 {
		t.Errorf("second has %v, %v", ids, err)
	}
	n.Clean()
	if left := n.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestANamedRuntimeIsNeverReplaced(t *testing.T) {
	n := enginetest.Fakes(t)
	second := n.AddRuntime("second")
	n.Start()
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	client := n.As(core.OwnerCRI)
	sb, err := client.CreateSandbox(t.Context(), core.SandboxConfig{Key: "pod", Runtime: "fake"})
	if err != nil {
		t.Fatal(err)
	}
	n.Runtime.Fail(refuses)
	_, err = client.CreateContainer(t.Context(), core.ContainerConfig{
		Key: "c", Sandbox: sb.ID, Root: core.Root{Image: img.ID},
		Spec: func(context.Context, core.Rootfs) (*specs.Spec, []byte, error) {
			return &specs.Spec{Process: &specs.Process{Args: []string{"x"}}, Linux: &specs.Linux{}}, nil, nil
		},
	})
	if !errdefs.IsNotImplemented(err) || !strings.Contains(err.Error(), "linux.uidMappings") {
		t.Errorf("%v", err)
	}
	if ids, _ := second.List(t.Context()); len(ids) > 0 {
		t.Errorf("second has %v", ids)
	}
	if list, err := client.Containers(t.Context(), core.Filter{}); err != nil || len(list) > 0 {
		t.Errorf("left %v, %v", list, err)
	}
}

// TestAContainerNamesItsRuntime: one sandbox holds containers of several runtimes. A runtime that a
// container names is not replaced, and one that runs only containers that name it replaces none.
func TestAContainerNamesItsRuntime(t *testing.T) {
	n := enginetest.Fakes(t)
	only := n.AddNamedRuntime("only")
	n.Start()
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	client := n.As(core.OwnerCRI)
	sb, err := client.CreateSandbox(t.Context(), core.SandboxConfig{Key: "pod"})
	if err != nil {
		t.Fatal(err)
	}
	create := func(key core.Key, runtime string) (core.Container, error) {
		return client.CreateContainer(t.Context(), core.ContainerConfig{Key: key, Sandbox: sb.ID, Runtime: runtime, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sleep")})
	}
	for key, want := range map[core.Key]string{"plain": "fake", "only": "only"} {
		asked := want
		if key == "plain" {
			asked = ""
		}
		c, err := create(key, asked)
		if err != nil || c.Runtime != want {
			t.Errorf("%s: run by %q, %v", key, c.Runtime, err)
		}
		if err := client.StartContainer(t.Context(), c.ID); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	if ids, _ := only.List(t.Context()); len(ids) != 1 {
		t.Errorf("the named runtime has %v", ids)
	}
	if _, err := create("none", "nosuch"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("an unknown runtime: %v", err)
	}
	only.Fail(refuses)
	if _, err := create("refused", "only"); !errdefs.IsNotImplemented(err) {
		t.Errorf("a refusal of the runtime that was named: %v", err)
	}
	n.Runtime.Fail(refuses)
	only.Fail(nil)
	if c, err := create("other", ""); !errdefs.IsNotImplemented(err) {
		t.Errorf("run by %q, %v", c.Runtime, err)
	}
	// After a restart of the agent each is still with its own runtime.
	n.Restart()
	for key, want := range map[core.Key]string{"plain": "fake", "only": "only"} {
		c, err := n.As(core.OwnerCRI).ContainerByKey(t.Context(), key)
		if err != nil || c.Runtime != want || c.State != core.ContainerRunning {
			t.Errorf("%s after a restart: %+v, %v", key, c, err)
		}
	}
}

// TestANameThatHasNoAddressIsWarnedOf: of host-gateway, where no network leads to the node.
func TestANameThatHasNoAddressIsWarnedOf(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	sb, err := n.As(core.OwnerSwarm).CreateSandbox(t.Context(), core.SandboxConfig{
		Key: "task", Namespaces: core.Namespaces{Net: core.Namespace{Mode: core.Shared}}, Network: core.NetworkConfig{Hosts: map[string][]string{core.HostGateway: {"node", "host"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"node, host has no address: no network of the container leads to the node"}
	if c := n.Container(sb, "task", img, "sleep"); !slices.Equal(c.Warnings, want) {
		t.Errorf("warnings %q, want %q", c.Warnings, want)
	}
}

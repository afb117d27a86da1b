package engine_test

import (
	"errors"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// TestAProgramThatIsRefusedAtTheCreateFailsAtTheStart: callers see no difference between a
// runtime that looks for the program early and one that looks late.
func TestAProgramThatIsRefusedAtTheCreateFailsAtTheStart(t *testing.T) {
	for name, refusal := range enginetest.Refusals() {
		t.Run(name, func(t *testing.T) {
			n := enginetest.New(t)
			cl := n.As(core.OwnerCLI)
			pod := n.Pod(core.OwnerCLI, "p")
			cfg := core.ContainerConfig{Key: "c", Sandbox: pod.ID, Root: core.Root{Image: n.AddImage("app", ocispec.ImageConfig{}, nil).ID}, Spec: enginetest.Args("app")}
			n.Runtime.Refuse(refusal.Err, "Create")
			c, err := cl.CreateContainer(t.Context(), cfg)
			if refusal.Status == 125 { // not the program, but something else is wrong
				if !errors.Is(err, refusal.Err) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil || c.State != core.ContainerCreated {
				t.Fatalf("%+v, %v", c, err)
			}
			n.Clean()
			n.Restart() // nothing is lost by it
			n.Clean()
			cl = n.As(core.OwnerCLI)
			limit := int64(9)
			if _, err := cl.UpdateContainer(t.Context(), c.ID, &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: &limit}}); err != nil {
				t.Errorf("update: %v", err)
			}
			err = cl.StartContainer(t.Context(), c.ID)
			if core.StartStatus(err) != refusal.Status {
				t.Errorf("start: %v", err)
			}
			n.Settle()
			c, err = cl.Container(t.Context(), c.ID)
			if err != nil || c.State != core.ContainerExited || !c.Main.Started.IsZero() {
				t.Fatalf("%+v, %v", c, err)
			}
			if a := c.Main.Autopsy; a.Exit.Code != refusal.Status || a.Start != refusal.Err.Error() {
				t.Errorf("%+v, want %d, %q", a, refusal.Status, refusal.Err)
			}
			if err := cl.RemoveContainer(t.Context(), c.ID, engine.RemoveOptions{}); err != nil {
				t.Errorf("remove: %v", err)
			}
			cfg.Run = true // without a later start
			if _, err := cl.CreateContainer(t.Context(), cfg); !errors.Is(err, refusal.Err) {
				t.Errorf("create and run: %v", err)
			}
			n.Clean()
		})
	}
}

// TestARefusedContainerEndsWithoutAStart through each call that ends one, and when its sandbox is
// lost.
func TestARefusedContainerEndsWithoutAStart(t *testing.T) {
	refusal := enginetest.Refusals()["not there"]
	for name, end := range map[string]func(t *testing.T, n *enginetest.Node, c core.Container) error{
		"stopped": func(t *testing.T, n *enginetest.Node, c core.Container) error {
			return n.As(core.OwnerCLI).StopContainer(t.Context(), c.ID, engine.StopOptions{})
		},
		"its sandbox is stopped": func(t *testing.T, n *enginetest.Node, c core.Container) error {
			return n.As(core.OwnerCLI).StopSandbox(t.Context(), c.Sandbox, engine.StopOptions{})
		},
		"its sandbox's init ends": func(t *testing.T, n *enginetest.Node, c core.Container) error {
			n.Supervisor.Exit(core.Ref{Container: c.Sandbox}, 1)
			_, err := n.As(core.OwnerCLI).Wait(t.Context(), core.Ref{Container: c.ID})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := enginetest.New(t)
			shared := core.Namespace{Mode: core.Shared}
			sb, err := n.As(core.OwnerCLI).CreateSandbox(t.Context(), core.SandboxConfig{Key: "p", Namespaces: core.Namespaces{PID: shared}})
			if err != nil {
				t.Fatal(err)
			}
			n.Runtime.Refuse(refusal.Err, "Create")
			c := n.Container(sb, "c", n.AddImage("app", ocispec.ImageConfig{}, nil), "app")
			if err := end(t, n, c); err != nil {
				t.Fatal(err)
			}
			n.Settle()
			c, err = n.As(core.OwnerCLI).Container(t.Context(), c.ID)
			if err != nil || c.State != core.ContainerExited || c.Main.Autopsy.Start == "" {
				t.Errorf("%+v, %v", c, err)
			}
			if err := n.As(core.OwnerCLI).RemoveSandbox(t.Context(), sb.ID, engine.RemoveOptions{Force: true}); err != nil {
				t.Errorf("remove: %v", err)
			}
			n.Clean()
			if left := n.Left(); len(left) > 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

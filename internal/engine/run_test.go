package engine_test

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

func runConfig(sb core.ID, img core.Image, args ...string) core.ContainerConfig {
	return core.ContainerConfig{Key: "c", Sandbox: sb, Root: core.Root{Image: img.ID}, Spec: enginetest.Args(args...), Run: true}
}

// TestACreateThatRuns: one call creates a container and runs its program, and the events are those
// of a create and a start.
func TestACreateThatRuns(t *testing.T) {
	n := enginetest.Fakes(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	n.Start()
	client := n.As(core.OwnerCRI)
	sb := n.Pod(core.OwnerCRI, "pod")
	c, err := client.CreateContainer(t.Context(), runConfig(sb.ID, img, "sleep"))
	if err != nil {
		t.Fatal(err)
	}
	if c.State != core.ContainerRunning || c.Main.Started.IsZero() || c.Main.Pid == 0 {
		t.Errorf("%s, started %v, pid %d", c.State, c.Main.Started, c.Main.Pid)
	}
	if err := client.StartContainer(t.Context(), c.ID); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a second start: %v", err)
	}
	n.Supervisor.Exit(core.Ref{Container: c.ID}, 3)
	a, err := client.Wait(t.Context(), core.Ref{Container: c.ID})
	if err != nil || a.Exit.Code != 3 {
		t.Errorf("it ended by %+v, %v", a, err)
	}
	if got, want := kinds(t, n, c.ID), []core.EventKind{core.EventContainerCreating, core.EventContainerCreated, core.EventContainerStarted, core.EventContainerExited}; !slices.Equal(got, want) {
		t.Errorf("events %v, want %v", got, want)
	}
	sweep(t, n)
}

// TestACreateThatCannotRunLeavesNothing: its key can be used again at once.
func TestACreateThatCannotRunLeavesNothing(t *testing.T) {
	n := enginetest.Fakes(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	n.Start()
	client := n.As(core.OwnerCRI)
	sb := n.Pod(core.OwnerCRI, "pod")
	if _, err := client.CreateContainer(t.Context(), runConfig(sb.ID, img, "missing")); !errdefs.IsNotFound(err) {
		t.Errorf("a program that is not there: %v", err)
	}
	if list, err := client.Containers(t.Context(), core.Filter{}); err != nil || len(list) > 0 {
		t.Errorf("left: %v, %v", list, err)
	}
	if _, err := client.CreateContainer(t.Context(), runConfig(sb.ID, img, "sleep")); err != nil {
		t.Error(err)
	}
	sweep(t, n)
}

// TestACreateThatRunsIsNotRunTwice: when the agent dies before it has returned, the next one
// finds the program running, by the container's key.
func TestACreateThatRunsIsNotRunTwice(t *testing.T) {
	n := enginetest.Fakes(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{StopSignal: "SIGUSR1"}, nil)
	var dying crasher
	n.Options.FailPoint = engine.CheckedFailPoint(dying.point)
	n.Start()
	sb := n.Pod(core.OwnerCRI, "pod")
	dying.arm("create.launch")
	if _, err := n.As(core.OwnerCRI).CreateContainer(t.Context(), runConfig(sb.ID, img, "sleep")); !errors.Is(err, errCrash) {
		t.Fatalf("the crash was not told: %v", err)
	}
	n.Stop()
	dying.arm("")
	n.Start()
	n.Clean()
	client := n.As(core.OwnerCRI)
	c, err := client.CreateContainer(t.Context(), runConfig(sb.ID, img, "sleep"))
	if !errdefs.IsAlreadyExists(err) {
		t.Fatalf("asked again: %v", err)
	}
	if c.State != core.ContainerRunning || c.Main.Pid == 0 || c.Config.Stop.Signal != "SIGUSR1" || !slices.Equal(c.Main.Args, []string{"sleep"}) {
		t.Errorf("found: %+v", c)
	}
	n.Supervisor.Exit(core.Ref{Container: c.ID}, 4)
	if a, err := client.Wait(t.Context(), core.Ref{Container: c.ID}); err != nil || a.Exit.Code != 4 {
		t.Errorf("it ended by %+v, %v", a, err)
	}
	sweep(t, n)
}

// kinds returns the kinds of the container's events so far.
func kinds(t *testing.T, n *enginetest.Node, id core.ID) (list []core.EventKind) {
	t.Helper()
	n.Settle()
	err := n.Options.Store.View(func(tx core.Tx) error {
		for ev, err := range tx.Events(0) {
			if err != nil {
				return err
			}
			if ev.Container == id {
				list = append(list, ev.Kind)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// TestAProgramThatIsRefusedHasAShellsStatus, by its errno, for any text of the error.
func TestAProgramThatIsRefusedHasAShellsStatus(t *testing.T) {
	for name, refusal := range enginetest.Refusals() {
		t.Run(name, func(t *testing.T) {
			n := enginetest.New(t)
			img := n.AddImage("app", ocispec.ImageConfig{}, nil)
			c := n.Container(n.Pod(core.OwnerCLI, "p"), "c", img, "app")
			n.Runtime.Refuse(refusal.Err, "Start")
			if err := n.As(core.OwnerCLI).StartContainer(t.Context(), c.ID); !errors.Is(err, refusal.Err) {
				t.Errorf("start: %v", err)
			}
			n.Runtime.Fail(nil)
			n.Settle()
			c, err := n.As(core.OwnerCLI).Container(t.Context(), c.ID)
			if err != nil || c.State != core.ContainerExited || c.Main.Autopsy == nil {
				t.Fatalf("%+v, %v", c, err)
			}
			if a := c.Main.Autopsy; a.Exit.Code != refusal.Status || a.Start == "" {
				t.Errorf("%+v, want code %d", a, refusal.Status)
			}
			n.Clean()
		})
	}
}

// TestAnEndBeforeTheStartIsToldAsItWas: an agent has started the program and died, and the
// program has ended since.
func TestAnEndBeforeTheStartIsToldAsItWas(t *testing.T) {
	n := enginetest.New(t)
	cl := n.As(core.OwnerCLI)
	c := n.Container(n.Pod(core.OwnerCLI, "p"), "c", n.AddImage("app", ocispec.ImageConfig{}, nil), "app")
	n.Runtime.Refuse(fmt.Errorf("start: %w: %w", core.ErrEnded, errdefs.ErrFailedPrecondition), "Start")
	if err := cl.StartContainer(t.Context(), c.ID); !errors.Is(err, core.ErrEnded) {
		t.Errorf("start: %v", err)
	}
	n.Supervisor.Exit(core.Ref{Container: c.ID}, 3)
	a, err := cl.Wait(t.Context(), core.Ref{Container: c.ID})
	if err != nil || a.Exit.Code != 3 || a.Start != "" {
		t.Errorf("%+v, %v", a, err)
	}
	n.Settle()
	n.Clean()
}

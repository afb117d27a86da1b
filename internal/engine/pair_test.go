package engine_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// pairOf returns a pair with every kind of namespace, and with a key for its container.
func pairOf(img core.Image, spec core.SpecFunc, run bool) engine.Pair {
	shared := core.Namespace{Mode: core.Shared}
	return engine.Pair{
		Sandbox: core.SandboxConfig{Key: "one", Namespaces: core.Namespaces{Net: shared, IPC: shared, UTS: shared, PID: shared}},
		Container: func(core.ID) (core.ContainerConfig, error) {
			return core.ContainerConfig{Key: "one", Root: core.Root{Image: img.ID}, Spec: spec, Run: run}, nil
		},
	}
}

// TestTheAgentDiesInACreateOfAPair: the client of the next agent creates the pair, or finds it
// complete.
func TestTheAgentDiesInACreateOfAPair(t *testing.T) {
	for _, run := range []bool{false, true} {
		t.Run(fmt.Sprintf("run=%v", run), func(t *testing.T) {
			enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
				l, img := pairLife(t)
				want := core.ContainerCreated
				if run {
					want = core.ContainerRunning
				}
				l.Call = func(ctx context.Context) error {
					sb, c, err := l.Node.As(core.OwnerCLI).CreatePair(ctx, pairOf(img, enginetest.Args("sleep"), run))
					if errdefs.IsAlreadyExists(err) && sb.State == core.SandboxReady {
						c, err = l.Node.As(core.OwnerCLI).ContainerByKey(ctx, "one")
					}
					if err == nil && c.State != want {
						err = fmt.Errorf("it is %s", c.State)
					}
					return err
				}
				l.Again = func() error { return l.Call(t.Context()) }
				return l
			})
		})
	}
}

// pairLife returns a node and a Clear that removes the sandbox "one".
func pairLife(t *testing.T) (enginetest.Life, core.Image) {
	n := enginetest.Fakes(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	l := enginetest.Life{Node: n, Crash: n.Crashes(), Restart: n.Start}
	l.Clear = func() error { return removeOne(t.Context(), n) }
	n.Start()
	return l, img
}

func removeOne(ctx context.Context, n *enginetest.Node) error {
	sb, err := n.As(core.OwnerCLI).SandboxByKey(ctx, "one")
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return n.As(core.OwnerCLI).RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true})
}

// TestTheAgentDiesInARemovalOfAPair: the next agent's client removes the rest, and the key is free.
func TestTheAgentDiesInARemovalOfAPair(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		l, img := pairLife(t)
		create := func() error {
			_, _, err := l.Node.As(core.OwnerCLI).CreatePair(t.Context(), pairOf(img, enginetest.Args("sleep"), true))
			return err
		}
		if err := create(); err != nil {
			t.Fatal(err)
		}
		l.Call = func(ctx context.Context) error { return removeOne(ctx, l.Node) }
		l.Again = func() error {
			// A pair that recovery has kept is complete.
			all, err := l.Node.Engine.All().Containers(t.Context(), core.Filter{})
			if _, serr := l.Node.As(core.OwnerCLI).SandboxByKey(t.Context(), "one"); serr == nil && len(all) != 1 {
				err = fmt.Errorf("the sandbox is there with %d containers", len(all))
			}
			return errors.Join(err, removeOne(t.Context(), l.Node), create())
		}
		return l
	})
}

// TestAPairThatCannotBeMadeLeavesNothing, wherever it fails. A client that has seen the sandbox
// ready sees it stop.
func TestAPairThatCannotBeMadeLeavesNothing(t *testing.T) {
	n := enginetest.New(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	client := n.As(core.OwnerCLI)
	cause := errors.New("no")
	bad := func(context.Context, core.Rootfs) (*specs.Spec, []byte, error) { return nil, nil, cause }
	if _, _, err := client.CreatePair(t.Context(), pairOf(img, bad, true)); !errors.Is(err, cause) {
		t.Errorf("a spec that cannot be made: %v", err)
	}
	var told []core.EventKind
	for ev, err := range client.Events(t.Context(), 0, core.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if told = append(told, ev.Kind); ev.Kind == core.EventSandboxRemoved {
			break
		}
	}
	want := []core.EventKind{
		core.EventSandboxCreating, core.EventSandboxReady, core.EventContainerCreating, core.EventContainerRemoved, core.EventSandboxStopped, core.EventSandboxRemoved,
	}
	if !slices.Equal(told, want) {
		t.Errorf("told %v", told)
	}
	p := pairOf(img, enginetest.Args("sleep"), true)
	for what, change := range map[string]func(*core.ContainerConfig){
		"no spec":  func(c *core.ContainerConfig) { c.Spec = nil },
		"a parent": func(c *core.ContainerConfig) { c.Parent = "someone" },
	} {
		q := p
		q.Container = func(id core.ID) (core.ContainerConfig, error) {
			c, err := p.Container(id)
			change(&c)
			return c, err
		}
		if _, _, err := client.CreatePair(t.Context(), q); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
	q := p
	q.Container = func(core.ID) (core.ContainerConfig, error) { return core.ContainerConfig{}, cause }
	if _, _, err := client.CreatePair(t.Context(), q); !errors.Is(err, cause) {
		t.Errorf("a config that cannot be made: %v", err)
	}
	if _, _, err := n.Engine.All().CreatePair(t.Context(), p); !errdefs.IsInvalidArgument(err) {
		t.Errorf("for nobody: %v", err)
	}
	n.Settle()
	n.Clean()
	if left := n.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	// The keys are free at first, and in use afterwards.
	sb, c, err := client.CreatePair(t.Context(), p)
	if err != nil || c.Sandbox != sb.ID || !sb.Pair {
		t.Fatalf("%+v, %+v, %v", sb, c, err)
	}
	if first, _, err := client.CreatePair(t.Context(), p); !errdefs.IsAlreadyExists(err) || first.ID != sb.ID {
		t.Errorf("the same again: %v, %v", first.ID, err)
	}
	other := p
	other.Sandbox.Key = "another"
	if _, first, err := client.CreatePair(t.Context(), other); !errdefs.IsAlreadyExists(err) || first.ID != c.ID {
		t.Errorf("the container's key again: %v, %v", first.ID, err)
	}
	if _, err := client.SandboxByKey(t.Context(), "another"); !errdefs.IsNotFound(err) {
		t.Errorf("its sandbox: %v", err)
	}
	sweep(t, n)
}

// TestAPairsHostnameIsTheContainersShortID, if the pair asks for it.
func TestAPairsHostnameIsTheContainersShortID(t *testing.T) {
	n := enginetest.New(t)
	p := pairOf(n.AddImage("busybox", ocispec.ImageConfig{}, nil), enginetest.Args("sleep"), false)
	p.ShortName = true
	sb, c, err := n.As(core.OwnerCLI).CreatePair(t.Context(), p)
	if err != nil || sb.Config.Hostname != c.ID.Short() {
		t.Errorf("hostname %q of %s, %v", sb.Config.Hostname, c.ID, err)
	}
}

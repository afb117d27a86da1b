package engine_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// restingPair returns a pair. Its container has no process before RenewContainer.
func restingPair(img core.Image, durable bool) engine.Pair {
	shared := core.Namespace{Mode: core.Shared}
	return engine.Pair{
		Sandbox: core.SandboxConfig{Key: "one", Namespaces: core.Namespaces{Net: shared, IPC: shared, UTS: shared}, Durable: durable},
		Container: func(core.ID) (core.ContainerConfig, error) {
			return core.ContainerConfig{
				Key: "one", Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sleep"), Durable: durable,
				Rest: &core.StopRequest{Owner: core.OwnerCLI, Call: "waits for its start"},
			}, nil
		},
	}
}

// startOne starts the container of restingPair, which may have no sandbox, an unfinished or a finished one.
func startOne(ctx context.Context, n *enginetest.Node, img core.Image) error {
	cli := n.As(core.OwnerCLI)
	_, c, err := cli.CreatePair(ctx, restingPair(img, false))
	if errdefs.IsAlreadyExists(err) {
		c, err = cli.ContainerByKey(ctx, "one")
	}
	if err == nil && c.State == core.ContainerExited {
		err = cli.StopSandbox(ctx, c.Sandbox, engine.StopOptions{IfEnded: true})
		if err == nil {
			err = cli.RenewContainer(ctx, c.ID)
		}
	}
	if err == nil {
		c, err = cli.Container(ctx, c.ID)
	}
	if err == nil && c.State == core.ContainerCreated {
		err = cli.StartContainer(ctx, c.ID)
	}
	if err == nil {
		c, err = cli.Container(ctx, c.ID)
	}
	if err == nil && (c.State != core.ContainerRunning || c.Resting) {
		err = fmt.Errorf("it is %s, resting %v", c.State, c.Resting)
	}
	return err
}

// TestARestingContainerHasNoProcess: neither process nor namespaces exist before the renewal, over the agent's end and a boot.
func TestARestingContainerHasNoProcess(t *testing.T) {
	n := enginetest.Fakes(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	n.Start()
	cli := n.As(core.OwnerCLI)
	sb, c, err := cli.CreatePair(t.Context(), restingPair(img, true))
	if err != nil {
		t.Fatal(err)
	}
	rests := func(when string) {
		t.Helper()
		cli = n.As(core.OwnerCLI)
		now, err := cli.Container(t.Context(), c.ID)
		if err != nil || now.State != core.ContainerExited || !now.Resting || now.Main.Autopsy == nil || now.Main.Pid != 0 {
			t.Errorf("%s: %+v, %v", when, now, err)
		}
		if pinned, err := n.Pinner.Pinned(t.Context()); err != nil || len(pinned) > 0 {
			t.Errorf("%s: namespaces of %v, %v", when, pinned, err)
		}
		if list, err := n.Runtime.List(t.Context()); err != nil || len(list) > 0 {
			t.Errorf("%s: processes %v, %v", when, list, err)
		}
	}
	rests("created")
	if err := cli.StopSandbox(t.Context(), sb.ID, engine.StopOptions{IfEnded: true}); err != nil {
		t.Fatal(err)
	}
	n.Restart()
	rests("with the next agent")
	if err := n.As(core.OwnerCLI).StartContainer(t.Context(), c.ID); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a start without a renewal: %v", err)
	}
	if err := startOne(t.Context(), n, img); err != nil {
		t.Fatal(err)
	}
	if err := removeOne(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	n.Clean()
}

func TestWhatCannotRest(t *testing.T) {
	n := enginetest.Fakes(t)
	img := n.AddImage("busybox", ocispec.ImageConfig{}, nil)
	n.Start()
	pid := restingPair(img, false)
	pid.Sandbox.Namespaces.PID.Mode = core.Shared
	run := restingPair(img, false)
	of := run.Container
	run.Container = func(id core.ID) (core.ContainerConfig, error) {
		cfg, err := of(id)
		cfg.Run = true
		return cfg, err
	}
	for name, p := range map[string]engine.Pair{"a shared pid namespace": pid, "run": run} {
		if _, _, err := n.As(core.OwnerCLI).CreatePair(t.Context(), p); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	n.Clean()
}

// TestTheAgentDiesWithARestingContainer: the client of the next agent starts the container.
func TestTheAgentDiesWithARestingContainer(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		l, img := pairLife(t)
		l.Call = func(ctx context.Context) error { return startOne(ctx, l.Node, img) }
		l.Again = func() error { return l.Call(t.Context()) }
		return l
	})
}

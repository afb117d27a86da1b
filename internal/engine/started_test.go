package engine_test

import (
	"context"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// timedRuntime notes when its program begins.
type timedRuntime struct {
	core.Runtime
	began time.Time
}

func (r *timedRuntime) Start(ctx context.Context, id core.ID) error {
	r.began = time.Now()
	return r.Runtime.Start(ctx, id)
}

// TestAProgramsOutputFollowsItsStart: clients read the log since the start, and expect the first line.
func TestAProgramsOutputFollowsItsStart(t *testing.T) {
	n := enginetest.New(t)
	rt := &timedRuntime{Runtime: n.Runtime}
	n.Options.Runtimes = []core.Runtime{rt}
	n.Restart()
	cl := n.As(core.OwnerCLI)
	pod := n.Pod(core.OwnerCLI, "p")
	c, err := cl.CreateContainer(t.Context(), core.ContainerConfig{
		Key: "c", Sandbox: pod.ID, Root: core.Root{Image: n.AddImage("app", ocispec.ImageConfig{}, nil).ID}, Spec: enginetest.Args("app"),
	})
	if err == nil {
		err = cl.StartContainer(t.Context(), c.ID)
	}
	if err == nil {
		c, err = cl.Container(t.Context(), c.ID)
	}
	if err != nil || rt.began.IsZero() || c.Main.Started.IsZero() || c.Main.Started.After(rt.began) {
		t.Errorf("started at %v, the program began at %v: %v", c.Main.Started, rt.began, err)
	}
}

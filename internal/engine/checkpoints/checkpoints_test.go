package checkpoints_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/checkpoints"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/restart"
)

// rig is a node with a sandbox.
type rig struct {
	*enginetest.Node
	t     *testing.T
	image core.Image
}

func fakes(t *testing.T) *rig {
	t.Helper()
	r := &rig{Node: enginetest.Fakes(t), t: t}
	r.image = r.AddImage("busybox", ocispec.ImageConfig{}, nil)
	r.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: r.Runtime}}
	r.Options.Checkpoints = func(c *engine.Client) core.CheckpointRecoverer { return r.verbs(c) }
	return r
}

func (r *rig) verbs(c *engine.Client) core.CheckpointVerbs {
	s, h := engine.CheckpointHost(c)
	return checkpoints.Verbs{Scope: s, CheckpointHost: h, Checkpointer: r.Checkpointer, Cgroups: r.Cgroups, Restarts: restart.Rules{}, Logger: slog.New(slog.DiscardHandler)}
}

func (r *rig) by() *engine.Client { return r.As("test") }

// sandbox returns the sandbox, and makes it if necessary.
func (r *rig) sandbox(ctx context.Context) (core.Sandbox, error) {
	sb, err := r.by().SandboxByKey(ctx, "s")
	if errdefs.IsNotFound(err) {
		sb, err = r.by().CreateSandbox(ctx, core.SandboxConfig{Key: "s", Namespaces: core.Namespaces{Net: core.Namespace{Mode: core.Shared}}})
	}
	return sb, err
}

// create creates a container.
func (r *rig) create(ctx context.Context, key core.Key, restore bool) (core.Container, error) {
	sb, err := r.sandbox(ctx)
	if err != nil {
		return core.Container{}, err
	}
	return r.by().CreateContainer(ctx, core.ContainerConfig{Key: key, Sandbox: sb.ID, Root: core.Root{Image: r.image.ID}, Spec: enginetest.Args("program"), Restore: restore})
}

// run makes two running containers.
func (r *rig) run() (ids []core.ID) {
	r.t.Helper()
	for i := range 2 {
		c, err := r.create(r.t.Context(), core.Key(fmt.Sprint("c", i)), false)
		if err == nil {
			err = r.by().StartContainer(r.t.Context(), c.ID)
		}
		if err != nil {
			r.t.Fatal(err)
		}
		ids = append(ids, c.ID)
	}
	return ids
}

// awake returns an error unless all containers run and none is frozen.
func (r *rig) awake(ids []core.ID) error {
	for _, id := range ids {
		c, err := r.by().Container(r.t.Context(), id)
		switch {
		case err != nil:
			return err
		case c.State != core.ContainerRunning || r.Cgroups.Frozen(c.Cgroup):
			return fmt.Errorf("%s is %s, frozen %t", c.Key, c.State, r.Cgroups.Frozen(c.Cgroup))
		case c.LastCheckpoint() != nil && c.LastCheckpoint().Phase != core.CheckpointOver:
			return fmt.Errorf("%s is %s", c.Key, c.LastCheckpoint().Phase)
		}
	}
	return nil
}

func (r *rig) clear() error {
	sb, err := r.by().SandboxByKey(r.t.Context(), "s")
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return r.by().RemoveSandbox(r.t.Context(), sb.ID, engine.RemoveOptions{Force: true})
}

// TestContainersAreStoredTogether: all are frozen before the first one is stored, and run afterwards.
func TestContainersAreStoredTogether(t *testing.T) {
	r := fakes(t)
	r.Start()
	ids := r.run()
	dumps := 0
	r.Checkpointer.Fail(func(call string) error {
		if call != "Dump" {
			return nil
		}
		dumps++
		for _, id := range ids {
			if c, err := r.by().Container(t.Context(), id); err != nil || !r.Cgroups.Frozen(c.Cgroup) {
				t.Errorf("dump %d: %s is not frozen: %v", dumps, id, err)
			}
		}
		return nil
	})
	v := r.verbs(r.by())
	if err := v.CheckpointTogether(t.Context(), ids, core.CheckpointOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.awake(ids); err != nil || dumps != 2 {
		t.Errorf("%d dumps, %v", dumps, err)
	}
	for _, wrong := range [][]core.ID{nil, {ids[0], ids[0]}, {ids[0], "nobody"}} {
		if err := v.CheckpointTogether(t.Context(), wrong, core.CheckpointOptions{}); !errdefs.IsInvalidArgument(err) && !errdefs.IsNotFound(err) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// TestAFailedDumpLeavesNoCheckpoint, whichever of the containers it is of.
func TestAFailedDumpLeavesNoCheckpoint(t *testing.T) {
	for fails := range 2 {
		r := fakes(t)
		r.Start()
		ids := r.run()
		dumps, broken := 0, errors.New("broken")
		r.Checkpointer.Fail(func(call string) error {
			if call == "Dump" {
				if dumps++; dumps > fails {
					return broken
				}
			}
			return nil
		})
		if err := r.verbs(r.by()).CheckpointTogether(t.Context(), ids, core.CheckpointOptions{}); !errors.Is(err, broken) {
			t.Errorf("dump %d: %v", fails, err)
		}
		if err := r.awake(ids); err != nil {
			t.Errorf("dump %d: %v", fails, err)
		}
		if left, err := r.Checkpointer.Stored(t.Context()); err != nil || len(left) > 0 {
			t.Errorf("dump %d: left %v, %v", fails, left, err)
		}
	}
}

// TestTheAgentDiesInACheckpoint: with the next agent all containers run, and can be stored.
func TestTheAgentDiesInACheckpoint(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		r := fakes(t)
		l := enginetest.Life{Node: r.Node, Crash: r.Crashes(), Restart: r.Start, Clear: r.clear}
		r.Start()
		ids := r.run()
		l.Call = func(ctx context.Context) error {
			return r.verbs(r.by()).CheckpointTogether(ctx, ids, core.CheckpointOptions{})
		}
		l.Again = func() error {
			return errors.Join(r.awake(ids), l.Call(t.Context()), r.awake(ids))
		}
		return l
	})
}

// TestTheAgentDiesInACheckpointThatEnds: with the next agent the container runs without a checkpoint, or has ended with one.
func TestTheAgentDiesInACheckpointThatEnds(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		r := fakes(t)
		l := enginetest.Life{Node: r.Node, Crash: r.Crashes(), Restart: r.Start, Clear: r.clear}
		r.Start()
		id := r.run()[0]
		l.Call = func(ctx context.Context) error {
			return r.verbs(r.by()).Checkpoint(ctx, id, core.CheckpointOptions{End: true})
		}
		l.Again = func() error {
			r.Settle()
			c, err := r.by().Container(t.Context(), id)
			if err != nil {
				return err
			}
			if c.State == core.ContainerExited {
				if a := c.Main.Autopsy; !c.LastCheckpoint().Kept || a.StopRequest == nil || a.StopRequest.Call != checkpoints.Call {
					return fmt.Errorf("it has ended: %+v, %+v", c.LastCheckpoint(), a)
				}
				return nil
			}
			return errors.Join(r.awake([]core.ID{id}), l.Call(t.Context()))
		}
		return l
	})
}

// TestTheAgentDiesInARestore: the container has the restored processes, waits for them, or has ended. Its own program never starts.
func TestTheAgentDiesInARestore(t *testing.T) {
	enginetest.CrashMatrix(t, func(t *testing.T) enginetest.Life {
		r := fakes(t)
		l := enginetest.Life{Node: r.Node, Crash: r.Crashes(), Restart: r.Start, Clear: r.clear}
		l.Beside = func(stage string) bool { return strings.HasPrefix(stage, "exit.") } // the restored processes replace one, which ends
		r.Start()
		var tar bytes.Buffer
		id := r.run()[0]
		v := r.verbs(r.by())
		if err := errors.Join(v.Checkpoint(t.Context(), id, core.CheckpointOptions{}), v.Export(t.Context(), id, &tar), r.clear()); err != nil {
			t.Fatal(err)
		}
		l.Call = func(ctx context.Context) error {
			v := r.verbs(r.by())
			in, err := v.Import(ctx, bytes.NewReader(tar.Bytes()))
			if err != nil {
				return err
			}
			c, err := r.create(ctx, "restored", true)
			if err == nil {
				err = v.Prepare(ctx, c.ID, in, core.RestoreOptions{})
			}
			if err == nil {
				if serr := r.by().StartContainer(ctx, c.ID); !errdefs.IsFailedPrecondition(serr) && !l.Crash.Dead() {
					err = fmt.Errorf("its program was started: %w", serr)
				}
			}
			if err == nil {
				err = v.Restore(ctx, c.ID, core.RestoreOptions{})
			}
			if err == nil {
				err = r.awake([]core.ID{c.ID})
			}
			return err
		}
		l.Again = func() error {
			r.Settle()
			c, err := r.by().ContainerByKey(t.Context(), "restored")
			if err == nil && c.State == core.ContainerCreated {
				if serr := r.by().StartContainer(t.Context(), c.ID); !errdefs.IsFailedPrecondition(serr) {
					err = fmt.Errorf("its program was started: %w", serr)
				}
			}
			if err != nil && !errdefs.IsNotFound(err) {
				return err
			}
			return errors.Join(r.clear(), l.Call(t.Context()))
		}
		return l
	})
}

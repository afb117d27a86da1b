package agent

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/checkpoint"
	"github.com/longshore/longshore/internal/checkpoint/criurun"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/checkpoints"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/restart"
	"github.com/longshore/longshore/internal/runtime/native"
	"github.com/longshore/longshore/internal/runtime/native/seccomp"
)

// openCheckpoints opens the part that makes checkpoints, by CRIU.
func openCheckpoints(n *node) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	n.checkpoints = checkpoint.New(checkpoint.Options{
		Root: filepath.Join(n.cfg.Agent.Root, "checkpoints"), State: filepath.Join(n.cfg.Agent.State, "checkpoints"), Program: n.cfg.Checkpoint.Program,
		Command: []string{self, criurun.Arg}, Launcher: n.keeper, Cgroups: n.cgroups, Layers: checkpoint.Layers{Changes: n.images.Changes, Pack: func(ctx context.Context, id core.ID, use core.RootUse, w io.Writer) error {
			return image.PackChanges(ctx, n.images, id, use, w)
		}}, Reserve: n.cfg.Checkpoint.MinFreeBytes, Logger: n.log,
		ImageName: func(ctx context.Context, c *core.Container) string {
			if img, err := n.images.Get(ctx, c.Owner, string(c.Image)); err == nil && len(img.Names) > 0 {
				return img.Names[0]
			}
			return ""
		},
		Filter: func(s *specs.LinuxSeccomp) ([]unix.SockFilter, error) {
			f, err := seccomp.Compile(s)
			return f.Program, err
		},
		Restorable: func(name string) bool {
			for _, rt := range n.runtimes.usable {
				if _, ok := rt.(*native.Runtime); ok && rt.Name() == name {
					return true
				}
			}
			return false
		},
	})
	return nil
}

// checkpointsOf returns a function that returns a client's verbs of checkpoints.
func checkpointsOf(n *node) func(*engine.Client) core.CheckpointVerbs {
	return func(c *engine.Client) core.CheckpointVerbs {
		s, h := engine.CheckpointHost(c)
		return checkpoints.Verbs{Scope: s, CheckpointHost: h, Checkpointer: n.checkpoints, Cgroups: n.cgroups, Restarts: restart.Rules{}, Logger: n.log}
	}
}

// checkpointFinding reports whether containers can be stored. It does not warn: few nodes need it.
func (n *node) checkpointFinding(ctx context.Context) control.Finding {
	if err := n.checkpoints.Able(ctx); err != nil {
		return ok("checkpoint", "no container can be stored by a checkpoint: %v", err)
	}
	if err := n.criu.check(ctx); err != nil {
		return ok("checkpoint", "no container can be stored by a checkpoint: %v", err)
	}
	return ok("checkpoint", "CRIU stores containers on this node")
}

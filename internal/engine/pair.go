package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/stages"
)

// Pair is a sandbox with its one container, which most orchestrators call a task.
type Pair struct {
	Sandbox core.SandboxConfig
	// Container returns the config of the container for the sandbox of that ID. It is called
	// before anything is created, and its config need not name the sandbox.
	Container func(sandbox core.ID) (core.ContainerConfig, error)
	// ShortName makes the short ID of the container the sandbox's hostname, as Docker does for
	// a container that names none.
	ShortName bool
}

// CreatePair creates a sandbox and its one container, both or neither. An error leaves nothing. A
// pair that a crash has left incomplete, in its creation or in its removal, is removed by the
// next Recover, so that its keys are free again. With a Key that is in use it returns the first
// sandbox, or the first container, and AlreadyExists.
func (c *Client) CreatePair(ctx context.Context, p Pair) (core.Sandbox, core.Container, error) {
	s, err := c.view.newSandboxBuild(ctx, p.Sandbox)
	if err != nil {
		return core.Sandbox{}, core.Container{}, err
	}
	s.sb.Pair = true
	cfg, err := p.Container(s.sb.ID)
	if err != nil {
		return core.Sandbox{}, core.Container{}, err
	}
	cfg.Sandbox, s.rest = s.sb.ID, cfg.Rest != nil
	b, err := c.view.newBuild(cfg)
	if err == nil && cfg.Parent != "" {
		err = fmt.Errorf("create container %q: a container of a pair is nested in none: %w", cfg.Key, errdefs.ErrInvalidArgument)
	}
	if err == nil && s.rest && s.sb.Config.Namespaces.PID.Mode == core.Shared {
		err = fmt.Errorf("create container %q: rest excludes a shared pid namespace: %w", cfg.Key, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return core.Sandbox{}, core.Container{}, err
	}
	if p.ShortName {
		s.sb.Config.Hostname = b.c.ID.Short()
	}
	made := false
	err = c.e.perform(ctx, &core.Operation{Verb: core.VerbCreate, Sandbox: &s.sb}, func() error {
		return c.e.perform(ctx, &core.Operation{Verb: core.VerbCreate, Container: &b.c}, func() error {
			unlock, err := c.e.sandboxes.Lock(ctx, s.sb.ID)
			if err != nil {
				return err
			}
			defer unlock()
			if err := c.e.creates.Run(ctx, s.sb.ID, stages.Crashed, func(ctx context.Context) error { return s.pipeline.Forward(ctx, s.stages()) }); err != nil {
				s.pipeline.End(ctx, err)
				return err
			}
			// The container's stages continue the sandbox's pipeline: an error undoes the sandbox
			// too.
			made, b.pipeline = true, s.pipeline.As("create")
			return c.e.creates.Run(ctx, s.sb.ID, stages.Crashed, func(ctx context.Context) error { return b.in(ctx, c.view, s.sb) })
		})
	})
	if err != nil && !made {
		sb, err := s.result(err)
		return sb, core.Container{}, err
	}
	ct, err := b.result(err)
	if err != nil {
		return core.Sandbox{}, ct, err
	}
	return s.sb, ct, nil
}

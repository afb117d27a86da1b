package without

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/owned"
)

// Joins implements core.Joiner on a machine without joined namespaces.
type Joins struct{ Pinner core.Pinner }

var _ core.Joiner = Joins{}

// Resolve returns NotImplemented for a Joined namespace.
func (Joins) Resolve(_ core.Owner, cfg *core.SandboxConfig) error {
	if ns := cfg.Namespaces; ns.Net.Mode == core.Joined || ns.IPC.Mode == core.Joined || ns.PID.Mode == core.Joined {
		return fmt.Errorf("this node cannot join the namespaces of another container: %w", errdefs.ErrNotImplemented)
	}
	return nil
}

// Pin pins the namespaces of req.
func (j Joins) Pin(ctx context.Context, sb *core.Sandbox, req core.PinRequest) error {
	paths, err := j.Pinner.Pin(ctx, req)
	for kind, n := range owned.Pinned(&sb.Config.Namespaces) {
		n.Path = paths[kind]
	}
	return err
}

// Stop returns the sandbox as it is.
func (Joins) Stop(sb core.Sandbox) (core.Sandbox, error) { return sb, nil }

// Held returns false.
func (Joins) Held(core.ID) (bool, error) { return false, nil }

// Shown returns the sandbox as it is.
func (Joins) Shown(sb core.Sandbox) (core.Sandbox, error) { return sb, nil }

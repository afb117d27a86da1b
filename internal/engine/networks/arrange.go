package networks

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/joins"
)

// Arrange gives a stopped sandbox the network, the network namespace and the Data of a configuration. So a container can be created
// without addresses and ports, which it gets when it is started. FailedPrecondition if the sandbox has not stopped; InvalidArgument,
// NotFound if the network namespace of another container cannot be joined.
func (v Verbs) Arrange(ctx context.Context, sandbox core.ID, want core.SandboxConfig) error {
	sb, unlock, err := v.Scope.LockedSandbox(ctx, sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	if sb.State != core.SandboxStopped || sb.Renewing {
		return fmt.Errorf("arrange the network of sandbox %s: it is %s: %w", sandbox.Short(), sb.State, errdefs.ErrFailedPrecondition)
	}
	cfg := sb.Config
	cfg.Network, cfg.Namespaces.Net = want.Network, want.Namespaces.Net
	if err := (joins.Table{Records: v.Scope.Records}).Resolve(sb.Owner, &cfg); err != nil {
		return fmt.Errorf("arrange the network of sandbox %s: %w", sandbox.Short(), err)
	}
	cfg.Labels = sb.Labels
	if mode := cfg.Namespaces.Net.Mode; mode == core.Shared && sb.Config.Namespaces.Net.Mode == mode {
		cfg.Network.Egress = sb.Config.Network.Egress
	}
	if err := v.Complete(sb.Owner, &cfg); err != nil {
		return fmt.Errorf("arrange the network of sandbox %s: %w", sandbox.Short(), err)
	}
	err = v.record(sandbox, "", "", func(sb *core.Sandbox) { sb.Config, sb.Data = cfg, want.Data })
	if err == nil && cfg.Durable {
		err = v.Scope.Store.Sync()
	}
	return err
}

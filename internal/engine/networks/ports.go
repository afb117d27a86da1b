package networks

import (
	"context"

	"github.com/longshore/longshore/internal/core"
)

// Withdraw gives the host ports of a sandbox back while its interfaces stay. The program of such a sandbox has ended, and the
// containers that share its network still run, so that another container can get the ports. Preconditions: the sandbox's lock is held.
func (v Verbs) Withdraw(ctx context.Context, sb *core.Sandbox) error {
	if len(sb.Network.Ports) == 0 {
		return nil
	}
	return v.publish(ctx, sb, nil)
}

// Publish claims the host ports of a sandbox's configuration again after Withdraw. Errors about ports are those of
// [core.Network.Setup]. Preconditions: the sandbox's lock is held.
func (v Verbs) Publish(ctx context.Context, sb *core.Sandbox) error {
	if len(sb.Network.Ports) > 0 || len(sb.Config.Network.Ports) == 0 {
		return nil
	}
	return v.publish(ctx, sb, sb.Config.Network.Ports)
}

// publish records the ports after they have changed. The network's recovery restores those that are recorded.
func (v Verbs) publish(ctx context.Context, sb *core.Sandbox, want []core.Port) error {
	st, err := v.Network.Publish(ctx, sb.NetworkRequest(), want)
	if err != nil {
		return err
	}
	sb.Network = st
	return v.record(sb.ID, "", "", func(now *core.Sandbox) { now.Network.Ports = st.Ports })
}

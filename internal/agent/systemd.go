package agent

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/longshore/longshore/internal/cgroup/systemd"
)

// settleKeeper gives a keeper that a unit of systemd has started a unit of its
// own: in ours it would be what is left over at every restart, of which systemd
// warns, and would be stopped with us by whoever changes how the unit is killed.
func (n *node) settleKeeper(ctx context.Context, keeper, nest int) {
	if os.Getenv("INVOCATION_ID") == "" {
		return // systemd did not start us
	}
	s, err := systemd.Dial(ctx)
	if err == nil {
		defer s.Close()
		err = s.StartScope(ctx, fmt.Sprintf("longshore-keeper-%d.scope", nest), keeper, nest)
	}
	if err != nil {
		n.log.WarnContext(ctx, "the keeper has no unit of its own and stays in the agent's", "error", err)
	}
}

// tellSystemd says that we are ready, and then feeds the watchdog, each time
// after a real round trip through the engine and its store: an agent that hangs
// is to be restarted.
func (n *node) tellSystemd(ctx context.Context) error {
	if ok, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		n.log.WarnContext(ctx, "cannot tell systemd that we are ready", "error", err)
	} else if !ok {
		return nil // systemd did not start us
	}
	every, err := daemon.SdWatchdogEnabled(false)
	if err != nil || every == 0 {
		return err
	}
	tick := time.NewTicker(every / 3)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
			return nil
		case <-tick.C:
			if err := n.health(ctx); err != nil {
				n.log.ErrorContext(ctx, "the engine does not answer; the watchdog is not fed", "error", err)
				continue
			}
			_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
		}
	}
}

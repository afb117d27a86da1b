package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/cgroup/systemd"
	"github.com/longshore/longshore/internal/proctree"
)

// settleKeeper moves a keeper that was started from a systemd unit to a unit of its own. In the
// agent's unit, systemd would warn of it as a leftover process at every restart, and another
// KillMode would kill it with the agent.
func (n *node) settleKeeper(ctx context.Context, keeper, nest int) {
	settle(ctx, n.log, fmt.Sprintf("longshore-keeper-%d.scope", nest), withSession(keeper, nest)...)
}

// settle moves processes to a systemd unit of their own, if systemd has started the agent.
func settle(ctx context.Context, log *slog.Logger, unit string, pids ...int) {
	if os.Getenv("INVOCATION_ID") == "" {
		return // systemd did not start the agent
	}
	s, err := systemd.Dial(ctx)
	if err == nil {
		defer s.Close()
		err = s.StartScope(ctx, unit, pids...)
	}
	if err != nil {
		log.WarnContext(ctx, "could not move processes to a systemd unit of their own; they stay in the agent's", "unit", unit, "error", err)
	}
}

// withSession adds to processes the others of their sessions: a keeper has a helper from its start,
// and nothing else before its first launch.
func withSession(pids ...int) []int {
	all, err := proctree.All()
	if err != nil {
		return pids
	}
	var sessions []int
	for _, pid := range pids {
		if session, err := unix.Getsid(pid); err == nil {
			sessions = append(sessions, session)
		}
	}
	for _, pid := range all {
		session, err := unix.Getsid(pid)
		if err == nil && slices.Contains(sessions, session) && !slices.Contains(pids, pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// tellSystemd reports that the agent is ready, and then feeds the watchdog, each time after a
// round trip through the engine and its store, so that systemd restarts an agent that hangs.
func (n *node) tellSystemd(ctx context.Context) error {
	if ok, err := daemon.SdNotify(false, daemon.SdNotifyReady); err != nil {
		n.log.WarnContext(ctx, "could not notify systemd that the agent is ready", "error", err)
	} else if !ok {
		return nil // systemd did not start the agent
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
			if n.next.path() == "" {
				_, _ = daemon.SdNotify(false, daemon.SdNotifyStopping)
			}
			return nil
		case <-tick.C:
			if err := n.health(ctx); err != nil {
				n.log.ErrorContext(ctx, "the engine does not answer, so the systemd watchdog is not fed; systemd will restart the agent", "error", err)
				continue
			}
			_, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog)
		}
	}
}

package agent

import (
	"context"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/longshore/longshore/internal/cgroup/systemd"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// stopper has the containers of one owner.
type stopper interface {
	Containers(ctx context.Context, f core.Filter) ([]core.Container, error)
	StopContainer(ctx context.Context, id core.ID, opts engine.StopOptions) error
}

// stopForShutdown stops the containers of the command line when the machine shuts down, each by its own
// signal and with its own time. Without it they would get SIGTERM from systemd at the very end, with
// the keeper, and a program that ignores it would delay the shutdown by systemd's patience. An
// orchestrator that wants its containers stopped does so itself.
func stopForShutdown(ctx context.Context, log *slog.Logger, own stopper) {
	if os.Getenv("INVOCATION_ID") == "" {
		return // systemd did not start the agent
	}
	bus, err := systemd.Dial(ctx)
	if err != nil {
		return // an agent below systemd without a bus cannot know
	}
	defer bus.Close()
	if down, err := bus.Stopping(ctx); err != nil || !down {
		return
	}
	stopAll(ctx, log, own)
}

// stopSlack is the time that a stop takes besides the container's own.
const stopSlack = 15 * time.Second

// stopAll stops all containers that run, at once.
func stopAll(ctx context.Context, log *slog.Logger, own stopper) {
	list, err := own.Containers(ctx, core.Filter{})
	if err != nil {
		log.WarnContext(ctx, "could not stop the containers for the shutdown", "error", err)
		return
	}
	var stops sync.WaitGroup
	for _, c := range list {
		if c.State != core.ContainerRunning && c.State != core.ContainerPaused {
			continue
		}
		stops.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, c.Config.Stop.Grace+stopSlack)
			defer cancel()
			opts := engine.StopOptions{Request: core.StopRequest{Owner: core.OwnerCLI, Call: core.ShutdownCall, At: time.Now()}}
			if err := own.StopContainer(ctx, c.ID, opts); err != nil {
				log.WarnContext(ctx, "could not stop a container for the shutdown", "container", string(c.ID), "error", err)
			}
		})
	}
	stops.Wait()
}

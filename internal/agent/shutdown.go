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

// stopForShutdown stops the containers of the command line and of Docker's API when the machine shuts down, each by its own
// signal and with its own time. Without it they would get SIGTERM from systemd at the very end, with
// the keeper, and a program that ignores it would delay the shutdown by systemd's patience. An
// orchestrator that wants its containers stopped does so itself.
func stopForShutdown(ctx context.Context, log *slog.Logger, owners ...stopper) {
	if os.Getenv("INVOCATION_ID") == "" {
		return // systemd did not start the agent
	}
	if shuttingDown(ctx) {
		var stops sync.WaitGroup
		for _, own := range owners {
			stops.Go(func() { stopAll(ctx, log, own) })
		}
		stops.Wait()
	}
}

// busTime bounds the questions to systemd: it may hang, and the agent must end.
const busTime = 5 * time.Second

// shuttingDown reports whether systemd shuts the machine down. An agent without a bus cannot know.
func shuttingDown(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, busTime)
	defer cancel()
	answer := make(chan bool, 1)
	go func() { // Dial does not end with ctx
		bus, err := systemd.Dial(ctx)
		if err != nil {
			answer <- false
			return
		}
		defer bus.Close()
		down, err := bus.Stopping(ctx)
		answer <- err == nil && down
	}()
	select {
	case down := <-answer:
		return down
	case <-ctx.Done():
		return false
	}
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
		if !c.State.Live() {
			continue
		}
		stops.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, c.Config.Stop.Grace+stopSlack)
			defer cancel()
			opts := engine.StopOptions{Request: core.StopRequest{Owner: c.Owner, Call: core.ShutdownCall, At: time.Now()}}
			if err := own.StopContainer(ctx, c.ID, opts); err != nil {
				log.WarnContext(ctx, "could not stop a container for the shutdown", "container", string(c.ID), "error", err)
			}
		})
	}
	stops.Wait()
}

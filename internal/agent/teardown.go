package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// teardowns is how many sandboxes are torn down concurrently: each mostly waits for its
// containers.
const teardowns = 32

// teardownPatience bounds the end of a teardown. It is long, because a package stays if the teardown fails, and a
// machine with too much work took more than ten seconds.
const teardownPatience = 2 * time.Minute

// teardown stops and removes every sandbox and then ends like an agent without containers. Nothing
// is served meanwhile, because an orchestrator would start the removed containers again. An error
// with one sandbox does not affect the others.
func teardown(ctx context.Context, n *node, grace time.Duration) error {
	if err := n.engine.Recover(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	running, stop := context.WithCancel(ctx)
	defer stop()
	var group errgroup.Group
	stopEngine := n.runEngine(running, &group)
	err := removeAll(ctx, n.engine.All(), grace)
	stop()
	stopEngine()
	return errors.Join(err, group.Wait(), n.leave(context.WithoutCancel(ctx), teardownPatience))
}

func removeAll(ctx context.Context, all *engine.Client, grace time.Duration) error {
	sandboxes, err := all.Sandboxes(ctx, core.Filter{})
	if err != nil {
		return err
	}
	asked := core.StopRequest{Call: "longshore teardown"}
	errs := make([]error, len(sandboxes))
	var group errgroup.Group
	group.SetLimit(teardowns)
	for i, sb := range sandboxes {
		group.Go(func() error {
			errs[i] = all.StopSandbox(ctx, sb.ID, engine.StopOptions{Grace: &grace, Request: asked})
			if errs[i] == nil {
				errs[i] = all.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true, Request: asked})
			}
			return nil
		})
	}
	_ = group.Wait()
	return errors.Join(errs...)
}

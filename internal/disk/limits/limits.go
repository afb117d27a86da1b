// Package limits measures containers that have a disk limit, and kills those that exceed it. Project quotas of the file
// system stop a program before that; there it finds programs that have evaded them. Start at Runner.
package limits

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// Call begins the Call of the request that ends a container. A restart policy then decides whether it starts again.
const Call = "disk limit"

// Runner measures all containers of a node that have a disk limit. All fields are required.
type Runner struct {
	All *engine.Client
	Log *slog.Logger
	// Every is the time between two measurements.
	Every time.Duration
}

// Run measures until ctx ends.
func (r *Runner) Run(ctx context.Context) {
	tick := time.NewTicker(r.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := r.Measure(ctx); err != nil && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "could not measure the disk usage of all containers with a limit", "retry_in", r.Every, "error", err)
		}
	}
}

// Measure measures each running container once, and kills those that exceed their limit.
func (r *Runner) Measure(ctx context.Context) error {
	all, err := r.All.Stored.Containers()
	if err != nil {
		return err
	}
	var errs []error
	for i := range all {
		if c := all[i]; c.Config.Disk > 0 && c.State == core.ContainerRunning {
			if err := r.one(ctx, c); err != nil && !errdefs.IsNotFound(err) {
				errs = append(errs, fmt.Errorf("container %s: %w", c.ID, err))
			}
		}
	}
	return errors.Join(errs...)
}

func (r *Runner) one(ctx context.Context, c *core.Container) error {
	st, err := r.All.Stats.Images.RootStats(ctx, c.ID)
	if err != nil || st.At.IsZero() || st.Bytes.OK && st.Bytes.N <= uint64(c.Config.Disk) {
		return err
	}
	why := fmt.Sprintf("its root has %d bytes, the limit is %d", st.Bytes.N, c.Config.Disk)
	if !st.Bytes.OK { // a program could evade its limit by such files
		why = "its root has more files, or deeper directories, than can be measured"
	}
	r.Log.InfoContext(ctx, "kill a container that exceeds its disk limit", "container", c.ID, "why", why)
	return r.All.Signal(ctx, core.Ref{Container: c.ID}, int(unix.SIGKILL), core.StopRequest{
		Owner: c.Owner, Call: Call + ": " + why, At: time.Now(),
	})
}

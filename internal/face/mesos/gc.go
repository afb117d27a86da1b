package mesos

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
)

// collector removes ended containers and their sandboxes after a delay.
type collector struct {
	server *server
	delay  time.Duration // 0 keeps them
}

// A sweep runs several times per delay, within bounds.
const (
	sweepsPerDelay   = 8
	minSweepInterval = time.Second
	maxSweepInterval = time.Hour
)

// run sweeps at once, and then regularly until ctx ends.
func (c collector) run(ctx context.Context) {
	if err := c.server.tree.FinishRemovals(); err != nil {
		c.server.log.WarnContext(ctx, "could not complete the removal of sandboxes that was interrupted; the next start of the agent tries again", "error", err)
	}
	if c.delay == 0 {
		return
	}
	tick := time.NewTicker(min(max(c.delay/sweepsPerDelay, minSweepInterval), maxSweepInterval))
	defer tick.Stop()
	for {
		if err := c.collect(ctx, time.Now()); err != nil && ctx.Err() == nil {
			c.server.log.WarnContext(ctx, "could not remove all expired containers; will retry", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// collect removes expired sandboxes, and touches those of running containers: after a reboot the
// age of a sandbox without a record counts from the last touch.
func (c collector) collect(ctx context.Context, now time.Time) error {
	var n sandbox.Inventory
	var err error
	// The containers first: one that is launched in between has a sandbox without a
	// record here, but a new one, which has not expired.
	if n.Containers, err = c.server.engine.Containers(ctx, core.Filter{}); err != nil {
		return err
	}
	if n.Sandboxes, err = c.server.tree.List(); err != nil {
		return err
	}
	var errs []error
	for _, id := range n.InUse(now) {
		errs = append(errs, c.server.tree.Touch(id, now))
	}
	for _, id := range n.Expired(now, c.delay) {
		cleared, err := c.collectOne(ctx, id, now)
		if cleared || err != nil {
			c.server.state.counters.Removed(cleared)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("container %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// collectOne removes an expired container: the record first, because a sandbox without
// a record is found again.
func (c collector) collectOne(ctx context.Context, id string, now time.Time) (cleared bool, err error) {
	unlock, err := c.server.ids.Lock(ctx, id)
	if err != nil {
		return false, err
	}
	defer unlock()
	t, err := c.server.find(ctx, id)
	switch {
	case errdefs.IsNotFound(err): // and it is not being launched, which takes the lock
		err = c.server.removeSandbox(ctx, id)
	case err == nil && !sandbox.Expired(&t.container, now, c.delay):
		return false, nil // a new container has this id
	case err == nil:
		err = c.server.remove(ctx, t, "the end of gc_delay")
	}
	if err != nil {
		return false, err
	}
	err = c.server.tree.Remove(id)
	return err == nil, err
}

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

// cleaner clears what containers have left when it has been kept for long enough.
type cleaner struct {
	*server
	delay time.Duration // 0 keeps it
}

// How often it is looked whose time is over: a part of the delay, within bounds.
const (
	looks     = 8
	leastLook = time.Second
	mostLook  = time.Hour
)

// run looks at once, and then every so often until ctx ends.
func (c cleaner) run(ctx context.Context) {
	if err := c.tree.FinishRemovals(); err != nil {
		c.log.WarnContext(ctx, "what was being removed when the agent died is still there", "error", err)
	}
	if c.delay == 0 {
		return
	}
	tick := time.NewTicker(min(max(c.delay/looks, leastLook), mostLook))
	defer tick.Stop()
	for {
		if err := c.look(ctx, time.Now()); err != nil && ctx.Err() == nil {
			c.log.WarnContext(ctx, "what ended containers have left was not all cleared", "error", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// look clears what is due now. What runs is said to be in use: how old a sandbox is
// that has lost its record by a reboot counts from then.
func (c cleaner) look(ctx context.Context, now time.Time) error {
	var n sandbox.Inventory
	var err error
	// In this order: what is launched in between has a sandbox without a record,
	// which is new.
	if n.Containers, err = c.engine.Containers(ctx, core.Filter{}); err != nil {
		return err
	}
	if n.Sandboxes, err = c.tree.List(); err != nil {
		return err
	}
	var errs []error
	for _, id := range n.InUse(now) {
		errs = append(errs, c.tree.Touch(id, now))
	}
	for _, id := range n.Expired(now, c.delay) {
		cleared, err := c.clear(ctx, id, now)
		if cleared || err != nil {
			c.shows.tally.Removed(cleared)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("container %s: %w", id, err))
		}
	}
	return errors.Join(errs...)
}

// clear takes away what an ended container has left: the record before the sandbox, as
// a sandbox alone is found again.
func (c cleaner) clear(ctx context.Context, id string, now time.Time) (cleared bool, err error) {
	unlock, err := c.names.Lock(ctx, id)
	if err != nil {
		return false, err
	}
	defer unlock()
	t, err := c.find(ctx, id)
	switch {
	case errdefs.IsNotFound(err): // nor does anybody launch it: that takes the lock
		err = c.dropUnfinished(ctx, id)
	case err == nil && !sandbox.Expired(&t.container, now, c.delay):
		return false, nil // another one has its name by now
	case err == nil:
		err = c.drop(ctx, t, "the end of gc_delay")
	}
	if err != nil {
		return false, err
	}
	err = c.tree.Remove(id)
	return err == nil, err
}

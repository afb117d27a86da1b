// Package idle puts containers to sleep that have been idle for the time in their configuration. Start at Runner.
package idle

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// Runner observes all containers of a node. All fields are required.
type Runner struct {
	All *engine.Client
	Log *slog.Logger
	// Every is the time between two observations.
	Every time.Duration

	seen map[core.ID]observed
}

// observed is the result of an observation of a container.
type observed struct {
	started time.Time // of the program
	at      time.Time
	cpu     time.Duration
	active  time.Time // the last time that it was not idle
}

// busy is a share of one CPU. A container that uses more is active.
const busy = 0.01

// Run observes until ctx ends.
func (r *Runner) Run(ctx context.Context) {
	tick := time.NewTicker(r.Every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := r.look(ctx); err != nil && ctx.Err() == nil {
			r.Log.WarnContext(ctx, "could not find out which containers are idle", "error", err)
		}
	}
}

// look observes all containers once, and puts the idle ones to sleep.
func (r *Runner) look(ctx context.Context) error {
	all, err := r.All.Stored.Containers()
	if err != nil {
		return err
	}
	next := map[core.ID]observed{}
	for _, c := range all {
		if c.State != core.ContainerRunning || c.MemoryOut() {
			continue
		}
		after, err := r.after(ctx, c)
		if err != nil || after == 0 {
			continue
		}
		o, err := r.observe(ctx, c)
		if err != nil {
			r.Log.DebugContext(ctx, "could not observe a container", "container", c.ID, "error", err)
			continue
		}
		if o.at.Sub(o.active) >= after {
			if err := r.All.Rests.SleepIdle(ctx, c.ID); err != nil && ctx.Err() == nil {
				r.Log.InfoContext(ctx, "an idle container cannot sleep", "container", c.ID, "error", err)
			}
			o.active = o.at // if it cannot sleep now, try again after the same time
		}
		next[c.ID] = o
	}
	r.seen = next
	return nil
}

// after returns the idle time after which a container sleeps, 0 for none.
func (r *Runner) after(ctx context.Context, c *core.Container) (time.Duration, error) {
	if c.Config.SleepAfter != 0 {
		return c.Config.SleepAfter, nil
	}
	sb, err := r.All.Sandbox(ctx, c.Sandbox)
	return sb.Config.SleepAfter, err
}

// observe observes one container.
func (r *Runner) observe(ctx context.Context, c *core.Container) (observed, error) {
	stats, err := r.All.Stats.OfContainer(ctx, c, core.StatsUsage)
	if err != nil {
		return observed{}, err
	}
	open, err := connections(c.Main.Pid)
	if err != nil {
		return observed{}, err
	}
	o := observed{started: c.Main.Started, at: time.Now(), cpu: time.Duration(stats.CPU.Usage.N)}
	last, ok := r.seen[c.ID]
	if ok && last.started.Equal(o.started) && open == 0 && !active(c, last, o) {
		o.active = last.active
	} else {
		o.active = o.at
	}
	return o, nil
}

// active reports whether a container has done something between two observations.
func active(c *core.Container, last, now observed) bool {
	if c.Rest != nil && c.Rest.Woken.After(last.at) {
		return true
	}
	if slices.ContainsFunc(c.Execs, func(p core.Process) bool { return p.Autopsy == nil }) {
		return true
	}
	return float64(now.cpu-last.cpu) > busy*float64(now.at.Sub(last.at))
}

// connections returns the number of established TCP connections in the network namespace of a process.
func connections(pid int) (n int, err error) {
	for _, name := range []string{"tcp", "tcp6"} {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, name))
		if errors.Is(err, os.ErrNotExist) && name == "tcp6" { // the kernel has no IPv6
			continue
		}
		if err != nil {
			return 0, err
		}
		n += established(b)
	}
	return n, nil
}

// established counts the lines of established connections. The fourth field is the state.
func established(table []byte) (n int) {
	for line := range bytes.Lines(table) {
		if f := bytes.Fields(line); len(f) > 3 && string(f[3]) == "01" {
			n++
		}
	}
	return n
}

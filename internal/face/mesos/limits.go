package mesos

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
	"github.com/longshore/longshore/internal/face/mesos/translate"
)

// disks ends standalone containers that take more of the disk than they were given.
type disks struct {
	*server
	every time.Duration // 0 lets them

	mu   sync.Mutex         // guards used
	used map[core.ID]uint64 // by container, bytes, when it was last measured
}

// run measures them, one after the other, every so often until ctx ends.
func (d *disks) run(ctx context.Context) {
	if d.every == 0 {
		return
	}
	tick := time.NewTicker(d.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := d.look(ctx); err != nil && ctx.Err() == nil {
			d.log.WarnContext(ctx, "what containers take of the disk was not all measured", "error", err)
		}
	}
}

// look measures all that have a limit once.
func (d *disks) look(ctx context.Context) error {
	all, err := d.engine.Containers(ctx, core.Filter{})
	if err != nil {
		return err
	}
	trees := map[core.ID][]core.Container{} // by sandbox
	for _, c := range all {
		trees[c.Sandbox] = append(trees[c.Sandbox], c)
	}
	used := map[core.ID]uint64{}
	var errs []error
	for i := range all {
		c := &all[i]
		if c.Parent != "" || !runs(c) {
			continue
		}
		rec, err := translate.ReadRecord(*c)
		if err == nil && rec.Disk == 0 {
			continue
		}
		if err == nil {
			used[c.ID], err = d.check(ctx, rec, *c, trees[c.Sandbox])
		}
		if err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("container %s: %w", c.Key, err))
		}
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.used = used
	return errors.Join(errs...)
}

// check measures a standalone container, which is its sandbox, in which those of nested
// ones are, and all their own layers; and ends it when that is too much.
func (d *disks) check(ctx context.Context, rec translate.Record, c core.Container, tree []core.Container) (uint64, error) {
	used, err := sandbox.Usage(ctx, rec.Dir)
	call := ""
	if errors.Is(err, sandbox.ErrTooDeep) {
		call, err = sandbox.DepthRequest(), nil
	}
	if err != nil {
		return used, err
	}
	for i := range tree {
		st, err := d.engine.Stats.OfContainer(ctx, &tree[i], core.FigureRoot)
		if err != nil && !errdefs.IsNotFound(err) {
			return used, err
		}
		used += st.Root.Bytes.N
	}
	if call == "" {
		call = sandbox.QuotaRequest(used, rec.Disk)
	}
	if call != "" {
		d.log.InfoContext(ctx, "a container is ended for what it takes of the disk", "container", string(c.Key), "bytes", used, "limit", rec.Disk)
		err = d.engine.Signal(ctx, core.Ref{Container: c.ID}, int(unix.SIGKILL), asked(call))
	}
	return used, err
}

// show adds what is known of a container's disk to its figures.
func (d *disks) show(c core.Container, to *mesosv1.ResourceStatistics) {
	rec, err := translate.ReadRecord(c)
	if err != nil || rec.Disk == 0 || c.Parent != "" {
		return
	}
	to.DiskLimitBytes = &rec.Disk
	d.mu.Lock()
	defer d.mu.Unlock()
	if n, ok := d.used[c.ID]; ok {
		to.DiskUsedBytes = &n
	}
}

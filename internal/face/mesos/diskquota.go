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

// diskQuota stops standalone containers that use more disk space than their limit.
type diskQuota struct {
	server   *server
	interval time.Duration // 0 does not enforce limits

	mu   sync.Mutex         // guards used
	used map[core.ID]uint64 // bytes by container, as of the last measurement
}

// run measures all containers regularly until ctx ends.
func (d *diskQuota) run(ctx context.Context) {
	if d.interval == 0 {
		return
	}
	tick := time.NewTicker(d.interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := d.measureAll(ctx); err != nil && ctx.Err() == nil {
			d.server.log.WarnContext(ctx, "could not measure the disk usage of all containers; will retry", "retry_in", d.interval, "error", err)
		}
	}
}

// measureAll measures all containers that have a limit once.
func (d *diskQuota) measureAll(ctx context.Context) error {
	all, err := d.server.engine.Containers(ctx, core.Filter{})
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
		if c.Parent != "" || !isRunning(c) {
			continue
		}
		rec, err := translate.ReadRecord(*c)
		if err == nil && rec.Disk == 0 {
			continue
		}
		if err == nil {
			used[c.ID], err = d.measure(ctx, rec, *c, trees[c.Sandbox])
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

// measure measures a standalone container, and stops it if it exceeds its limit. Its
// usage is that of its sandbox, which contains those of nested containers, and of all
// their root layers.
func (d *diskQuota) measure(ctx context.Context, rec translate.Record, c core.Container, tree []core.Container) (uint64, error) {
	used, err := sandbox.Usage(ctx, rec.Dir)
	call := ""
	if errors.Is(err, sandbox.ErrTooDeep) {
		call, err = sandbox.DepthRequest(), nil
	}
	if err != nil {
		return used, err
	}
	for i := range tree {
		st, err := d.server.engine.Stats.OfContainer(ctx, &tree[i], core.StatsRootfs)
		if err != nil && !errdefs.IsNotFound(err) {
			return used, err
		}
		used += st.Root.Bytes.N
	}
	if call == "" {
		call = sandbox.QuotaRequest(used, rec.Disk)
	}
	if call != "" {
		d.server.log.InfoContext(ctx, "stop a container that exceeds its disk limit", "container", string(c.Key), "bytes", used, "limit", rec.Disk)
		err = d.server.engine.Signal(ctx, core.Ref{Container: c.ID}, int(unix.SIGKILL), stopRequest(call))
	}
	return used, err
}

// addTo adds the disk limit and usage of a container to its statistics.
func (d *diskQuota) addTo(c core.Container, to *mesosv1.ResourceStatistics) {
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

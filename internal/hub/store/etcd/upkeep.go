package etcd

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
)

// The times of maintenance: at this interval, and when the database takes no writes. It is
// defragmented when more of its file is free than used and the free part is worth the pause of all
// reads and writes.
const (
	upkeepEvery = time.Minute
	worthIt     = 64 << 20
)

// Run implements store.DB: it looks after the database until ctx ends. That of the user's etcd is the user's.
func (d *DB) Run(ctx context.Context) error {
	timer := time.NewTimer(upkeepEvery)
	defer timer.Stop()
	logged := false
	for {
		select {
		case <-timer.C:
		case <-d.full:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if !d.Alone() {
			continue
		}
		err := d.Upkeep(ctx)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err == nil:
			logged = false
		case !logged:
			logged = true
			d.log.ErrorContext(ctx, "the hub's database is full", "error", err)
		}
		timer.Reset(upkeepEvery)
	}
}

// Upkeep frees unused space of the database, and enables writes again if that has made room.
// ResourceExhausted if it has not.
func (d *DB) Upkeep(ctx context.Context) error {
	server := d.etcd.Server
	alarmed := slices.ContainsFunc(server.Alarms(), func(a *etcdserverpb.AlarmMember) bool { return a.GetAlarm() == etcdserverpb.AlarmType_NOSPACE })
	if alarmed {
		resp, err := d.client.Get(ctx, d.prefix, clientv3.WithCountOnly())
		if err != nil {
			return fmt.Errorf("read the revision: %w", classed(err))
		}
		// Only watches that are far behind need earlier revisions: they list again.
		if _, err := d.client.Compact(ctx, resp.Header.GetRevision(), clientv3.WithCompactPhysical()); err != nil && !errdefs.IsOutOfRange(classed(err)) {
			return fmt.Errorf("drop earlier revisions: %w", classed(err))
		}
		server.Backend().ForceCommit()
	}
	backend := server.Backend()
	if used, size := backend.SizeInUse(), backend.Size(); alarmed || size-used > max(used, worthIt) {
		begin := time.Now()
		if err := backend.Defrag(); err != nil {
			return fmt.Errorf("compact the database: %w", err)
		}
		d.log.InfoContext(ctx, "the hub's database was compacted", "bytes", backend.Size(), "before", size, "took", time.Since(begin))
	}
	if !alarmed {
		return nil
	}
	// A little room, so that it is not full at once again.
	if size := backend.Size(); size > d.quota-d.quota/10 {
		return fmt.Errorf("the database has %d MiB of at most %d: remove unused objects, or start the hub with a larger --quota: %w", size>>20, d.quota>>20, errdefs.ErrResourceExhausted)
	}
	if _, err := server.Alarm(ctx, &etcdserverpb.AlarmRequest{Action: etcdserverpb.AlarmRequest_DEACTIVATE, MemberID: uint64(server.MemberID()), Alarm: etcdserverpb.AlarmType_NOSPACE}); err != nil {
		return fmt.Errorf("resume writes to the database: %w", classed(err))
	}
	d.log.InfoContext(ctx, "the hub's database takes writes again")
	return nil
}

package cgroup

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/stats"
)

// Stats reads those fields of ref that want selects. Fields that this node does not have
// are not OK. It fails with NotFound if ref does not exist.
func (t *Tree) Stats(ctx context.Context, ref core.CgroupRef, want core.StatsFields) (core.Stats, error) {
	if err := t.valid(ref); err != nil {
		return core.Stats{}, fmt.Errorf("read stats: %w", err)
	}
	member := t.memberDir(ref)
	var s core.Stats
	if t.layout.mode == core.CgroupV2 {
		s = t.kept.V2(member, want)
	} else {
		s = t.kept.V1(func(controller string) string {
			dir, _ := t.layout.v1Dir(ref, controller)
			return dir
		}, want)
	}
	if !s.CPU.Usage.OK && !exists(member) { // a value that was read proves that it exists
		return core.Stats{}, fmt.Errorf("read stats of cgroup %s: %w", ref.Path, errdefs.ErrNotFound)
	}
	if want.Has(core.StatsLimits) {
		s.Limits = t.limits(ref, member)
	}
	if !want.Has(core.StatsProcessCount | core.StatsProcesses | core.StatsProcessFiles) {
		return s, nil
	}
	pids, err := t.kept.Pids(member)
	if err != nil {
		return s, fmt.Errorf("read stats of cgroup %s: %w", ref.Path, err)
	}
	s.Pids.Processes = core.Known(uint64(len(pids)))
	if !want.Has(core.StatsProcesses | core.StatsProcessFiles) {
		return s, nil
	}
	s.Processes, err = stats.Processes(ctx, pids, want.Has(core.StatsProcessFiles))
	return s, err
}

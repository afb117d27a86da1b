package cgroup

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/stats"
)

// Stats reads every figure of ref; those that this node does not have are not
// OK. With processes, each process in and below ref is read as well. NotFound
// when ref is gone.
func (t *Tree) Stats(ctx context.Context, ref core.CgroupRef, processes bool) (core.Stats, error) {
	if err := t.valid(ref); err != nil {
		return core.Stats{}, fmt.Errorf("read figures: %w", err)
	}
	var s core.Stats
	if t.layout.mode == core.CgroupV2 {
		dir := t.layout.v2Dir(ref)
		if !exists(dir) {
			return s, fmt.Errorf("read figures of cgroup %s: %w", dir, errdefs.ErrNotFound)
		}
		s = stats.V2(dir)
	} else {
		dirs := map[string]string{}
		for _, h := range t.layout.v1 {
			for _, c := range h.controllers {
				if dir, _ := h.dir(ref); dir != "" {
					dirs[c] = dir
				}
			}
		}
		if dir := t.memberDir(ref); !exists(dir) {
			return s, fmt.Errorf("read figures of cgroup %s: %w", ref.Path, errdefs.ErrNotFound)
		}
		s = stats.V1(dirs)
	}
	if !processes {
		return s, nil
	}
	pids, err := pidsBelow(t.memberDir(ref))
	if err != nil {
		return s, fmt.Errorf("read figures of cgroup %s: %w", ref.Path, err)
	}
	for _, pid := range pids {
		if err := ctx.Err(); err != nil {
			return s, err
		}
		if p, err := stats.Process(pid); err == nil { // else it has just ended
			s.Processes = append(s.Processes, p)
		}
	}
	return s, nil
}

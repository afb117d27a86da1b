package cgroup

import (
	"context"
	"errors"

	"github.com/longshore/longshore/internal/core"
)

// Release takes the engine's own tree away when there is nothing in it; what is
// still used stays, which is no error.
func (t *Tree) Release(ctx context.Context) error {
	var errs []error
	used := false
	for _, dir := range t.layout.owned(core.CgroupRef{Path: t.root}) {
		children, err := subdirs(dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if len(children) == 0 {
			_ = rmdir(dir)
		} else {
			used = true
		}
	}
	if t.systemd != nil && !used && unitOf(t.root) == t.root {
		errs = append(errs, t.stopUnit(ctx, t.root))
	}
	return errors.Join(errs...)
}

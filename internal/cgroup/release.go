package cgroup

import (
	"context"
	"errors"

	"github.com/longshore/longshore/internal/core"
)

// Release takes the engine's own tree away when there is nothing in it; what is
// still used stays, which is no error.
func (t *Tree) Release(context.Context) error {
	var errs []error
	for _, dir := range t.layout.owned(core.CgroupRef{Path: t.root}) {
		children, err := subdirs(dir)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if len(children) == 0 {
			_ = rmdir(dir)
		}
	}
	return errors.Join(errs...)
}

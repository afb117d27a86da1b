package cgroup

import (
	"context"
	"path"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

// Systemd makes transient units. The engine runs without one by default: below
// a unit with Delegate=yes plain directories are right.
type Systemd interface {
	// StartSlice makes a slice, and those above it, unless it is there.
	StartSlice(ctx context.Context, name string) error
	// StopUnit stops a unit; it succeeds when there is none.
	StopUnit(ctx context.Context, name string) error
}

// makeUnit has systemd make what is a unit of its own. A scope needs its first
// process and is made by the runtime (--systemd-cgroup); a plain directory
// below a unit is made by mkdir.
func (t *Tree) makeUnit(ctx context.Context, ref core.CgroupRef) (done bool, err error) {
	if ref.Adopted[""] != "" {
		return false, nil // somebody else's unit
	}
	for part := range strings.SplitSeq(strings.Trim(ref.Path, "/"), "/") {
		switch path.Ext(part) {
		case ".slice":
			if err := t.systemd.StartSlice(ctx, part); err != nil {
				return false, err
			}
		case ".scope":
			return true, nil
		}
	}
	return strings.HasSuffix(ref.Path, ".slice"), nil
}

func (t *Tree) removeUnit(ctx context.Context, ref core.CgroupRef) error {
	if ref.Adopted[""] != "" {
		return nil
	}
	if ext := path.Ext(ref.Path); ext != ".slice" && ext != ".scope" {
		return nil
	}
	return t.systemd.StopUnit(ctx, path.Base(ref.Path))
}

package cgroup

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

// Systemd makes transient units. The engine runs without one by default: below
// a unit with Delegate=yes plain directories are right.
type Systemd interface {
	// StartSlice makes a slice, and those above it, unless it is there.
	StartSlice(ctx context.Context, name string) error
	// StartService makes a service without a process in a slice ("" is
	// systemd's own choice), whose cgroup is delegated to us and stays until
	// the service is stopped; unless it is there.
	StartService(ctx context.Context, name, slice string) error
	// StopUnit stops a unit; it succeeds when there is none.
	StopUnit(ctx context.Context, name string) error
}

// systemdRoot is the engine's own tree with systemd.
const systemdRoot = "/system.slice/longshore-sandboxes.service"

// inUnit is the directory of a delegated unit that is ours alone. What stands
// at the unit's own directory is systemd's, which writes it anew at every
// daemon-reload; what is below a delegated unit it never touches, neither
// limits nor device programs.
const inUnit = "tree"

// A scope would be the usual unit, but it ends, and its cgroup goes, with its
// last process: a sandbox without processes has none, and the counts of a
// container that ended are read after its end. A slice stays, but cannot be
// delegated. So the unit is a service that remains without a process.

// unitOf finds the delegated unit in a path: its own path, "" when there is none.
func unitOf(p string) string {
	dir := "/"
	for part := range strings.SplitSeq(strings.Trim(p, "/"), "/") {
		dir = path.Join(dir, part)
		switch path.Ext(part) {
		case ".slice":
		case ".service":
			return dir
		default:
			return ""
		}
	}
	return ""
}

// makeUnit has systemd make what is a unit of its own. A plain directory below a
// unit is made by mkdir.
func (t *Tree) makeUnit(ctx context.Context, ref core.CgroupRef) (done bool, err error) {
	if ref.Adopted[""] != "" {
		return false, nil // somebody else's unit
	}
	if unit := unitOf(ref.Path); unit != "" {
		if t.layout.unified != "" && exists(t.layout.unified+unit) {
			return false, nil // by far the usual case: a container in its sandbox's
		}
		slice := path.Base(path.Dir(unit))
		if slice == "/" {
			slice = "-.slice"
		}
		return false, t.systemd.StartService(ctx, path.Base(unit), slice)
	}
	for part := range strings.SplitSeq(strings.Trim(ref.Path, "/"), "/") {
		if path.Ext(part) != ".slice" {
			return false, nil
		}
		if err := t.systemd.StartSlice(ctx, part); err != nil {
			return false, err
		}
	}
	return true, nil
}

// removeUnit takes away the unit that ref, already removed, was all of.
func (t *Tree) removeUnit(ctx context.Context, ref core.CgroupRef) error {
	if ref.Adopted[""] != "" || ref.Path == "" {
		return nil
	}
	unit := unitOf(ref.Path)
	switch {
	case unit != "" && unit != t.root && (ref.Path == unit || ref.Path == unit+"/"+inUnit):
	case unit == "" && path.Ext(ref.Path) == ".slice":
		unit = ref.Path
	default:
		return nil
	}
	return t.stopUnit(ctx, unit)
}

// stopUnit stops a unit, which takes its cgroup away where systemd made it, and
// then what we made in its name in other hierarchies.
func (t *Tree) stopUnit(ctx context.Context, unit string) error {
	errs := []error{t.systemd.StopUnit(ctx, path.Base(unit))}
	for _, dir := range t.layout.owned(core.CgroupRef{Path: unit}) {
		errs = append(errs, removeTree(ctx, dir))
	}
	return errors.Join(errs...)
}

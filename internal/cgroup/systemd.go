package cgroup

import (
	"context"
	"errors"
	"path"
	"strings"

	"github.com/longshore/longshore/internal/core"
)

// Systemd makes transient units. By default the engine runs without it: below a unit
// with Delegate=yes, plain directories are enough.
type Systemd interface {
	// StartSlice makes a slice and its parents, unless it exists.
	StartSlice(ctx context.Context, name string) error
	// StartService makes a service without a process in a slice ("" leaves the choice to
	// systemd), unless it exists. Its cgroup is delegated to this process and stays
	// until the service is stopped.
	StartService(ctx context.Context, name, slice string) error
	// StopUnit stops a unit; it succeeds if there is none.
	StopUnit(ctx context.Context, name string) error
}

// systemdRoot is the engine's own tree if systemd makes units.
const systemdRoot = "/system.slice/longshore-sandboxes.service"

// inUnit is Longshore's directory in a delegated unit. systemd rewrites the files of the unit's own
// directory at every daemon-reload, but never changes directories below a delegated unit, neither
// limits nor device programs.
const inUnit = "tree"

// A scope would be the usual unit, but it ends, and its cgroup is removed, with its last
// process: a sandbox without processes has none, and a container's counters are read
// after its end. A slice stays, but cannot be delegated. So the unit is a service that
// stays active without a process.

// unitOf returns the path of the delegated unit in a path, "" if there is none.
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

// makeUnit has systemd make the unit for a path, if it is one. A plain directory below a
// unit is made by mkdir.
func (t *Tree) makeUnit(ctx context.Context, ref core.CgroupRef) (done bool, err error) {
	if ref.Adopted[""] != "" {
		return false, nil // another program's unit
	}
	if unit := unitOf(ref.Path); unit != "" {
		if t.layout.unified != "" && exists(t.layout.unified+unit) {
			return false, nil // the usual case: a container in its sandbox's unit
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

// removeUnit stops the unit of the removed cgroup ref.
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
	if t.systemd == nil && !t.formerly(unit) {
		return nil
	}
	return t.stopUnit(ctx, unit)
}

// formerly reports whether a unit exists that an agent with systemd has made.
func (t *Tree) formerly(unit string) bool {
	name := path.Base(unit)
	return t.former != nil && t.layout.unified != "" && strings.HasPrefix(name, "longshore-") && path.Ext(name) == ".service" && exists(t.layout.unified+unit)
}

// stopUnit stops a unit, which removes its cgroup in the hierarchies that systemd
// manages, and then removes its directories in the others.
func (t *Tree) stopUnit(ctx context.Context, unit string) error {
	by := t.systemd
	if by == nil {
		by = t.former
	}
	errs := []error{by.StopUnit(ctx, path.Base(unit))}
	for _, dir := range t.layout.owned(core.CgroupRef{Path: unit}) {
		errs = append(errs, removeTree(ctx, dir))
	}
	return errors.Join(errs...)
}

package cgroup

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/longshore/longshore/internal/core"
)

// Release removes the empty part of the engine's own tree. Used cgroups stay, without an error.
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
	if t.systemd == nil && t.formerly(systemdRoot) {
		errs = append(errs, t.releaseFormer(ctx))
	}
	return errors.Join(errs...)
}

// releaseFormer stops the unit of an agent with systemd when nothing is in it.
func (t *Tree) releaseFormer(ctx context.Context) error {
	dir := t.layout.unified + systemdRoot
	children, err := subdirs(dir)
	if err != nil {
		return err
	}
	for _, c := range children {
		if rmdir(filepath.Join(dir, c)) != nil {
			return nil //nolint:nilerr // something is in it, so the unit stays
		}
	}
	return t.stopUnit(ctx, systemdRoot)
}

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// Remove removes ref and everything below it in every hierarchy, except adopted cgroups.
// It kills nothing: if there are still processes after a short wait, it fails with
// FailedPrecondition. It succeeds if nothing exists.
func (t *Tree) Remove(ctx context.Context, ref core.CgroupRef) error {
	if ref.IsZero() {
		return nil
	}
	if err := t.valid(ref); err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	if ref.Path == t.root {
		return fmt.Errorf("remove cgroup: %s holds all: %w", ref.Path, errdefs.ErrInvalidArgument)
	}
	defer func() {
		for _, dir := range t.layout.dirs(ref) {
			t.kept.Forget(dir)
		}
	}()
	var errs []error
	for _, dir := range t.layout.owned(ref) {
		if err := removeTree(ctx, dir); err != nil {
			errs = append(errs, err)
		}
	}
	if len(errs) == 0 { // stopping a unit kills its processes
		errs = append(errs, t.removeUnit(ctx, ref))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove cgroup %s: %w", ref.Path, err)
	}
	return nil
}

func removeTree(ctx context.Context, dir string) error {
	if rmdir(dir) == nil { // usually there are no processes and nothing below
		return nil
	}
	children, err := subdirs(dir)
	if err != nil {
		return err
	}
	for _, c := range children {
		if err := removeTree(ctx, filepath.Join(dir, c)); err != nil {
			return err
		}
	}
	// A process that has just been reaped is in the cgroup for another moment.
	var last error
	err = poll(ctx, func() (bool, error) {
		last = rmdir(dir)
		if errors.Is(last, unix.EBUSY) {
			return false, nil
		}
		return last == nil, last
	})
	if errors.Is(last, unix.EBUSY) {
		pids, _ := pidsBelow(dir)
		return fmt.Errorf("%s has processes %v: %w: %w", dir, pids, last, errdefs.ErrFailedPrecondition)
	}
	return err
}

func rmdir(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &os.PathError{Op: "rmdir", Path: dir, Err: err}
}

package cgroup

import (
	"context"
	"errors"
	"fmt"
	"os"

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
	if err := removeBelow(ctx, dir); err != nil {
		return err
	}
	return settle(ctx, dir, func() error { return rmdir(dir) })
}

// settle calls remove until it succeeds. A process that has just been reaped is in its cgroup for another moment.
func settle(ctx context.Context, dir string, remove func() error) error {
	var last error
	err := poll(ctx, func() (bool, error) {
		last = remove()
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

// removeBelow removes all directories below dir. Workloads can nest cgroups deeper than the longest path, so it uses
// descriptors to go down and up. One descriptor is open at a time.
func removeBelow(ctx context.Context, dir string) error {
	at, err := openDir(unix.AT_FDCWD, dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = at.Close() }()
	move := func(to string) error {
		next, err := openDir(int(at.Fd()), to)
		if err == nil {
			_ = at.Close()
			at = next
		}
		return err
	}
	var names []string // from dir to at
	for {
		full, err := removeEmpty(at)
		if err == nil && full != "" {
			names = append(names, full)
			err = move(full)
		} else if err == nil {
			if len(names) == 0 {
				return nil
			}
			last := names[len(names)-1]
			names = names[:len(names)-1]
			if err = move(".."); err == nil {
				err = settle(ctx, dir, func() error { return rmdirAt(int(at.Fd()), last) })
			}
		}
		if err != nil {
			return err
		}
	}
}

// removeEmpty removes the directories in dir that are empty, and returns the name of one that is not.
func removeEmpty(dir *os.File) (full string, err error) {
	entries, err := dir.ReadDir(-1)
	if err != nil {
		return "", err
	}
	for _, e := range entries {
		if e.IsDir() && rmdirAt(int(dir.Fd()), e.Name()) != nil {
			full = e.Name()
		}
	}
	return full, nil
}

func openDir(at int, name string) (*os.File, error) {
	fd, err := unix.Openat(at, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: name, Err: err}
	}
	return os.NewFile(uintptr(fd), name), nil
}

func rmdir(dir string) error { return rmdirAt(unix.AT_FDCWD, dir) }

func rmdirAt(at int, name string) error {
	err := unix.Unlinkat(at, name, unix.AT_REMOVEDIR)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return &os.PathError{Op: "rmdir", Path: name, Err: err}
}

package oci

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

// binds is the directory with copies of mount sources, by container. Only root can enter
// it.
func (r *Runtime) binds() string { return r.o.Root + ".binds" }

// copyBinds returns a spec with bind sources that a program can mount by name. If a workload may
// own a part of a source, it resolves the source, following no links, and attaches a copy of its
// mount where only root can reach it. The program itself would follow links, and the path could
// lead elsewhere by the time it is used.
func (r *Runtime) copyBinds(id core.ID, spec *specs.Spec) (*specs.Spec, error) {
	var with *specs.Spec
	dir := filepath.Join(r.binds(), string(id))
	for i, m := range spec.Mounts {
		base, rel, err := ocispec.Below(m)
		if err == nil && base != "" && with == nil {
			s := *spec
			s.Mounts = slices.Clone(spec.Mounts)
			with = &s
			err = os.MkdirAll(dir, 0o700)
		}
		if err == nil && base != "" {
			target := filepath.Join(dir, strconv.Itoa(i))
			o := ocispec.ParseMountOptions(m.Options)
			err = attach(base, rel, beneath.Copy{Recursive: o.Flags&unix.MS_REC != 0, Shared: o.Propagation&unix.MS_SHARED != 0}, target)
			m.Source = target
			m.Options = slices.DeleteFunc(slices.Clone(m.Options), ocispec.IsBelowOption)
			with.Mounts[i] = m
		}
		if err != nil {
			return nil, errors.Join(fmt.Errorf("mounts[%d] (%s): %w", i, m.Destination, err), r.removeBindCopies(id))
		}
	}
	if with == nil {
		return spec, nil
	}
	return with, nil
}

// attach makes target, a file or a directory, and mounts a copy of the source on it.
func attach(base, rel string, how beneath.Copy, target string) error {
	tree, err := beneath.Tree(base, rel, how)
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }()
	st, err := tree.Stat()
	if err != nil {
		return err
	}
	if st.IsDir() {
		err = os.Mkdir(target, 0o700)
	} else {
		err = os.WriteFile(target, nil, 0o600)
	}
	if err != nil {
		return err
	}
	return beneath.Attach(tree, target)
}

// removeBindCopies removes a container's copies. It succeeds if there are none, and deletes
// nothing that is still mounted.
func (r *Runtime) removeBindCopies(id core.ID) error {
	dir := filepath.Join(r.binds(), string(id))
	copies, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, p := range copies {
		target := filepath.Join(dir, p.Name())
		// Make it private first, so that nothing of the original is unmounted.
		if err := unix.Mount("", target, "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil && !errors.Is(err, unix.EINVAL) {
			errs = append(errs, &os.PathError{Op: "make private", Path: target, Err: err})
			continue
		}
		if err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: nothing is mounted there
			errs = append(errs, &os.PathError{Op: "unmount", Path: target, Err: err})
			continue
		}
		errs = append(errs, os.Remove(target))
	}
	return errors.Join(append(errs, os.Remove(dir))...)
}

// withBindCopies lists the containers that have copies.
func (r *Runtime) withBindCopies() ([]core.ID, error) {
	dirs, err := os.ReadDir(r.binds())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	var ids []core.ID
	for _, d := range dirs {
		ids = append(ids, core.ID(d.Name()))
	}
	return ids, err
}

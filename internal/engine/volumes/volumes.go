// Package volumes has the volumes of containers: it fills new ones with the image's files, and
// mounts those with options while a container uses them.
//
// Only the containers' records tell the users of a volume, so that a crash cannot make a count
// wrong: a container has its record before Take, and no longer at Release. It does not know the
// engine. Start at Table.
package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keylock"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/weaken"
)

// Table has the volumes of a node.
type Table struct {
	Volumes core.Volumes
	Roots   core.Roots
	// Dir has the mounts of volumes with options, as OWNER/NAME. It is apart from the volumes'
	// directories: the removal of a volume must never reach into a mount.
	Dir string
	// Users returns the volumes of an owner that the records of containers name.
	Users func(core.Owner) (map[string]bool, error)

	locks keylock.Map[Name] // mounting and unmounting of one volume
}

// Name names a volume of the node.
type Name struct {
	Owner core.Owner
	Name  string
}

// Use is a container's use of one volume.
type Use struct {
	Owner core.Owner
	Mount core.VolumeMount
	// From is the container's root: a new volume gets its files at the mount's target.
	From *os.Root
	// UIDs and GIDs are those of the container's user namespace.
	UIDs, GIDs []specs.LinuxIDMapping
}

// dir returns the path of a volume's content. That of a volume with options has it only while a
// container uses it.
func (t *Table) dir(v core.Volume) string {
	if len(v.Options) == 0 {
		return v.Path
	}
	return t.mountPoint(Name{v.Owner, v.Name})
}

func (t *Table) mountPoint(n Name) string {
	return filepath.Join(t.Dir, string(n.Owner), n.Name)
}

// Shown returns a volume with the path of its content.
func (t *Table) Shown(v core.Volume) core.Volume {
	v.Path = t.dir(v)
	return v
}

// Check refuses a use that could lead out of the volumes. InvalidArgument.
func Check(m core.VolumeMount) error {
	switch {
	case !filepath.IsLocal(m.Name) || m.Name == "." || strings.ContainsAny(m.Name, "/\x00"):
		return fmt.Errorf("volume name %q: %w", m.Name, errdefs.ErrInvalidArgument)
	case m.SubPath != "" && (!filepath.IsLocal(m.SubPath) || strings.ContainsRune(m.SubPath, 0)):
		return fmt.Errorf("volume %s: sub-path %q leads out of it: %w", m.Name, m.SubPath, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Take creates the volume if it is missing, mounts it if it has options, fills a new one, and
// returns the mount for the container. The use has passed Check and the container's record exists;
// call Release when that is gone.
func (t *Table) Take(ctx context.Context, u Use) (specs.Mount, error) {
	m, err := t.take(ctx, u)
	if err != nil {
		return m, fmt.Errorf("volume %s: %w", u.Mount.Name, err)
	}
	return m, nil
}

func (t *Table) take(ctx context.Context, u Use) (specs.Mount, error) {
	unlock, err := t.locks.Lock(ctx, Name{u.Owner, u.Mount.Name})
	if err != nil {
		return specs.Mount{}, err
	}
	defer unlock()
	vol, err := t.volume(ctx, u)
	if err != nil {
		return specs.Mount{}, err
	}
	if len(vol.Options) > 0 {
		err = t.mounted(ctx, u, vol)
	} else if !vol.Filled && !u.Mount.NoCopy && u.Mount.SubPath == "" {
		if err = fill(u.From, u.Mount.Target, plainPlace(vol.Path), owners{UIDs: u.UIDs, GIDs: u.GIDs}); err == nil {
			err = t.Volumes.Filled(ctx, u.Owner, vol.Name)
		}
	}
	if err != nil {
		return specs.Mount{}, err
	}
	return shown(t.dir(vol), u), nil
}

// volume returns the volume, which this use may be the first to ask for.
func (t *Table) volume(ctx context.Context, u Use) (vol core.Volume, err error) {
	if len(u.Mount.Options) == 0 {
		if vol, err = t.Volumes.Get(ctx, u.Owner, u.Mount.Name); !errdefs.IsNotFound(err) {
			return vol, err
		}
	}
	vol, err = t.Volumes.Create(ctx, u.Owner, core.VolumeConfig{Name: u.Mount.Name, Labels: u.Mount.Labels, Options: u.Mount.Options})
	if errdefs.IsAlreadyExists(err) {
		err = nil
	}
	return vol, err
}

// shown is the mount of a volume at dir in the container. A sub-path is resolved below dir at the
// mount, through no link, because programs that write to the volume may have made one.
func shown(dir string, u Use) specs.Mount {
	m := specs.Mount{Destination: u.Mount.Target, Type: "bind", Source: dir, Options: []string{"rbind", "rprivate", "rw"}, UIDMappings: u.UIDs, GIDMappings: u.GIDs}
	if u.Mount.ReadOnly {
		m.Options[2] = "ro"
	}
	if sub := u.Mount.SubPath; sub != "" {
		m.Source = filepath.Join(dir, sub)
		m.Options = append(m.Options, ocispec.BelowOption(dir))
	}
	return m
}

// mounted mounts a volume with options, unless another container uses it already, and fills an
// empty one with the image's files. Preconditions: the volume's lock is held.
func (t *Table) mounted(ctx context.Context, u Use, vol core.Volume) error {
	dir := t.dir(vol)
	has, err := t.Roots.Mounted(ctx, dir)
	if err != nil {
		return err
	}
	if !slices.Contains(has, dir) {
		source, err := t.Volumes.Source(ctx, u.Owner, vol.Name)
		if err != nil {
			return err
		}
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
		if err := t.Roots.Mount(ctx, dir, []core.Mount{source}, false); err != nil {
			return errors.Join(fmt.Errorf("%w (%s)", err, options(vol)), ignoreMissing(os.Remove(dir)))
		}
	}
	if u.Mount.NoCopy || u.Mount.SubPath != "" {
		return nil
	}
	// Others may have filled a server's volume; only an empty one is new.
	if err := fill(u.From, u.Mount.Target, mountedPlace(dir), owners{UIDs: u.UIDs, GIDs: u.GIDs}); err != nil {
		return fmt.Errorf("copy the image's files at %s (nocopy skips this): %w", u.Mount.Target, err)
	}
	return nil
}

// options are those of a volume, for a message, with secrets hidden.
func options(v core.Volume) string {
	return fmt.Sprintf("type=%s device=%s o=%s", v.Options["type"], v.Options["device"], v.Options["o"])
}

// Release unmounts those of an owner's volumes that no container uses any more. It succeeds when
// nothing is mounted.
func (t *Table) Release(ctx context.Context, owner core.Owner, uses []core.VolumeMount) error {
	var errs []error
	for _, u := range uses {
		if err := t.release(ctx, Name{owner, u.Name}); err != nil {
			errs = append(errs, fmt.Errorf("volume %s: %w", u.Name, err))
		}
	}
	return errors.Join(errs...)
}

func (t *Table) release(ctx context.Context, n Name) error {
	dir := t.mountPoint(n)
	if _, err := os.Lstat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil // it was never mounted: most volumes have no options
	}
	unlock, err := t.locks.Lock(ctx, n)
	if err != nil {
		return err
	}
	defer unlock()
	used, err := t.Users(n.Owner)
	if err != nil || used[n.Name] {
		return err
	}
	return t.unmount(ctx, dir)
}

func (t *Table) unmount(ctx context.Context, dir string) error {
	if err := t.Roots.Unmount(ctx, dir); err != nil {
		return err
	}
	// Should it still be mounted, this fails and nothing in it is deleted.
	return ignoreMissing(os.Remove(dir))
}

// Remove removes a volume that no container uses, and FailedPrecondition is the answer when one
// does. It succeeds when the volume is gone.
func (t *Table) Remove(ctx context.Context, n Name) error {
	unlock, err := t.locks.Lock(ctx, n)
	if err != nil {
		return err
	}
	defer unlock()
	used, err := t.Users(n.Owner)
	if err != nil {
		return err
	}
	if used[n.Name] {
		return fmt.Errorf("remove volume %s: a container uses it: %w", n.Name, errdefs.ErrFailedPrecondition)
	}
	if _, err := t.Volumes.Get(ctx, n.Owner, n.Name); err == nil || errdefs.IsDataLoss(err) { // its name is one
		if err := t.unmount(ctx, t.mountPoint(n)); err != nil {
			return fmt.Errorf("remove volume %s: %w", n.Name, err)
		}
	}
	if err := t.Volumes.Remove(ctx, n.Owner, n.Name); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// Abandon removes the volumes of a container after a failed or interrupted create, when it has no
// record any more.
func (t *Table) Abandon(ctx context.Context, owner core.Owner, uses []core.VolumeMount) error {
	var errs []error
	for _, u := range uses {
		if u.Labels[core.AnonymousLabel] == "" || weaken.Off(weaken.FailedVolumes) {
			continue
		}
		if err := t.Remove(ctx, Name{owner, u.Name}); err != nil && !errdefs.IsFailedPrecondition(err) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// Unused returns the anonymous volumes of an owner, or of all, that no container has. A container
// that is removed leaves its volumes by default, and they are kept until they are pruned.
func (t *Table) Unused(ctx context.Context, owner core.Owner) (list []core.Volume, err error) {
	all, err := t.Volumes.List(ctx, owner)
	if err != nil {
		return nil, err
	}
	used := map[core.Owner]map[string]bool{}
	for _, v := range all {
		if !v.Anonymous() {
			continue
		}
		if used[v.Owner] == nil {
			if used[v.Owner], err = t.Users(v.Owner); err != nil {
				return nil, err
			}
		}
		if !used[v.Owner][v.Name] {
			list = append(list, v)
		}
	}
	return list, nil
}

// Mounts returns the volumes among the mount points of a node: those that are mounted.
func (t *Table) Mounts(mountPoints map[string]bool) []Name {
	var list []Name
	for m := range mountPoints {
		rel, ok := strings.CutPrefix(m, t.Dir+"/")
		if !ok {
			continue
		}
		if owner, name := path.Split(rel); owner != "" && !strings.Contains(strings.TrimSuffix(owner, "/"), "/") {
			list = append(list, Name{core.Owner(strings.TrimSuffix(owner, "/")), name})
		}
	}
	return list
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

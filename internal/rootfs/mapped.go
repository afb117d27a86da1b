package rootfs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

// mountMapped mounts an overlay with lower layers that a user namespace maps. An overlay cannot be
// id-mapped itself, but its layers can. The directory that contains all layers is mounted at
// target, id-mapped, and the overlay is mounted on top of that, so that Unmount finds both under
// one name.
func (r *Roots) mountMapped(ctx context.Context, target string, m core.Mount) (err error) {
	if r.users == nil || m.Type != "overlay" || m.Target != "" {
		return fmt.Errorf("%s %s: cannot map owners: no way to make user namespaces: %w", m.Type, m.Source, errdefs.ErrNotImplemented)
	}
	opts := ocispec.ParseMountOptions(m.Options)
	base, data := shorten(opts.Data)
	if base == "" {
		return fmt.Errorf("overlay: no directory contains all layers: %w", errdefs.ErrInvalidArgument)
	}
	users, err := r.users.open(ctx, m.UIDs, m.GIDs)
	if err != nil {
		return err
	}
	defer func() { _ = users.Close() }()
	tree, err := unix.OpenTree(unix.AT_FDCWD, base, unix.OPEN_TREE_CLONE|unix.OPEN_TREE_CLOEXEC)
	if err != nil {
		return fmt.Errorf("copy the mount of %s: %w", base, classify(err))
	}
	defer func() { _ = unix.Close(tree) }()
	// Private, because a copy of a shared mount is its peer: the overlay on top of it
	// would propagate and cover the layers themselves, for everybody.
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP | unix.MOUNT_ATTR_RDONLY, Propagation: unix.MS_PRIVATE, Userns_fd: uint64(users.Fd())}
	if err := unix.MountSetattr(tree, "", unix.AT_EMPTY_PATH, &attr); err != nil {
		return fmt.Errorf("map the owners of %s (its file system may not support it): %w", base, notDone(err))
	}
	if err := unix.MoveMount(tree, "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return fmt.Errorf("mount layers: %w", classify(err))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.Unmount(context.WithoutCancel(ctx), target))
		}
	}()
	if err := mountOver(m.Source, target, base, data, opts); err != nil {
		return fmt.Errorf("overlay of layers with mapped owners, which needs Linux 5.19: %w", notDone(err))
	}
	return nil
}

// mountOver mounts an overlay of the layers at target, where their directory base is mounted. data are the options with names relative
// to it. A thread with another working directory costs a container's start some 0.2 ms, so it comes second.
func mountOver(source, target, base, data string, opts ocispec.MountOptions) error {
	limit := os.Getpagesize() - 1
	full := opts
	full.Data = below(opts.Data, base, target)
	switch options := joined(full.Data); {
	case len(options) < limit:
		return unix.Mount(source, target, "overlay", opts.Flags, options)
	case len(data) < limit:
		return mountFrom(target, source, target, opts.Flags, data)
	default:
		return mountByLayer(source, target, full)
	}
}

// below replaces base by another directory in the names of the layers.
func below(options []string, base, dir string) []string {
	options = slices.Clone(options)
	for i, o := range options {
		if list, ok := strings.CutPrefix(o, "lowerdir="); ok {
			layers := strings.Split(list, ":")
			for j, l := range layers {
				layers[j] = dir + strings.TrimPrefix(l, base)
			}
			options[i] = "lowerdir=" + strings.Join(layers, ":")
		}
	}
	return options
}

// notDone turns EINVAL, the kernel's error for an unsupported feature, into NotImplemented.
func notDone(err error) error {
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("%w: %w", err, errdefs.ErrNotImplemented)
	}
	return classify(err)
}

func mappings(ranges []core.IDRange) (maps []specs.LinuxIDMapping) {
	for _, r := range ranges {
		maps = append(maps, specs.LinuxIDMapping{ContainerID: r.Container, HostID: r.Host, Size: r.Size})
	}
	return maps
}

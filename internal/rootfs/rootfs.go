// Package rootfs mounts root filesystems: overlays with any number of layers, binds, and
// anything else that mount(2) supports. It is the engine's core.Roots.
//
// It must not know the source of layers, nor containers. Start reading at Roots.Mount.
package rootfs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/moby/sys/mountinfo"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

// Options configure Roots.
type Options struct {
	// Users makes user namespaces that map owners. If it is nil, mounts with a mapping
	// are refused.
	Users func(ctx context.Context, uids, gids []specs.LinuxIDMapping, kinds ...specs.LinuxNamespaceType) ([]*os.File, error)
	// Logger is slog.Default() if nil.
	Logger *slog.Logger
}

// Roots implements core.Roots on this machine.
type Roots struct {
	log   *slog.Logger
	users *namespaces // nil if owners cannot be mapped
}

var _ core.Roots = (*Roots)(nil)

// New returns a Roots.
func New(o Options) *Roots {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	r := &Roots{log: o.Logger}
	if o.Users != nil {
		r.users = &namespaces{make: o.Users}
	}
	return r
}

// Mount makes the directory target, with mode 0700, and stacks mounts on it in order.
// With readOnly the result cannot be written to. If it fails, nothing stays mounted.
func (r *Roots) Mount(ctx context.Context, target string, mounts []core.Mount, readOnly bool) error {
	if !filepath.IsAbs(target) || len(mounts) == 0 {
		return fmt.Errorf("mount root %q: needs an absolute target and a mount: %w", target, errdefs.ErrInvalidArgument)
	}
	if err := os.MkdirAll(target, 0o700); err != nil {
		return fmt.Errorf("mount root %s: %w", target, err)
	}
	for i, m := range mounts {
		err := ctx.Err()
		switch {
		case err != nil:
		case len(m.UIDs)+len(m.GIDs) > 0:
			err = r.mountMapped(ctx, target, m)
		default:
			err = mountOne(ctx, target, m)
		}
		if err != nil {
			if i > 0 {
				err = errors.Join(err, r.Unmount(context.WithoutCancel(ctx), target))
			}
			return fmt.Errorf("mount root %s: %w", target, err)
		}
	}
	if readOnly {
		if err := setReadOnly(target); err != nil {
			return errors.Join(fmt.Errorf("mount root %s: make read-only: %w", target, err), r.Unmount(context.WithoutCancel(ctx), target))
		}
	}
	return nil
}

func mountOne(ctx context.Context, root string, m core.Mount) error {
	target := root
	if rel := strings.TrimLeft(m.Target, "/"); rel != "" {
		// Below a mounted layer, the path may contain links that the layer's author
		// chose: it must not leave the root.
		fd, err := unix.Openat2(unix.AT_FDCWD, root, &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC})
		if err != nil {
			return &os.PathError{Op: "open", Path: root, Err: classify(err)}
		}
		sub, err := unix.Openat2(fd, rel, &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
		_ = unix.Close(fd)
		if err != nil {
			return &os.PathError{Op: "open", Path: filepath.Join(root, rel), Err: classify(err)}
		}
		defer func() { _ = unix.Close(sub) }()
		target = fmt.Sprintf("/proc/self/fd/%d", sub)
	}
	opts := ocispec.ParseMountOptions(m.Options)
	if m.Type == "bind" || m.Type == "rbind" {
		opts.Flags |= unix.MS_BIND
		if m.Type == "rbind" {
			opts.Flags |= unix.MS_REC
		}
	}
	if err := mountFlat(ctx, m, target, opts); err != nil {
		return fmt.Errorf("%s %s: %w", m.Type, m.Source, classify(err))
	}
	return nil
}

func mountFlat(ctx context.Context, m core.Mount, target string, opts ocispec.MountOptions) error {
	data := joined(opts.Data)
	switch {
	case opts.Flags&unix.MS_BIND != 0:
		if err := bind(m, target, opts); err != nil {
			return err
		}
		// A bind mount takes its flags only in a second call.
		if rest := opts.Flags &^ (unix.MS_BIND | unix.MS_REC); rest != 0 {
			if err := remount(target, rest); err != nil {
				return errors.Join(err, unix.Unmount(target, unix.MNT_DETACH))
			}
		}
	case m.Type == "overlay" && len(data) >= os.Getpagesize()-1:
		if err := mountLongOverlay(m.Source, target, opts); err != nil {
			return err
		}
	case m.Type == "overlay":
		if err := unix.Mount(m.Source, target, m.Type, opts.Flags, data); err != nil {
			return err
		}
	default:
		if err := mountFilesystem(ctx, m, target, opts); err != nil {
			return err
		}
	}
	if opts.Propagation != 0 {
		if err := unix.Mount("", target, "", opts.Propagation, ""); err != nil {
			return errors.Join(err, unix.Unmount(target, unix.MNT_DETACH))
		}
	}
	if set, clr := opts.RecursiveSet, opts.RecursiveClear; set|clr != 0 {
		attr := unix.MountAttr{Attr_set: set, Attr_clr: clr}
		if err := unix.MountSetattr(unix.AT_FDCWD, target, unix.AT_RECURSIVE, &attr); err != nil {
			return errors.Join(err, unix.Unmount(target, unix.MNT_DETACH))
		}
	}
	return nil
}

// joined returns the options as mount(2) takes them. The categories of an SELinux label have commas.
func joined(data []string) string {
	data = slices.Clone(data)
	for i, o := range data {
		if label, ok := strings.CutPrefix(o, "context="); ok && !strings.Contains(label, `"`) {
			data[i] = `context="` + label + `"`
		}
	}
	return strings.Join(data, ",")
}

// bind mounts a source. If a workload may own a part of the source's path, that part is
// opened following no links, and mounted by its descriptor.
func bind(m core.Mount, target string, opts ocispec.MountOptions) error {
	base, rel, err := ocispec.Below(specs.Mount{Source: m.Source, Options: m.Options})
	if err != nil {
		return err
	}
	if base == "" {
		return unix.Mount(m.Source, target, "", opts.Flags&(unix.MS_BIND|unix.MS_REC), "")
	}
	tree, err := beneath.Tree(base, rel, beneath.Copy{Recursive: opts.Flags&unix.MS_REC != 0, Shared: opts.Propagation&unix.MS_SHARED != 0})
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }()
	return beneath.Attach(tree, target)
}

// setReadOnly makes the mount at target read-only, but not its file system, which may be
// mounted elsewhere too.
func setReadOnly(target string) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
	err := unix.MountSetattr(unix.AT_FDCWD, target, 0, &attr)
	if !errors.Is(err, unix.ENOSYS) {
		return err
	}
	return remount(target, unix.MS_RDONLY)
}

// remount adds flags to those that the mount at target has.
func remount(target string, flags uintptr) error {
	var st unix.Statfs_t
	if err := unix.Statfs(target, &st); err != nil {
		return err
	}
	// ST_* and MS_* have the same values for these flags.
	const keep = unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME | unix.MS_NODIRATIME
	flags |= uintptr(st.Flags) & keep
	const stRelatime = 0x1000
	if st.Flags&stRelatime != 0 {
		flags |= unix.MS_RELATIME
	}
	return unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|flags, "")
}

// Unmount unmounts everything at and below target. A mount in use goes when its last
// user does. It succeeds if nothing is mounted.
//
// At the end of an overlay that is not volatile, the kernel writes the whole file system of its upper
// directory to the disk. Unmount does not wait for that: it keeps a descriptor of the mount until it has
// returned, and another goroutine closes it.
func (r *Roots) Unmount(ctx context.Context, target string) error {
	if !filepath.IsAbs(target) || filepath.Clean(target) == "/" {
		return fmt.Errorf("unmount root %q: %w", target, errdefs.ErrInvalidArgument)
	}
	if last, err := unix.Open(target, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0); err == nil {
		var st unix.Statfs_t
		if unix.Fstatfs(last, &st) == nil && st.Type == unix.OVERLAYFS_SUPER_MAGIC {
			defer func() { go unix.Close(last) }()
		} else {
			_ = unix.Close(last)
		}
	}
	// MNT_DETACH detaches the mounts below too.
	for {
		err := unix.Unmount(target, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			return nil
		}
		if errors.Is(err, unix.EINVAL) {
			break // not a mount point, or not any more
		}
		if err != nil {
			return fmt.Errorf("unmount root %s: %w", target, err)
		}
	}
	// Finding mounts below a directory that is no mount point takes the whole mount
	// table. An empty directory has none.
	if entries, err := os.ReadDir(target); err == nil && len(entries) == 0 {
		return nil
	}
	below, err := r.Mounted(ctx, target)
	if err != nil {
		return err
	}
	var errs []error
	for _, path := range slices.Backward(below) {
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			errs = append(errs, fmt.Errorf("unmount %s: %w", path, err))
		}
	}
	return errors.Join(errs...)
}

// Mounted returns the mount points at and below dir, in the order of their mounts.
func (r *Roots) Mounted(ctx context.Context, dir string) ([]string, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	resolved, err := filepath.EvalSymlinks(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list mounts below %s: %w", dir, err)
	}
	infos, err := mountinfo.GetMounts(mountinfo.PrefixFilter(resolved))
	if err != nil {
		return nil, fmt.Errorf("list mounts below %s: %w", dir, err)
	}
	paths := make([]string, 0, len(infos))
	for _, m := range infos {
		paths = append(paths, m.Mountpoint)
	}
	return paths, nil
}

func classify(err error) error {
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("filesystem is not known to this kernel: %w: %w", err, errdefs.ErrNotImplemented)
	case errors.Is(err, unix.EINVAL):
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%w: %w", err, errdefs.ErrPermissionDenied)
	case slices.ContainsFunc(unreachable, func(e unix.Errno) bool { return errors.Is(err, e) }):
		return fmt.Errorf("%w: %w", err, errdefs.ErrUnavailable)
	default:
		return err
	}
}

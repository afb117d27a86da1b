package inroot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/treecopy"
)

// Container is a container whose root Run opens.
type Container struct {
	core.Container
	IDs treecopy.IDs // of its user namespace; zero without one
	// Namespaces makes namespaces, for mounts with mapped owners in an ended container. It is nil if the agent cannot.
	Namespaces func(ctx context.Context, uids, gids []specs.LinuxIDMapping, kinds ...specs.LinuxNamespaceType) ([]*os.File, error)
}

// Run calls fn with the root of a container and with its mounts. Files that fn creates belong to the container's root user. fn
// runs on a thread of its own.
func (c Container) Run(ctx context.Context, fn func(root *os.File) error) error {
	as := func(root *os.File) error { return asRootOf(c.IDs, func() error { return fn(root) }) }
	if c.Main.Pid == 0 || c.State == core.ContainerExited {
		users, err := c.userNamespace(ctx)
		if err != nil {
			return err
		}
		defer func() { _ = users.Close() }()
		return inEnded(c, users, as)
	}
	root, err := rootOf(c.Container)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	return onThread(func() error { return as(root) })
}

// RunAlone calls fn with the root of a container without any mount in it. fn runs on a thread of its own.
//
// The root is a copy of its mount, before the container's own mounts. So it has the files below their targets, and a program in
// the container that renames directories cannot move a mount into it.
func (c Container) RunAlone(fn func(root *os.File) error) error {
	root, err := beneath.Tree(c.Bundle, "rootfs", beneath.Copy{})
	if err != nil {
		return fmt.Errorf("open its root: %w", err)
	}
	defer func() { _ = root.Close() }()
	return onThread(func() error { return asRootOf(c.IDs, func() error { return fn(root) }) })
}

// rootOf opens the root of a container's main process. The result belongs to the checked process,
// even if that ends meanwhile and its number is reused.
func rootOf(c core.Container) (*os.File, error) {
	proc, err := os.OpenRoot("/proc/" + strconv.Itoa(c.Main.Pid))
	if err != nil {
		return nil, fmt.Errorf("it has just ended: %w", errdefs.ErrUnavailable)
	}
	defer func() { _ = proc.Close() }()
	in, err := proc.ReadFile("cgroup")
	if err != nil || c.Cgroup.Path != "" && !strings.Contains(string(in), c.Cgroup.Path) {
		return nil, fmt.Errorf("it has just ended: %w", errdefs.ErrUnavailable)
	}
	dir, err := proc.Open(".")
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	fd, err := unix.Openat(int(dir.Fd()), "root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open its root: %w", err)
	}
	return os.NewFile(uintptr(fd), "/"), nil
}

// inEnded calls fn with the root of a container without a process, in a mount namespace that exists
// for this call alone, with the container's volumes and binds.
func inEnded(c Container, users *os.File, fn func(root *os.File) error) error {
	return onThread(func() error { return inMounts(c, users, fn) })
}

// inMounts mounts the container's volumes and binds in a new mount namespace and calls fn. It must be called on a thread of its
// own.
func inMounts(c Container, users *os.File, fn func(root *os.File) error) error {
	own, err := os.Open("/proc/thread-self/ns/mnt")
	if err != nil {
		return err
	}
	defer func() { _ = own.Close() }()
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	// If this is the main thread, it does not end with its goroutine, and must not keep the mounts.
	defer func() { _ = unix.Setns(int(own.Fd()), unix.CLONE_NEWNS) }()
	// Unmounts on the node propagate here, but mounts made here do not propagate to the node.
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fmt.Errorf("make a mount namespace: %w", err)
	}
	root, err := os.Open(filepath.Join(c.Bundle, "rootfs"))
	if err != nil {
		return fmt.Errorf("open its root: %w", err)
	}
	defer func() { _ = root.Close() }()
	spec, err := ocispec.BundleSpec(c.Bundle)
	if err != nil {
		return err
	}
	for _, m := range spec.Mounts {
		if !slices.Contains(m.Options, "bind") && !slices.Contains(m.Options, "rbind") {
			continue
		}
		err := c.mountIn(root, m, users)
		if err != nil && !errors.Is(err, unix.ENOENT) { // the source of a mount may be gone
			return fmt.Errorf("mount %s: %w", m.Destination, err)
		}
	}
	return fn(root)
}

// makeTarget makes the missing target of a mount as a runtime does: a directory, or an empty file for a file.
func makeTarget(root, source *os.File, target string) error {
	info, err := source.Stat()
	if err != nil {
		return err
	}
	names := strings.Split(strings.Trim(path.Clean("/"+target), "/"), "/")
	for i, name := range names {
		parent, err := beneath.In(root, "/"+path.Join(names[:i]...), unix.O_PATH|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		if i < len(names)-1 || info.IsDir() {
			err = unix.Mkdirat(int(parent.Fd()), name, 0o755)
		} else {
			err = unix.Mknodat(int(parent.Fd()), name, unix.S_IFREG|0o644, 0)
		}
		if err := errors.Join(err, parent.Close()); err != nil && !errors.Is(err, unix.EEXIST) {
			return err
		}
	}
	return nil
}

// mountIn mounts a bind of a spec in a root.
func (c Container) mountIn(root *os.File, m specs.Mount, users *os.File) error {
	base, rel, err := ocispec.Below(m)
	if err != nil {
		return err
	}
	if base == "" {
		base, rel = path.Split(path.Clean(m.Source))
		if rel == "" {
			rel = "."
		}
	}
	tree, err := beneath.Tree(base, rel, beneath.Copy{Recursive: slices.Contains(m.Options, "rbind")})
	if err != nil {
		return err
	}
	defer func() { _ = tree.Close() }()
	below := slices.Contains(m.Options, "rro")
	if below || slices.Contains(m.Options, "ro") {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY}
		flags := uint(unix.AT_EMPTY_PATH)
		if below {
			flags |= unix.AT_RECURSIVE
		}
		if err := unix.MountSetattr(int(tree.Fd()), "", flags, &attr); err != nil {
			return err
		}
	}
	if len(m.UIDMappings) > 0 && users != nil {
		attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(users.Fd())}
		if err := unix.MountSetattr(int(tree.Fd()), "", unix.AT_EMPTY_PATH, &attr); err != nil {
			return fmt.Errorf("map its owners: %w", err)
		}
	}
	target, err := beneath.In(root, m.Destination, unix.O_PATH, 0)
	if c.Resting && errors.Is(err, unix.ENOENT) { // no runtime has made it yet
		if err = asRootOf(c.IDs, func() error { return makeTarget(root, tree, m.Destination) }); err == nil {
			target, err = beneath.In(root, m.Destination, unix.O_PATH, 0)
		}
	}
	if err != nil {
		return err
	}
	defer func() { _ = target.Close() }()
	return unix.MoveMount(int(tree.Fd()), "", int(target.Fd()), "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
}

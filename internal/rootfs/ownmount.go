package rootfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// MakeOwnMount makes dir a mount of its own if it is empty. When a file's mount is copied for a
// container, the kernel looks at everything mounted below that mount; for a file in a separate
// mount these are not all namespaces and roots of the node. A directory that is not empty stays as
// it is.
func MakeOwnMount(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	inside, err := os.ReadDir(dir)
	if err != nil || len(inside) > 0 {
		return err
	}
	if is, err := isMount(dir); err != nil || is {
		return err
	}
	if err := unix.Mount(dir, dir, "", unix.MS_BIND, ""); err != nil {
		return &os.PathError{Op: "bind", Path: dir, Err: err}
	}
	// Private, or mounts in it would propagate to the mount below.
	if err := unix.Mount("", dir, "", unix.MS_PRIVATE, ""); err != nil {
		return errors.Join(&os.PathError{Op: "make private", Path: dir, Err: err}, RemoveOwnMount(dir))
	}
	return nil
}

// RemoveOwnMount undoes MakeOwnMount. It succeeds if MakeOwnMount did nothing.
func RemoveOwnMount(dir string) error {
	is, err := isMount(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err == nil && is {
		err = unix.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	if err != nil {
		return &os.PathError{Op: "unmount", Path: dir, Err: err}
	}
	return nil
}

// isMount reports whether something is mounted on dir.
func isMount(dir string) (bool, error) {
	var st unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &st); err != nil {
		return false, &os.PathError{Op: "statx", Path: dir, Err: err}
	}
	return st.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

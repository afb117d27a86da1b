package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/invalid"
)

// A place is a path at which the host has something made, mounted or looked at. It may be
// in a directory that a container has, too, and that the container may exchange for a link
// at any time. So a place is opened without following one, and what is done there is done
// to what was opened.

// splitPlace splits a place into its first component, about which only the machine's image
// decides, and the rest.
func splitPlace(at string) (base, rel string, err error) {
	if !filepath.IsAbs(at) || filepath.Clean(at) != at {
		return "", "", invalid.Errorf("path %q: an absolute path without '.' and '..' is wanted", clip(at))
	}
	if at == "/" {
		return "/", ".", nil
	}
	first, rest, deep := strings.Cut(at[1:], "/")
	if !deep {
		return "/", first, nil
	}
	return "/" + first, rest, nil
}

// clip shortens what somebody else wrote, for an error's text.
func clip(s string) string {
	if len(s) > 100 {
		return s[:100] + "…"
	}
	return s
}

// openPlace opens what is at a place.
func openPlace(at string, flags int) (*os.File, error) {
	base, rel, err := splitPlace(at)
	if err != nil {
		return nil, err
	}
	return beneath.Open(base, rel, flags, 0)
}

// makePlace makes a directory with those above it, and opens it (O_PATH).
func makePlace(at string, mode fs.FileMode) (*os.File, error) {
	base, rel, err := splitPlace(at)
	if err != nil {
		return nil, err
	}
	if err := os.Mkdir(base, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	return beneath.MkdirAll(base, rel, mode)
}

// makeFile makes an empty file with the directories above it, unless it is there, and opens
// it (O_PATH).
func makeFile(at string) (*os.File, error) {
	if _, _, err := splitPlace(at); err != nil {
		return nil, err
	}
	if filepath.Dir(at) != "/" {
		dir, err := makePlace(filepath.Dir(at), 0o755)
		if err != nil {
			return nil, err
		}
		made, err := beneath.Child(dir, filepath.Base(at), os.O_CREATE|os.O_RDONLY|unix.O_NONBLOCK, 0o644)
		if err = errors.Join(err, dir.Close()); err != nil {
			return nil, err
		}
		_ = made.Close() // only made
	}
	return openPlace(at, unix.O_PATH)
}

// byNumber is a path to what f is, whatever has become of its name.
func byNumber(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// mountAt mounts something on what was opened at a place. undo unmounts it, whatever has
// become of the path meanwhile, and removes the empty directory or file on which it was.
func mountAt(on *os.File, at, source, fstype string, flags uintptr, data string) (undo func() error, err error) {
	if err := unix.Mount(source, byNumber(on), fstype, flags, data); err != nil {
		return nil, errors.Join(err, removeEmpty(at))
	}
	top, err := mountedOn(on, at)
	if err != nil {
		return nil, errors.Join(err, unmountPlace(at))
	}
	return func() error {
		err := unix.Unmount(byNumber(top), unix.MNT_DETACH)
		_ = top.Close() // only named something
		if err != nil && !errors.Is(err, unix.EINVAL) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
		return removeEmpty(at)
	}, nil
}

// maxLooks is how often a mount is looked for at a path that somebody exchanges.
const maxLooks = 1000

// mountedOn opens what is mounted at a place above on.
func mountedOn(on *os.File, at string) (top *os.File, err error) {
	below, err := mountOf(on)
	if err != nil {
		return nil, err
	}
	for range maxLooks {
		if top, err = openPlace(at, unix.O_PATH); err != nil {
			continue
		}
		id, err := mountOf(top)
		if err == nil && (id != below || id == 0) {
			return top, nil
		}
		_ = top.Close() // only named something
	}
	return nil, fmt.Errorf("what was mounted at %s cannot be found there: %w", at, errors.Join(err, unix.EBUSY))
}

// mountOf returns the number of the mount that f is in, 0 where the kernel does not tell.
func mountOf(f *os.File) (uint64, error) {
	var st unix.Statx_t
	if err := unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH, unix.STATX_MNT_ID, &st); err != nil {
		return 0, fmt.Errorf("stat %s: %w", f.Name(), err)
	}
	if st.Mask&unix.STATX_MNT_ID == 0 {
		return 0, nil
	}
	return st.Mnt_id, nil
}

// remountPlace gives what is mounted at a place other options.
func remountPlace(at, fstype string, flags uintptr, data string) error {
	f, err := openPlace(at, unix.O_PATH)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	return unix.Mount("", byNumber(f), fstype, flags|unix.MS_REMOUNT, data)
}

// unmountPlace unmounts what is mounted at a place, and removes the empty directory or file
// on which it was. It succeeds when nothing is mounted there.
func unmountPlace(at string) error {
	f, err := openPlace(at, unix.O_PATH)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	err = unix.Unmount(byNumber(f), unix.MNT_DETACH)
	_ = f.Close() // only named something
	if err != nil && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("unmount %s: %w", at, err)
	}
	return removeEmpty(at)
}

// removeEmpty removes an empty directory or file, on which something was mounted. One
// that has something stays.
func removeEmpty(at string) error {
	if filepath.Dir(at) == "/" {
		return nil // a part of the image
	}
	dir, err := openPlace(filepath.Dir(at), unix.O_PATH|unix.O_DIRECTORY)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	name := filepath.Base(at)
	var st unix.Stat_t
	err = unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW)
	switch {
	case err != nil:
	case st.Mode&unix.S_IFMT == unix.S_IFDIR:
		err = unix.Unlinkat(int(dir.Fd()), name, unix.AT_REMOVEDIR)
	case st.Mode&unix.S_IFMT == unix.S_IFREG && st.Size == 0:
		err = unix.Unlinkat(int(dir.Fd()), name, 0)
	}
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove %s: %w", at, err)
	}
	return nil
}

// setGroup gives the directory at a place a group, which what is made in it inherits; -1
// changes nothing.
func setGroup(at string, gid int) error {
	if gid < 0 {
		return nil
	}
	dir, err := openPlace(at, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	if err := dir.Chown(-1, gid); err != nil {
		return err
	}
	st, err := dir.Stat()
	if err != nil {
		return err
	}
	return dir.Chmod(st.Mode() | fs.ModeSetgid)
}

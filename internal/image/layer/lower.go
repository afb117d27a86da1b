package layer

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// find looks for rel in unpacked layers, nearest first, as overlayfs does: a whiteout, an opaque
// directory or a file on the way ends the search. A nil FileInfo means that there is no such
// file.
func find(dirs []string, rel string) (string, os.FileInfo, error) {
	parts := strings.Split(rel, "/")
	for _, dir := range dirs {
		at, hidden := dir, false
		var fi os.FileInfo
		var err error
		for _, part := range parts {
			if fi != nil && !fi.IsDir() {
				return "", nil, nil // a file, link or whiteout stands in the way
			}
			if fi != nil && opaque(at) {
				hidden = true
			}
			at = filepath.Join(at, part)
			if fi, err = os.Lstat(at); err != nil {
				break
			}
		}
		switch {
		case err == nil && isWhiteout(fi):
			return "", nil, nil
		case err == nil:
			return at, fi, nil
		case !errors.Is(err, os.ErrNotExist) && !errors.Is(err, syscall.ENOTDIR):
			return "", nil, err
		case hidden:
			return "", nil, nil
		}
	}
	return "", nil, nil
}

func opaque(dir string) bool {
	var buf [1]byte
	n, err := unix.Lgetxattr(dir, opaqueXattr, buf[:])
	return err == nil && n == 1 && buf[0] == 'y'
}

func isWhiteout(fi os.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && st.Mode&syscall.S_IFMT == syscall.S_IFCHR && st.Rdev == 0
}

// copyUp copies one file, not a directory, with all its attributes.
func copyUp(to, from string, fi os.FileInfo) error {
	st := fi.Sys().(*syscall.Stat_t)
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFREG:
		if err := copyContent(to, from); err != nil {
			return err
		}
	case syscall.S_IFLNK:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, to); err != nil {
			return err
		}
	default:
		if err := unix.Mknod(to, st.Mode, int(st.Rdev)); err != nil {
			return err
		}
	}
	return copyAttributes(to, from, fi)
}

func copyContent(to, from string) error {
	in, err := os.OpenFile(from, os.O_RDONLY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		_ = out.Close()
		return err
	}
	return out.Close()
}

// copyAttributes sets owner, mode, xattrs and times of to from those of from.
func copyAttributes(to, from string, fi os.FileInfo) error {
	st := fi.Sys().(*syscall.Stat_t)
	if err := os.Lchown(to, int(st.Uid), int(st.Gid)); err != nil {
		return err
	}
	if err := copyXattrs(to, from); err != nil {
		return err
	}
	if st.Mode&syscall.S_IFMT != syscall.S_IFLNK {
		if err := unix.Chmod(to, st.Mode&0o7777); err != nil {
			return &os.PathError{Op: "chmod", Path: to, Err: err}
		}
	}
	times := []unix.Timespec{unix.NsecToTimespec(st.Atim.Nano()), unix.NsecToTimespec(st.Mtim.Nano())}
	return unix.UtimesNanoAt(unix.AT_FDCWD, to, times, unix.AT_SYMLINK_NOFOLLOW)
}

func copyXattrs(to, from string) error {
	names := make([]byte, 64<<10)
	n, err := unix.Llistxattr(from, names)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "listxattr", Path: from, Err: err}
	}
	value := make([]byte, 64<<10)
	for name := range strings.SplitSeq(string(names[:n]), "\x00") {
		if name == "" || strings.HasPrefix(name, "trusted.") {
			continue
		}
		size, err := unix.Lgetxattr(from, name, value)
		if err != nil {
			return &os.PathError{Op: "getxattr", Path: from, Err: err}
		}
		if err := unix.Lsetxattr(to, name, value[:size], 0); err != nil && !errors.Is(err, unix.ENOTSUP) {
			return &os.PathError{Op: "setxattr", Path: to, Err: err}
		}
	}
	return nil
}

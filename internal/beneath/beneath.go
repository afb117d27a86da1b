// Package beneath opens paths of which a workload may own a part: below a trusted
// directory, following no links.
//
// A workload that can rename or replace a directory on such a path could make a program
// that opens it by name open any file of the node; a check before the open only makes
// that a race. Here the kernel resolves the whole path in one call (openat2 with
// RESOLVE_BENEATH, RESOLVE_NO_SYMLINKS and RESOLVE_NO_MAGICLINKS), and the result is a
// descriptor. Mounts are made of descriptors too.
//
// The trusted directory itself is opened as it is named; links on the way to it
// are the operator's. The keeper uses this package: its imports stay few. Start
// reading at At.
package beneath

import (
	"errors"
	"os"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/weaken"
)

// Resolve are the flags for resolving every path that a workload can change.
const Resolve = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// Base opens the trusted directory base by its name.
func Base(base string) (int, error) {
	return unix.Open(base, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// At opens rel below the directory dir. It returns ELOOP when a component of rel
// is a link, and EXDEV when rel leads out of dir.
func At(dir int, rel string, flags int, mode uint32) (int, error) {
	if !local(rel) {
		return -1, unix.EXDEV
	}
	flags |= unix.O_CLOEXEC
	if weaken.Off(weaken.Beneath) {
		return unix.Openat(dir, rel, flags&^unix.O_NOFOLLOW, mode)
	}
	how := unix.OpenHow{Flags: uint64(flags &^ unix.O_NOFOLLOW), Resolve: Resolve}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode)
	}
	for {
		fd, err := unix.Openat2(dir, rel, &how)
		if err != unix.EINTR {
			return fd, err
		}
	}
}

// local reports whether rel, judged by its text, names something in a directory.
func local(rel string) bool {
	if rel == "" || rel[0] == '/' || strings.IndexByte(rel, 0) >= 0 {
		return false
	}
	for part := range strings.SplitSeq(rel, "/") {
		if part == ".." {
			return false
		}
	}
	return true
}

// Rel returns the part of path p below base, "." if they are the same. It reports false
// if p is not below base. It looks only at the text.
func Rel(base, p string) (rel string, ok bool) {
	base, p = path.Clean(base), path.Clean(p)
	if !path.IsAbs(base) || !path.IsAbs(p) {
		return "", false
	}
	if p == base {
		return ".", true
	}
	return strings.CutPrefix(p, strings.TrimSuffix(base, "/")+"/")
}

// Error is the error for a path that could not be opened below a directory.
type Error struct {
	Op, Base, Rel string
	Err           error
}

// Error implements error.
func (e *Error) Error() string {
	text := e.Op + " " + e.Rel + " below " + e.Base + ": "
	switch {
	case errors.Is(e.Err, unix.ELOOP):
		return text + "a part of the path is a symbolic link, and links are not followed there"
	case errors.Is(e.Err, unix.EXDEV):
		return text + "the path leads out of the directory"
	}
	return text + e.Err.Error()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Open opens rel below the trusted directory base.
func Open(base, rel string, flags int, mode os.FileMode) (*os.File, error) {
	dir, err := Base(base)
	if err != nil {
		return nil, &Error{Op: "open", Base: base, Rel: rel, Err: err}
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := At(dir, rel, flags, uint32(mode.Perm()))
	if err != nil {
		return nil, &Error{Op: "open", Base: base, Rel: rel, Err: err}
	}
	return os.NewFile(uintptr(fd), path.Join(base, rel)), nil
}

// Child opens name, one component, in the open directory dir.
func Child(dir *os.File, name string, flags int, mode os.FileMode) (*os.File, error) {
	fd, err := At(int(dir.Fd()), name, flags, uint32(mode.Perm()))
	if err != nil {
		return nil, &Error{Op: "open", Base: dir.Name(), Rel: name, Err: err}
	}
	return os.NewFile(uintptr(fd), path.Join(dir.Name(), name)), nil
}

// Stat returns the attributes of rel below base.
func Stat(base, rel string) (os.FileInfo, error) {
	f, err := Open(base, rel, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return f.Stat()
}

// Root opens the directory rel below base as an os.Root. Paths opened in the result may
// contain links, but none that leads out of it.
func Root(base, rel string) (*os.Root, error) {
	f, err := Open(base, rel, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return os.OpenRoot(fdPath(f))
}

// In opens p as a process would whose root directory is dir: links are followed, absolute ones and
// .. too, and none leads out of dir. It is for a path that a container names, of what it has
// itself.
func In(dir *os.File, p string, flags int, mode os.FileMode) (*os.File, error) {
	rel := strings.TrimLeft(p, "/")
	if rel == "" {
		rel = "."
	}
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(mode.Perm())
	}
	for {
		fd, err := unix.Openat2(int(dir.Fd()), rel, &how)
		switch {
		case err == unix.EINTR, err == unix.EAGAIN: // EAGAIN: something on the way was renamed meanwhile
			continue
		case err != nil:
			return nil, &os.PathError{Op: "open", Path: p, Err: err}
		}
		return os.NewFile(uintptr(fd), p), nil
	}
}

// RootIn opens a directory as In does, as an os.Root.
func RootIn(dir *os.File, p string) (*os.Root, error) {
	f, err := In(dir, p, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return os.OpenRoot(fdPath(f))
}

func fdPath(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// MkdirAll makes the directory rel below base with its missing parents, and returns it
// open (O_PATH).
func MkdirAll(base, rel string, mode os.FileMode) (*os.File, error) {
	fd, err := mkdirAll(base, rel, uint32(mode.Perm()))
	if err != nil {
		return nil, &Error{Op: "make directory", Base: base, Rel: rel, Err: err}
	}
	return os.NewFile(uintptr(fd), path.Join(base, rel)), nil
}

func mkdirAll(base, rel string, mode uint32) (int, error) {
	if !local(rel) {
		return -1, unix.EXDEV
	}
	fd, err := Base(base)
	if err != nil {
		return -1, err
	}
	for part := range strings.SplitSeq(path.Clean(rel), "/") {
		if part == "." {
			break // the base itself
		}
		err := unix.Mkdirat(fd, part, mode)
		next := -1
		if err == nil || errors.Is(err, unix.EEXIST) {
			next, err = At(fd, part, unix.O_PATH|unix.O_DIRECTORY, 0)
		}
		_ = unix.Close(fd)
		if err != nil {
			return -1, err
		}
		fd = next
	}
	return fd, nil
}

// Copy configures Tree.
type Copy struct {
	Recursive bool // with the mounts below
	// Shared makes the copy a peer of a shared mount, so that mounts propagate in both
	// directions. Otherwise it is a slave: unmounting in the copy does not affect the
	// original.
	Shared bool
}

// Tree returns a detached copy of the mount at rel below base.
func Tree(base, rel string, how Copy) (*os.File, error) {
	f, err := Open(base, rel, unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	if how.Recursive {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(int(f.Fd()), "", flags)
	if err == nil && !how.Shared {
		slave := unix.MountAttr{Propagation: unix.MS_SLAVE}
		if err = unix.MountSetattr(fd, "", unix.AT_EMPTY_PATH|unix.AT_RECURSIVE, &slave); err != nil {
			_ = unix.Close(fd)
		}
	}
	if err != nil {
		return nil, &Error{Op: "copy the mount of", Base: base, Rel: rel, Err: err}
	}
	return os.NewFile(uintptr(fd), path.Join(base, rel)), nil
}

// Attach mounts a detached copy on target, which only the caller may be able to change.
func Attach(tree *os.File, target string) error {
	if err := unix.MoveMount(int(tree.Fd()), "", unix.AT_FDCWD, target, unix.MOVE_MOUNT_F_EMPTY_PATH); err != nil {
		return &os.PathError{Op: "mount on", Path: target, Err: err}
	}
	return nil
}

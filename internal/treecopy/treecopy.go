// Package treecopy packs files of a container as a tar, and unpacks one there. All paths are
// resolved as a process in the container would resolve them: links are followed, and none leads
// out, even if the container's programs change the tree meanwhile.
//
// The root is an open directory: that of a container, or / for the command line's own files, which
// are treated alike. Place determines the target of a copy, with docker's rules. It knows neither
// engine nor protocol. Start at Pack and Unpack.
package treecopy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
)

// Source is the file or directory to copy.
type Source struct {
	// Name is the last part of its path, and the first of every name in the tar.
	Name string
	Dir  bool
	// Contents says that a directory's content is meant: its path ended in "/.".
	Contents bool
}

// Look returns the file at p in root. A link is returned itself, unless follow is set or p ends in
// a slash.
func Look(root *os.File, p string, follow bool) (Source, error) {
	f, err := open(root, p, follow)
	if err != nil {
		return Source{}, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return Source{}, err
	}
	src := Source{Name: path.Base(path.Clean("/" + p)), Dir: info.IsDir()}
	if src.Name == "/" {
		src.Name, src.Contents = ".", true
	}
	src.Contents = src.Contents || src.Dir && (strings.HasSuffix(p, "/.") || p == ".")
	return src, nil
}

// open opens p itself, not its content (O_PATH).
func open(root *os.File, p string, follow bool) (*os.File, error) {
	flags := unix.O_PATH
	if strings.HasSuffix(p, "/") {
		flags |= unix.O_DIRECTORY
	} else if !follow {
		flags |= unix.O_NOFOLLOW
	}
	f, err := beneath.In(root, p, flags, 0)
	return f, classed(err)
}

// classed adds a class to an error of the kernel: InvalidArgument for the caller's fault.
func classed(err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", err, errdefs.ErrNotFound)
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV), errors.Is(err, unix.ENAMETOOLONG):
		return fmt.Errorf("%w: %w", err, errdefs.ErrInvalidArgument)
	case errors.Is(err, unix.EROFS), errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM), errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%w: %w", err, errdefs.ErrFailedPrecondition)
	}
	return err
}

// Stat returns a path's file, and the target of a link that is not followed.
func Stat(root *os.File, p string, follow bool) (info fs.FileInfo, link string, err error) {
	f, err := open(root, p, follow)
	if err != nil {
		return nil, "", err
	}
	defer func() { _ = f.Close() }()
	if info, err = f.Stat(); err != nil || info.Mode()&fs.ModeSymlink == 0 {
		return info, "", err
	}
	link, err = readlink(f)
	return info, link, err
}

// readlink returns the target of an open link.
func readlink(f *os.File) (string, error) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(int(f.Fd()), "", buf)
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: f.Name(), Err: err}
	}
	return string(buf[:n]), nil
}

// Target is where a tar is unpacked.
type Target struct {
	// At is the directory.
	At string
	// Name takes the place of the first part of every name, unless it is empty.
	Name string
	// Strip drops the first part of every name.
	Strip bool
}

// maxLinks is how many links lead to a file before it counts as a loop, as in the kernel.
const maxLinks = 40

// Place returns the target of a copy of src to dest, and creates dest if a directory gets a new
// name. The rules are docker's: a copy to an existing directory goes into it, unless it is a
// directory's content; and the directory above a new name must exist.
func Place(root *os.File, dest string, src Source) (Target, error) {
	slash := strings.HasSuffix(dest, "/") || strings.HasSuffix(dest, "/.")
	dest = path.Clean("/" + dest)
	info, err := stat(root, dest)
	switch {
	case err == nil && info.IsDir() && src.Contents:
		return Target{At: dest, Strip: src.Name != "."}, nil
	case err == nil && info.IsDir():
		return Target{At: dest}, nil
	case err == nil && src.Dir:
		return Target{}, fmt.Errorf("%s is no directory, and a directory cannot be copied to it: %w", dest, errdefs.ErrInvalidArgument)
	case err == nil && slash:
		return Target{}, fmt.Errorf("%s is no directory: %w", dest, errdefs.ErrInvalidArgument)
	case err == nil:
		if dest, err = resolve(root, dest); err != nil {
			return Target{}, err
		}
		return Target{At: path.Dir(dest), Name: path.Base(dest)}, nil
	case !errdefs.IsNotFound(err):
		return Target{}, err
	case slash && !src.Dir:
		return Target{}, fmt.Errorf("the directory %s does not exist: %w", dest, errdefs.ErrNotFound)
	}
	parent, err := beneath.RootIn(root, path.Dir(dest))
	if err != nil {
		return Target{}, fmt.Errorf("the directory above %s: %w", dest, classed(err))
	}
	defer func() { _ = parent.Close() }()
	if !src.Dir {
		return Target{At: path.Dir(dest), Name: path.Base(dest)}, nil
	}
	if err := parent.Mkdir(path.Base(dest), 0o755); err != nil {
		return Target{}, classed(err)
	}
	return Target{At: dest, Strip: src.Name != "."}, nil
}

// Directory returns dest as a target for a tar of somebody's own, if it is a directory.
func Directory(root *os.File, dest string) (Target, error) {
	info, err := stat(root, dest)
	if err == nil && !info.IsDir() {
		err = fmt.Errorf("%s is no directory: %w", dest, errdefs.ErrInvalidArgument)
	}
	return Target{At: dest}, err
}

func stat(root *os.File, p string) (fs.FileInfo, error) {
	f, err := open(root, p, true)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return f.Stat()
}

// resolve follows the links that p itself is.
func resolve(root *os.File, p string) (string, error) {
	for range maxLinks {
		parent, err := beneath.RootIn(root, path.Dir(p))
		if err != nil {
			return "", classed(err)
		}
		to, err := parent.Readlink(path.Base(p))
		_ = parent.Close()
		switch {
		case errors.Is(err, unix.EINVAL):
			return p, nil
		case err != nil:
			return "", classed(err)
		case path.IsAbs(to):
			p = path.Clean(to)
		default:
			p = path.Join(path.Dir(p), to)
		}
	}
	return "", fmt.Errorf("%s: too many links: %w", p, errdefs.ErrInvalidArgument)
}

package compile

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// MakePoints makes the mount points that a plan needs in a root filesystem. A path is
// resolved as the container would resolve it, and never leaves the root.
//
// It does nothing for a plan with a user namespace if the root filesystem belongs to that
// namespace's root: then the plan makes them itself.
func MakePoints(root string, out Output) error {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer func() { _ = unix.Close(dir) }()
	var st unix.Stat_t
	if out.Mapped && (unix.Fstat(dir, &st) != nil || st.Uid != 0) {
		return nil
	}
	for _, p := range out.Points {
		if err := makePoint(dir, p); err != nil {
			return fmt.Errorf("path %s in the root%s: %w: %w", p.Path, linkIn(dir, p.Path), err, classOf(err))
		}
	}
	return nil
}

// linkIn names the first link in a path that could not be made, "" if it has none: the error is
// about the target of the link.
func linkIn(dir int, p string) string {
	at := ""
	for name := range strings.SplitSeq(relative(p), "/") {
		at = path.Join(at, name)
		fd, err := unix.Openat2(dir, at, &unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
		if err != nil {
			return ""
		}
		to := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(fd, "", to)
		_ = unix.Close(fd)
		if err == nil {
			return ", where /" + at + " is a link to " + string(to[:n])
		}
	}
	return ""
}

func inRoot(dir int, p string) (int, error) {
	for {
		fd, err := unix.Openat2(dir, relative(p), &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS})
		// EAGAIN means that a rename happened meanwhile and the kernel cannot be sure of
		// the result.
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
			continue
		}
		return fd, err
	}
}

// maxTries bounds the lookups of a point that somebody exchanges meanwhile.
const maxTries = 100

// makePoint makes the missing parts of a path. Dangling links are followed inside the root, as runc
// and docker follow them.
func makePoint(dir int, p Point) error {
	for range maxTries {
		w := missing{root: dir}
		at, err := w.find(p.Path, p.File)
		if err != nil {
			return err
		}
		if len(w.steps) == 0 {
			fd, err := inRoot(dir, at)
			if err != nil {
				return err
			}
			err = kindError(fd, p)
			_ = unix.Close(fd)
			return err
		}
		if again, err := makeSteps(dir, w.steps); !again {
			return err
		}
	}
	return unix.EBUSY
}

// makeSteps makes files and directories. again means that the root has changed since they were
// found missing.
func makeSteps(dir int, steps []step) (again bool, err error) {
	const how = unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS
	for _, s := range steps {
		parent, err := unix.Openat2(dir, relative(s.parent), &unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: how})
		switch {
		case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EINTR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
			return true, nil
		case err != nil:
			return false, err
		}
		if s.file {
			err = unix.Mknodat(parent, s.name, unix.S_IFREG|0o644, 0)
		} else {
			err = unix.Mkdirat(parent, s.name, 0o755)
		}
		_ = unix.Close(parent)
		switch {
		case errors.Is(err, unix.EEXIST):
			return true, nil
		case err != nil:
			return false, err
		}
	}
	return false, nil
}

// kindError explains an EINVAL of the kernel.
func kindError(fd int, p Point) error {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	switch isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR; {
	case isDir && p.File:
		return errors.New("it is a directory, where a file is wanted")
	case !isDir && !p.File:
		return errors.New("it is a file, where a directory is wanted")
	}
	return nil
}

// FindProgram reports that a spec's program is not in the root filesystem (NotFound) or cannot be
// executed (PermissionDenied), before its process is started or after execve has failed. It reports
// nothing for a program that may be on a mount.
func FindProgram(root string, s *specs.Spec) error {
	if len(s.Process.Args) == 0 {
		return nil
	}
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: root, Err: err}
	}
	defer func() { _ = unix.Close(dir) }()
	denied := false
	for _, c := range Candidates(s.Process) {
		if !path.IsAbs(c) {
			c = path.Join(s.Process.Cwd, c)
		}
		if mayBeMounted(s, c) {
			return nil
		}
		fd, err := inRoot(dir, c)
		if err != nil {
			continue
		}
		var st unix.Stat_t
		err = unix.Fstat(fd, &st)
		_ = unix.Close(fd)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Mode&0o111 != 0 {
			return nil
		}
		denied = true
	}
	name := s.Process.Args[0]
	switch {
	case denied:
		return &core.StartError{Errno: unix.EACCES, Err: fmt.Errorf("exec %q: permission denied: it is no executable file: %w", name, errdefs.ErrPermissionDenied)}
	case strings.Contains(name, "/"):
		return &core.StartError{Errno: unix.ENOENT, Err: fmt.Errorf("exec %q: no such file or directory: %w", name, errdefs.ErrNotFound)}
	default:
		return &core.StartError{Errno: unix.ENOENT, Err: fmt.Errorf("exec %q: executable file not found in $PATH: %w", name, errdefs.ErrNotFound)}
	}
}

// mayBeMounted reports whether p may be on a mount of the spec.
func mayBeMounted(s *specs.Spec, p string) bool {
	for _, m := range s.Mounts {
		d := path.Clean("/" + m.Destination)
		if p == d || strings.HasPrefix(p, d+"/") {
			return true
		}
	}
	return false
}

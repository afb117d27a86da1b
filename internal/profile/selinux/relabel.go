package selinux

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Shared is the level of files that all containers may use.
const Shared = "s0"

const attribute = "security.selinux"

// maxDepth is the limit of nested directories. The walk keeps two descriptors open for each, and a container may nest as many
// as it likes.
const maxDepth = 512

// kept returns the directories that every node has. Without their labels the node's programs could not use them any more.
func kept() []string {
	return []string{
		"/", "/bin", "/boot", "/dev", "/etc", "/home", "/lib", "/lib32", "/lib64", "/libx32", "/media", "/mnt", "/opt", "/proc", "/root", "/run", "/sbin",
		"/srv", "/sys", "/tmp", "/usr", "/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/local", "/usr/sbin", "/usr/share",
		"/var", "/var/cache", "/var/lib", "/var/log", "/var/run", "/var/spool", "/var/tmp", "/etc/passwd", "/etc/shadow", "/etc/group", "/etc/pki", "/etc/ssl",
	}
}

// Relabel gives a file, or a directory and everything below, a label. It follows no link below path, because a container may
// own the directory, and skips file systems that have no labels.
// InvalidArgument for directories that the node needs as they are.
func Relabel(path, label string) error {
	clean, err := filepath.EvalSymlinks(path)
	if err != nil {
		return fmt.Errorf("SELinux label: %w", err)
	}
	for _, dir := range []string{"/proc", "/sys", "/dev"} {
		if strings.HasPrefix(clean, dir+"/") {
			return fmt.Errorf("the SELinux labels of %s belong to the node and are not changed; mount another directory, or leave out z and Z: %w", path, errdefs.ErrInvalidArgument)
		}
	}
	if slices.Contains(kept(), clean) || slices.Contains(kept(), filepath.Clean(path)) {
		return fmt.Errorf("the SELinux labels of %s belong to the node and are not changed; mount a directory below it, or leave out z and Z: %w", path, errdefs.ErrInvalidArgument)
	}
	fd, err := unix.Open(clean, unix.O_PATH|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0)
	if err != nil {
		return fmt.Errorf("SELinux label: open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), clean)
	defer func() { _ = f.Close() }()
	return relabel(f, label, maxDepth)
}

// byFD is the name of an open file that leads to that file and no other.
func byFD(f *os.File) string { return "/proc/self/fd/" + strconv.Itoa(int(f.Fd())) }

// relabel labels the file that f, opened with O_PATH, is, and all below it, down to a depth.
func relabel(f *os.File, label string, depth int) error {
	if err := set(byFD(f), label, unix.Setxattr); err != nil {
		return fmt.Errorf("SELinux label %s of %s: %w", label, f.Name(), err)
	}
	fd, err := unix.Open(byFD(f), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOTDIR) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", f.Name(), err)
	}
	dir := os.NewFile(uintptr(fd), f.Name())
	defer func() { _ = dir.Close() }()
	if depth == 0 {
		return fmt.Errorf("SELinux labels: more than %d directories are nested: remove them, or leave out z and Z: %w", maxDepth, errdefs.ErrFailedPrecondition)
	}
	for {
		list, err := dir.ReadDir(256)
		for _, e := range list {
			if err := entry(dir, e.Name(), label, depth-1); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s: %w", f.Name(), err)
		}
	}
}

// entry labels one entry of an open directory. One that is gone meanwhile needs no label.
func entry(dir *os.File, name, label string, depth int) error {
	path := filepath.Join(dir.Name(), name)
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("stat %s: %w", path, err)
	}
	if info.Mode()&os.ModeSymlink == 0 {
		return relabel(f, label, depth)
	}
	err = set(byFD(dir)+"/"+name, label, unix.Lsetxattr)
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("SELinux label %s of %s: %w", label, path, err)
	}
	return nil
}

// set sets the label of a file. A file system without labels needs none.
func set(path, label string, call func(path, name string, value []byte, flags int) error) error {
	err := call(path, attribute, append([]byte(label), 0), 0)
	if errors.Is(err, unix.ENOTSUP) {
		return nil
	}
	return err
}

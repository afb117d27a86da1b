package compile

import (
	"errors"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/ocispec"
)

// maxLinks is how many symbolic links a path may lead through, as in the kernel.
const maxLinks = 40

// missing finds the files to make so that a path exists in a root filesystem. It resolves links as
// the container would, also dangling ones: their targets are made inside the root. It changes
// nothing.
type missing struct {
	root   int     // descriptor of the root filesystem; -1 when it cannot be read
	places []place // the mounts on it by then

	stack  []level
	links  int
	passed bool   // the path leads through a place
	steps  []step // the missing files, in the order of their creation
}

// place is a mount of the container.
type place struct {
	real string // where it is, without links
	// mount has the source of a bind, for reading its links.
	mount specs.Mount
}

// level is one directory on the way to the path.
type level struct {
	real string
	fd   int // -1 when it is missing, or when it is in a mount that is not made yet
}

// step is one file or directory to be made. Its parent has no links in its path.
type step struct {
	parent, name string
	file         bool
}

// find returns the path without links, and adds the missing files to steps. A file is wanted
// instead of a directory if file is set.
func (w *missing) find(p string, file bool) (clean string, err error) {
	w.stack = []level{{"/", w.root}}
	defer func() { w.pop(1) }()
	todo := strings.Split(p, "/")
	for len(todo) > 0 {
		name := todo[0]
		todo = todo[1:]
		switch name {
		case "", ".":
			continue
		case "..":
			w.pop(max(len(w.stack)-1, 1))
			continue
		}
		last := !slices.ContainsFunc(todo, func(s string) bool { return s != "" && s != "." })
		target, err := w.enter(name, file && last, last)
		if err != nil {
			return "", err
		}
		if target == "" {
			continue
		}
		if w.links++; w.links > maxLinks {
			return "", unix.ELOOP
		}
		if path.IsAbs(target) {
			w.pop(1)
		}
		todo = append(strings.Split(target, "/"), todo...)
	}
	return w.stack[len(w.stack)-1].real, nil
}

// pop leaves n levels.
func (w *missing) pop(n int) {
	for _, l := range w.stack[n:] {
		if l.fd >= 0 {
			_ = unix.Close(l.fd)
		}
	}
	w.stack = w.stack[:n]
}

// enter goes one level down, or returns where a link leads to.
func (w *missing) enter(name string, file, last bool) (target string, err error) {
	in := w.stack[len(w.stack)-1]
	next := level{path.Join(in.real, name), -1}
	for _, p := range slices.Backward(w.places) {
		if p.real == next.real {
			w.passed, next.fd = true, p.open()
			w.stack = append(w.stack, next)
			return "", nil
		}
	}
	err = unix.ENOENT
	if in.fd >= 0 {
		next.fd, err = openAt(in.fd, name)
	}
	if errors.Is(err, unix.ENOENT) {
		w.steps = append(w.steps, step{in.real, name, file})
		w.stack = append(w.stack, next)
		return "", nil
	}
	if err != nil {
		return "", err
	}
	var st unix.Stat_t
	if err := unix.Fstat(next.fd, &st); err != nil {
		_ = unix.Close(next.fd)
		return "", err
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		defer func() { _ = unix.Close(next.fd) }()
		b := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(next.fd, "", b)
		if err == nil && (n == 0 || n == len(b)) {
			err = unix.ENAMETOOLONG
		}
		return string(b[:max(n, 0)]), err
	case unix.S_IFDIR:
	default:
		if !last {
			_ = unix.Close(next.fd)
			return "", unix.ENOTDIR
		}
	}
	w.stack = append(w.stack, next)
	return "", nil
}

// openAt opens one name in a directory, and the link itself if it is one.
func openAt(dir int, name string) (int, error) {
	for {
		fd, err := unix.Openat(dir, name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

// open opens the directory that a bind shows, or returns -1: other mounts are not made yet, and
// count as empty.
func (p place) open() int {
	if !isBind(p.mount, ocispec.ParseMountOptions(p.mount.Options)) || !path.IsAbs(p.mount.Source) {
		return -1
	}
	base, rel, err := ocispec.Below(p.mount)
	if err != nil {
		return -1
	}
	const flags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC
	if base == "" {
		fd, err := unix.Open(p.mount.Source, flags, 0)
		if err != nil {
			return -1
		}
		return fd
	}
	dir, err := beneath.Base(base)
	if err != nil {
		return -1
	}
	defer func() { _ = unix.Close(dir) }()
	fd, err := beneath.At(dir, rel, flags, 0)
	if err != nil {
		return -1
	}
	return fd
}

// missing resolves a path on the root and the mounts so far.
func (r *rootfs) missing(p string, file bool) (w missing, clean string, err error) {
	root, err := unix.Open(r.in.Root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		root = -1
	}
	if root >= 0 {
		defer func() { _ = unix.Close(root) }()
	}
	w = missing{root: root, places: r.places}
	clean, err = w.find(p, file)
	return w, clean, err
}

// settle finds where the mounts are that were added since the last call.
func (r *rootfs) settle() {
	for _, m := range r.mounts[len(r.places):] {
		_, at, err := r.missing(m.Destination, false)
		if err != nil {
			at = path.Clean("/" + m.Destination)
		}
		r.places = append(r.places, place{at, m})
	}
}

// covered reports whether a path without links is on a mount.
func (r *rootfs) covered(at string) bool {
	return slices.ContainsFunc(r.places, func(p place) bool { return at == p.real || strings.HasPrefix(at, p.real+"/") })
}

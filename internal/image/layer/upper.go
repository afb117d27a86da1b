package layer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
)

// Upper is a container's own layer over those of its image. Its programs write it, also while it is
// read: no path in it is followed.
type Upper struct {
	Dir   string
	Lower []string // the unpacked layers of its image, nearest first
	// Mounts are the places, relative to the root, of the container's mounts and of files from the
	// engine. Files there are no changes, except directories of the image.
	Mounts map[string]bool
	// Inside returns the owner inside of the container's user namespace of one on the host; nil when
	// the container has none.
	Inside func(uid, gid int) (int, int)
}

// Change is a file that differs from the image's.
type Change struct {
	Path string // relative to the root
	Kind ChangeKind
}

// ChangeKind says how a file differs, by the letter that docker and podman have for it.
type ChangeKind string

// The kinds of changes. A directory has changed when something in it has, too, or its mode or owner.
const (
	Added   ChangeKind = "A"
	Changed ChangeKind = "C"
	Deleted ChangeKind = "D"
)

// Changes calls fn with each change, a directory before its content. ResourceExhausted if a path is
// too long for the kernel.
func (u Upper) Changes(ctx context.Context, fn func(Change) error) error {
	var above []string // directories to report before the first change in them
	return u.walk(ctx, func(e *upperEntry) error {
		for len(above) > 0 && !strings.HasPrefix(e.rel, above[len(above)-1]+"/") {
			above = above[:len(above)-1]
		}
		kind := Changed
		switch {
		case e.rel == ".":
			return nil
		case e.deleted:
			kind = Deleted
		case e.lower == nil:
			kind = Added
		case e.kind() == unix.S_IFDIR && !e.opaque && u.alike(e):
			above = append(above, e.rel)
			return nil
		}
		for _, dir := range above {
			if err := fn(Change{dir, Changed}); err != nil {
				return err
			}
		}
		above = above[:0]
		return fn(Change{e.rel, kind})
	})
}

// alike reports whether a directory has the image's mode and owner.
func (u Upper) alike(e *upperEntry) bool {
	was, ok := e.lower.Sys().(*syscall.Stat_t)
	uid, gid := u.owner(&e.st)
	return ok && was.Mode == e.st.Mode && int(was.Uid) == uid && int(was.Gid) == gid && attributes(e.at) == attributes(fdPath(e.f))
}

// attributes are the extended attributes of a directory that its users set, and its access control
// lists.
func attributes(dir string) string {
	var all strings.Builder
	buf, value := make([]byte, 64<<10), make([]byte, 64<<10)
	n, err := unix.Listxattr(dir, buf)
	if err != nil {
		return ""
	}
	names := strings.Split(string(buf[:n]), "\x00")
	slices.Sort(names)
	for _, name := range names {
		if !strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "system.posix_acl_") {
			continue
		}
		if m, err := unix.Getxattr(dir, name, value); err == nil {
			fmt.Fprintf(&all, "%q=%q ", name, value[:m])
		}
	}
	return all.String()
}

// owner returns a file's owner inside of the container.
func (u Upper) owner(st *unix.Stat_t) (uid, gid int) {
	if u.Inside == nil {
		return int(st.Uid), int(st.Gid)
	}
	return u.Inside(int(st.Uid), int(st.Gid))
}

// upperEntry is one file of an upper, or one that it deletes.
type upperEntry struct {
	rel     string
	parent  *os.File
	f       *os.File // opened with O_PATH; nil for one that is deleted
	st      unix.Stat_t
	deleted bool
	opaque  bool        // a directory that hides the one below
	lower   os.FileInfo // the image's file there, nil for none
	at      string      // where that is
}

func (e *upperEntry) kind() uint32 { return e.st.Mode & unix.S_IFMT }

// fdPath is a path to an inode that was opened with O_PATH.
func fdPath(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

const (
	// maxNames is how many names of a directory are in memory at once, and in order. The rest of a
	// larger one follows.
	maxNames = 1 << 18
	// maxPath is the length of a path that no program can name as a whole; a tar of it could not be
	// unpacked.
	maxPath = unix.PathMax - 1
)

// walk visits the root and everything in it.
func (u Upper) walk(ctx context.Context, visit func(*upperEntry) error) error {
	dir, err := os.OpenFile(u.Dir, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer func() { _ = dir.Close() }()
	root := &upperEntry{rel: ".", f: dir}
	if err := unix.Fstat(int(dir.Fd()), &root.st); err != nil {
		return err
	}
	if err := visit(root); err != nil {
		return err
	}
	return u.in(ctx, dir, root, visit)
}

// in visits the content of an open directory.
func (u Upper) in(ctx context.Context, dir *os.File, e *upperEntry, visit func(*upperEntry) error) error {
	gone := map[string]bool{} // names of the image's directory that an opaque one does not have
	if e.opaque && e.lower != nil && e.lower.IsDir() {
		names, err := children(u.Lower, e.rel)
		if err != nil {
			return err
		}
		for _, n := range names {
			gone[n] = true
		}
	}
	for first := true; ; first = false {
		names, err := dir.Readdirnames(maxNames)
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		last := len(names) < maxNames
		if first && last { // else those that are gone follow at the end
			for _, n := range names {
				delete(gone, n)
			}
			for n := range gone {
				names = append(names, n)
			}
		}
		slices.Sort(names)
		for _, n := range names {
			if err := ctx.Err(); err != nil {
				return context.Cause(ctx)
			}
			deleted := first && last && gone[n]
			if !deleted {
				delete(gone, n)
			}
			if err := u.one(ctx, dir, path.Join(e.rel, n), deleted, visit); err != nil {
				return err
			}
		}
		if !last {
			continue
		}
		if !first {
			for n := range gone {
				if err := u.one(ctx, dir, path.Join(e.rel, n), true, visit); err != nil {
					return err
				}
			}
		}
		return nil
	}
}

// one visits one name of a directory, and its content.
func (u Upper) one(ctx context.Context, dir *os.File, rel string, deleted bool, visit func(*upperEntry) error) error {
	if len(rel) > maxPath {
		return fmt.Errorf("%.40q… is a path of %d bytes, and none has more than %d: %w", rel, len(rel), maxPath, errdefs.ErrResourceExhausted)
	}
	e := &upperEntry{rel: rel, parent: dir, deleted: deleted}
	var err error
	if e.at, e.lower, err = find(u.Lower, rel); err != nil {
		return err
	}
	if deleted {
		return visit(e)
	}
	e.f, err = beneath.In(dir, path.Base(rel), unix.O_PATH|unix.O_NOFOLLOW, 0) // one component, and a link is opened itself
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it was removed meanwhile
	}
	if err != nil {
		return err
	}
	defer func() { _ = e.f.Close() }()
	if err := unix.Fstat(int(e.f.Fd()), &e.st); err != nil {
		return err
	}
	switch {
	case u.Mounts[rel] && (e.lower == nil || !e.lower.IsDir()):
		return nil
	case e.kind() == unix.S_IFCHR && e.st.Rdev == 0:
		if e.lower == nil {
			return nil
		}
		e.deleted = true
	case e.kind() == unix.S_IFDIR:
		if e.opaque, err = overlayDir(e); err != nil {
			return err
		}
	}
	if err := visit(e); err != nil || e.kind() != unix.S_IFDIR {
		return err
	}
	sub, err := reopen(e, unix.O_DIRECTORY)
	if sub == nil {
		return err
	}
	defer func() { _ = sub.Close() }()
	return u.in(ctx, sub, e, visit)
}

// reopen opens a file for reading that was opened with O_PATH; nil if another one has replaced it.
func reopen(e *upperEntry, flags int) (*os.File, error) {
	f, err := beneath.Child(e.parent, path.Base(e.rel), unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|flags, 0)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Ino != e.st.Ino || st.Dev != e.st.Dev {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// overlayDir reports whether a directory hides the one below. FailedPrecondition for a redirected
// one, which the kernel makes in our mounts only if its module has redirect_dir=on.
func overlayDir(e *upperEntry) (opaque bool, err error) {
	if n, err := unix.Getxattr(fdPath(e.f), "trusted.overlay.redirect", nil); err == nil && n > 0 {
		return false, fmt.Errorf("the directory %q was renamed with overlay's redirect_dir=on: only with it off a layer is whole: %w", e.rel, errdefs.ErrFailedPrecondition)
	}
	var value [1]byte
	n, err := unix.Getxattr(fdPath(e.f), opaqueXattr, value[:])
	switch {
	case err == nil:
		return n == 1 && value[0] == 'y', nil
	case errors.Is(err, unix.ENODATA), errors.Is(err, unix.ENOTSUP), errors.Is(err, unix.ERANGE):
		return false, nil
	}
	return false, err
}

// children returns the names in the directory rel of unpacked layers, nearest first, as overlayfs
// merges them.
func children(dirs []string, rel string) ([]string, error) {
	var names []string
	seen := map[string]bool{}
	for i := range dirs {
		// A layer that hides the directory from upper layers also hides it here.
		at, fi, err := find(dirs[i:], rel)
		if err != nil {
			return nil, err
		}
		if fi == nil || !fi.IsDir() {
			break
		}
		if !strings.HasPrefix(at, dirs[i]+"/") {
			continue // it comes with its own layer
		}
		list, err := os.ReadDir(at)
		if err != nil {
			return nil, err
		}
		for _, d := range list {
			if seen[d.Name()] {
				continue
			}
			seen[d.Name()] = true
			if fi, err := d.Info(); err != nil || isWhiteout(fi) {
				continue
			}
			names = append(names, d.Name())
		}
		if hides(dirs[i], rel) {
			break
		}
	}
	return names, nil
}

// hides reports whether a directory of a layer, or one above it, is opaque.
func hides(layer, rel string) bool {
	for p := rel; p != "."; p = path.Dir(p) {
		if opaque(path.Join(layer, p)) {
			return true
		}
	}
	return false
}

package sandbox

import (
	"context"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

const (
	// maxDepth limits the depth of a tree that is measured, because each level takes a
	// descriptor. Deeper trees are only built to hide something in them.
	maxDepth = 1024
	// nameBatch is how many names of a directory are read at once.
	nameBatch = 1024
)

// ErrTooDeep is returned for a tree that is too deep to be measured.
var ErrTooDeep = errors.New("directories are too deep to be measured") //nolint:gochecknoglobals // an error value

// Usage returns how much disk space the files in and below dir use on its file system,
// in bytes. A file with several names counts once. No link is followed, and files that
// disappear meanwhile are ignored. ErrTooDeep.
func Usage(ctx context.Context, dir string) (uint64, error) {
	fd, err := unix.Open(dir, openDirFlags, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	w := usageWalk{dev: st.Dev, bytes: allocated(&st), seen: map[uint64]bool{}}
	err = w.below(ctx, fd, 1)
	return w.bytes, err
}

const openDirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NOATIME

type usageWalk struct {
	dev   uint64
	bytes uint64
	seen  map[uint64]bool // inodes with more than one name
}

// below adds the content of the directory fd, which it closes.
func (w *usageWalk) below(ctx context.Context, fd, depth int) error {
	d := os.NewFile(uintptr(fd), "directory")
	defer func() { _ = d.Close() }()
	if depth > maxDepth {
		return ErrTooDeep
	}
	for {
		names, err := d.Readdirnames(nameBatch)
		for _, name := range names {
			if err := w.add(ctx, fd, name, depth); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) || errors.Is(err, unix.ENOENT) {
			return nil
		}
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

func (w *usageWalk) add(ctx context.Context, fd int, name string, depth int) error {
	var st unix.Stat_t
	err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return &os.PathError{Op: "stat", Path: name, Err: err}
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if st.Dev != w.dev || !isDir && st.Nlink > 1 && w.seen[st.Ino] {
		return nil
	}
	w.bytes += allocated(&st)
	if !isDir {
		if st.Nlink > 1 {
			w.seen[st.Ino] = true
		}
		return nil
	}
	sub, err := unix.Openat(fd, name, openDirFlags, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil // replaced meanwhile
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	return w.below(ctx, sub, depth+1)
}

// allocated is the disk space of a file; the kernel counts in blocks of 512 bytes.
func allocated(st *unix.Stat_t) uint64 { return uint64(max(st.Blocks, 0)) * 512 }

// Package disk is about how much room containers of Mesos take on the disk, and what
// is said of one that takes more than it may.
//
// It must not know containers, only directories. Start at Usage and Over.
package disk

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// maxDepth bounds how deep a tree is that is measured: each level takes a
	// descriptor. Nobody has such a tree but to hide something in it.
	maxDepth = 1024
	// batch is how many names are read of a directory at once.
	batch = 1024
)

// ErrTooDeep is of a tree that cannot be measured.
var ErrTooDeep = errors.New("directories are too deep to be measured") //nolint:gochecknoglobals // an error value

// Usage is what the files in and below dir take on its file system, in bytes. A file
// of several names counts once; what goes meanwhile does not count, and no link is
// followed. ErrTooDeep.
func Usage(ctx context.Context, dir string) (uint64, error) {
	fd, err := unix.Open(dir, dirFlags, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: dir, Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, errors.Join(err, unix.Close(fd))
	}
	w := walk{dev: st.Dev, bytes: blocks(&st), seen: map[uint64]bool{}}
	err = w.below(ctx, fd, 1)
	return w.bytes, err
}

const dirFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC | unix.O_NOATIME

type walk struct {
	dev   uint64
	bytes uint64
	seen  map[uint64]bool // inodes of more than one name
}

// below adds what is in the directory fd, which it closes.
func (w *walk) below(ctx context.Context, fd, depth int) error {
	d := os.NewFile(uintptr(fd), "directory")
	defer func() { _ = d.Close() }()
	if depth > maxDepth {
		return ErrTooDeep
	}
	for {
		names, err := d.Readdirnames(batch)
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

func (w *walk) add(ctx context.Context, fd int, name string, depth int) error {
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
	w.bytes += blocks(&st)
	if !isDir {
		if st.Nlink > 1 {
			w.seen[st.Ino] = true
		}
		return nil
	}
	sub, err := unix.Openat(fd, name, dirFlags, 0)
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil // another stands there by now
	}
	if err != nil {
		return &os.PathError{Op: "open", Path: name, Err: err}
	}
	return w.below(ctx, sub, depth+1)
}

// blocks is what a file takes; the kernel counts in 512 bytes.
func blocks(st *unix.Stat_t) uint64 { return uint64(max(st.Blocks, 0)) * 512 }

// prefix tells a request for the end of what takes too much from any other.
const prefix = "disk limit: "

// Over is the request, in words, to end a container that takes more than it may; ""
// when it does not. Both are bytes.
func Over(used, limit uint64) string {
	if used <= limit {
		return ""
	}
	return fmt.Sprintf(prefix+"Disk usage (%s) exceeds quota (%s)", Text(used), Text(limit))
}

// TooDeep is the same for one that cannot be measured.
func TooDeep() string { return prefix + ErrTooDeep.Error() }

// Message is what such a request says, in Mesos' words; false for any other.
func Message(call string) (string, bool) { return strings.CutPrefix(call, prefix) }

// Text is an amount as Mesos writes it: in the largest unit of which it is a whole
// number.
func Text(n uint64) string {
	unit := "B"
	for _, u := range []string{"KB", "MB", "GB", "TB"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, u
	}
	return strconv.FormatUint(n, 10) + unit
}

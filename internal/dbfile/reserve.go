package dbfile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// A Reserve holds bytes and inodes of a file system for the time when nothing else is free: the
// record of a deletion must be written before the deletion frees space. Its methods may be called
// concurrently.
type Reserve struct {
	dir   string // has a file of bytes, and files empty ones
	bytes int64
	files int

	mu sync.Mutex // serializes Release and Fill
}

// reserveFactor is how many times the reserve must be free before Fill takes it, so that it does
// not take the space that it has just released.
const reserveFactor = 4

// NewReserve returns a reserve in a directory of its own, which Fill creates.
func NewReserve(dir string, bytes int64, files int) *Reserve {
	return &Reserve{dir: dir, bytes: bytes, files: files}
}

// Release frees the reserve and reports whether there was one.
func (r *Reserve) Release() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := os.Lstat(r.dir); err != nil {
		return false
	}
	return os.RemoveAll(r.dir) == nil
}

// Fill takes the missing parts of the reserve if several times as much is free. That there is no
// room for it is not an error.
func (r *Reserve) Fill() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.complete() {
		return nil
	}
	var st unix.Statfs_t
	if err := unix.Statfs(filepath.Dir(r.dir), &st); err != nil {
		return fmt.Errorf("statfs %s: %w", filepath.Dir(r.dir), err)
	}
	if int64(st.Bavail)*st.Bsize < reserveFactor*r.bytes || st.Files > 0 && st.Ffree < uint64(reserveFactor*r.files) {
		return nil
	}
	err := r.fill()
	if IsFull(err) {
		return os.RemoveAll(r.dir)
	}
	return err
}

func (r *Reserve) path(i int) string { return filepath.Join(r.dir, strconv.Itoa(i)) }

// complete reports whether Fill has nothing to do. Preconditions: mu is held.
func (r *Reserve) complete() bool {
	var st unix.Stat_t
	if unix.Lstat(r.path(0), &st) != nil || st.Blocks*512 < r.bytes {
		return false
	}
	names, err := os.ReadDir(r.dir)
	return err == nil && len(names) >= r.files
}

// fill makes the files. Preconditions: mu is held.
func (r *Reserve) fill() error {
	if err := os.RemoveAll(r.dir); err != nil {
		return err
	}
	if err := os.Mkdir(r.dir, 0o700); err != nil {
		return err
	}
	for i := range r.files {
		f, err := os.OpenFile(r.path(i), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		if i == 0 {
			err = unix.Fallocate(int(f.Fd()), 0, 0, r.bytes)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			return &fs.PathError{Op: "allocate", Path: r.path(i), Err: err}
		}
	}
	return nil
}

// IsFull reports whether an error is that of a file system or quota without free bytes or inodes.
func IsFull(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

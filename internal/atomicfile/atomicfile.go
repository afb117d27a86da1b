// Package atomicfile writes a file so that a crash at any time leaves either the old or the new
// content, never a part. It does not know what it writes. Start at Write.
package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
)

// Write replaces the content of the file at path: it writes a file beside it, syncs that, renames
// it, and syncs the directory. The data is on disk when Write returns. The mode is set whatever
// the umask; a symlink at path is replaced, not followed.
func Write(path string, data []byte, mode os.FileMode) error {
	return write(path, mode, true, func(f *os.File) error { return put(f, data) })
}

// Fill is Write for content that fn makes. It may read what it has written; nothing is left of it when it
// fails.
func Fill(path string, mode os.FileMode, fn func(f *os.File) error) error {
	return write(path, mode, true, fn)
}

// Replace is Write without syncing: the file is complete for every reader and after the death of
// any process, but not after a power cut. It is for files that need not survive a boot.
func Replace(path string, data []byte, mode os.FileMode) error {
	return write(path, mode, false, func(f *os.File) error { return put(f, data) })
}

func put(f *os.File, data []byte) error {
	_, err := f.Write(data)
	return err
}

func write(path string, mode os.FileMode, sync bool, fill func(f *os.File) error) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, "."+filepath.Base(path)+".*")
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write %s: %w", path, err), os.Remove(f.Name()))
		}
	}()
	err = errors.Join(fill(f), f.Chmod(mode))
	if sync {
		err = errors.Join(err, f.Sync())
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil || !sync {
		return err
	}
	return syncDir(dir)
}

// syncDir makes the rename durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// ErrUnreadable means that what is at a path cannot be read as a file: something else has taken its
// place, it is larger than it can be, or the disk fails.
var ErrUnreadable = errors.New("it is no file that can be read")

// Read returns the content of a file of at most limit bytes. It never waits: a fifo at path is
// Unreadable, as a directory is.
func Read(path string, limit int64) ([]byte, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ENXIO) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EIO) {
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("%w: %s is a %s", ErrUnreadable, path, KindOf(fi.Mode()))
	}
	var b bytes.Buffer
	b.Grow(int(min(fi.Size(), limit, maxGrow)) + bytes.MinRead)
	_, err = b.ReadFrom(io.LimitReader(f, limit+1))
	switch {
	case errors.Is(err, syscall.EIO):
		return nil, fmt.Errorf("%w: %w", ErrUnreadable, err)
	case err != nil:
		return nil, err
	case int64(b.Len()) > limit:
		return nil, fmt.Errorf("%w: %s has more than %d bytes", ErrUnreadable, path, limit)
	}
	return b.Bytes(), nil
}

// maxGrow bounds the space that Read reserves, because a file may have a size without content.
const maxGrow = 64 << 20

// Strange returns what is at path if no file can be opened there, for messages; "" for a file, and
// for nothing.
func Strange(path string) string {
	fi, err := os.Stat(path)
	switch {
	case errors.Is(err, syscall.ELOOP):
		return "a link in a loop"
	case err != nil || fi.Mode().IsRegular():
		return ""
	}
	return "a " + KindOf(fi.Mode())
}

// Damaged is the suffix of what SetAside has set aside.
const Damaged = ".damaged"

// SetAside renames what is at path to path.damaged, in the place of what was set aside before. It
// succeeds when there is nothing.
func SetAside(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.RemoveAll(path + Damaged); err != nil {
		return err
	}
	return os.Rename(path, path+Damaged)
}

// KindOf names the kind of a file, for messages.
func KindOf(m os.FileMode) string {
	switch {
	case m.IsRegular():
		return "file"
	case m.IsDir():
		return "directory"
	case m&os.ModeNamedPipe != 0:
		return "fifo"
	case m&os.ModeSocket != 0:
		return "socket"
	case m&os.ModeSymlink != 0:
		return "link"
	}
	return "device"
}

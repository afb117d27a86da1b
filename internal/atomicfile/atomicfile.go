// Package atomicfile writes a file so that a crash at any time leaves either the old or the new
// content, never a part. It does not know what it writes. Start at Write.
package atomicfile

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
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

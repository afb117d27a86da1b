package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// makeBundle creates a bundle's directories with mode 0700: the root below contains the image's
// setuid files, which other users must not reach.
func makeBundle(dir string) error {
	return os.MkdirAll(filepath.Join(dir, "rootfs"), 0o700)
}

// removeBundle removes a bundle; it succeeds when there is none.
func removeBundle(dir string) error {
	// No RemoveAll below rootfs: if something is still mounted there, its files must not be
	// deleted.
	err := os.Remove(filepath.Join(dir, "rootfs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}

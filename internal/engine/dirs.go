package engine

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/longshore/longshore/internal/core"
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

// dirIDs returns the IDs that have an entry in a directory, or none when the directory does not
// exist.
func dirIDs(dir string) ([]core.ID, error) {
	list, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	ids := make([]core.ID, 0, len(list))
	for _, e := range list {
		ids = append(ids, core.ID(e.Name()))
	}
	return ids, err
}

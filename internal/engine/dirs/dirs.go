// Package dirs makes and removes the directories of sandboxes and containers, as
// far as nothing is mounted in them.
//
// It must not know the engine. Start reading at MakeBundle.
package dirs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/own"
)

// WriteFiles writes what containers find in /etc, by its names in a sandbox's
// directory; what is empty is left out.
func WriteFiles(dir string, files map[string][]byte) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	for name, content := range files {
		if len(content) == 0 {
			continue
		}
		// Not by atomicfile: a sandbox with half a file is not ready, and
		// recovery removes it.
		if err := root.WriteFile(name, content, 0o644); err != nil {
			return errors.Join(err, root.Close())
		}
	}
	return root.Close()
}

// Files names what of Resolv, Hosts and Hostname a sandbox's directory has.
func Files(dir string) []string {
	return slices.DeleteFunc([]string{own.Resolv, own.Hosts, own.Hostname}, func(name string) bool {
		_, err := os.Lstat(filepath.Join(dir, name))
		return err != nil || dir == ""
	})
}

// MakeBundle makes a bundle's directories, for nobody else: what is below has the
// image's setuid files.
func MakeBundle(dir string) error {
	return os.MkdirAll(filepath.Join(dir, "rootfs"), 0o700)
}

// RemoveBundle removes a bundle; it succeeds when there is none.
func RemoveBundle(dir string) error {
	// Not RemoveAll below rootfs: what is mounted there is not ours to
	// delete, should it still be.
	err := os.Remove(filepath.Join(dir, "rootfs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}

// Names lists what is in a directory: IDs, of which each has a directory. A
// directory that is not there has none.
func Names(dir string) ([]core.ID, error) {
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

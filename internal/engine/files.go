package engine

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/longshore/longshore/internal/engine/own"
)

// writeFiles writes what containers find in /etc.
func writeFiles(dir string, f Files) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{own.Resolv: f.ResolvConf, own.Hosts: f.Hosts, own.Hostname: f.Hostname} {
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

// makeBundle makes a bundle's directories. Others may pass through them: a
// mapped root has to reach its root filesystem.
func makeBundle(dir string) error {
	return os.MkdirAll(filepath.Join(dir, "rootfs"), 0o711)
}

// removeBundle unmounts and removes a bundle; it succeeds when there is none.
func removeBundle(dir string) error {
	// Not RemoveAll below rootfs: what is mounted there is not ours to
	// delete, should it still be.
	err := os.Remove(filepath.Join(dir, "rootfs"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.RemoveAll(dir)
}

// removeSandboxDir unmounts the shared memory and removes the directory.
func (e *Engine) removeSandboxDir(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	if err := e.unmountShm(ctx, dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func (e *Engine) unmountShm(ctx context.Context, dir string) error {
	shm := filepath.Join(dir, own.Shm)
	if _, err := os.Lstat(shm); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := e.o.Roots.Unmount(ctx, shm); err != nil {
		return err
	}
	// Should it still be mounted, this fails and nothing in it is deleted.
	return os.Remove(shm)
}

// haveFiles names the files that a sandbox has.
func haveFiles(dir string) (names []string) {
	for _, name := range []string{own.Resolv, own.Hosts, own.Hostname} {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil && dir != "" {
			names = append(names, name)
		}
	}
	return names
}

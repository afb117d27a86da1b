package engine

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/longshore/longshore/internal/engine/etc"
)

// removeSandboxDir unmounts what is mounted in the directory and removes it.
func (e *Engine) removeSandboxDir(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	if err := e.unmountShm(ctx, dir); err != nil {
		return err
	}
	if err := etc.Remove(ctx, e.o.Roots, dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func (e *Engine) unmountShm(ctx context.Context, dir string) error {
	shm := filepath.Join(dir, shmDir)
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

package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/archive"
	"github.com/longshore/longshore/internal/hub/store"
)

// Backup writes the records of a database that no hub has open. It needs no passphrase.
func (o Options) Backup(ctx context.Context, w io.Writer) error {
	if _, err := os.Lstat(filepath.Join(o.Dir, "etcd")); err != nil {
		return fmt.Errorf("%s is not a directory of a hub: %w: %w", o.Dir, errdefs.ErrInvalidArgument, err)
	}
	d, err := o.embedded(ctx, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	return errors.Join(store.Backup(ctx, d, w), d.Close())
}

// Restore makes a database of a backup: in a directory that is empty or not there, or in the user's etcd, if it has no record with the
// prefix. The backup is read twice, the first time to see that it is whole. FailedPrecondition when there are records
// already. Nothing is left of one that fails, in a directory.
func (o Options) Restore(ctx context.Context, r io.ReadSeeker) (info archive.Info, err error) {
	if info, err = store.Check(r); err != nil {
		return info, err
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return info, err
	}
	quiet := slog.New(slog.DiscardHandler)
	if o.Remote != nil {
		d, err := o.remote(ctx, quiet)
		if err != nil {
			return info, err
		}
		return info, errors.Join(store.Fill(ctx, d, r), d.Close())
	}
	return info, o.restoreInto(ctx, filepath.Clean(o.Dir), r, quiet)
}

// restoring begins the names of unfinished databases. They are made inside of the directory: it may be a
// mount point with a read-only parent.
const restoring = ".restore-"

// restoreInto makes the database of a directory.
func (o Options) restoreInto(ctx context.Context, into string, r io.Reader, log *slog.Logger) (err error) {
	list, err := os.ReadDir(into)
	made := errors.Is(err, os.ErrNotExist)
	switch {
	case err != nil && !made:
		return fmt.Errorf("restore into %s: %w", into, err)
	case slices.ContainsFunc(list, func(e os.DirEntry) bool {
		return e.Name() != lockName && !strings.HasPrefix(e.Name(), restoring)
	}):
		return fmt.Errorf("the directory %s is not empty: %w", into, errdefs.ErrFailedPrecondition)
	case !made && len(list) == 0:
		if err := os.Chmod(into, 0o700); err != nil {
			return fmt.Errorf("restore into %s: %w", into, err)
		}
	case made:
		if err := os.MkdirAll(filepath.Dir(into), 0o755); err != nil {
			return fmt.Errorf("restore into %s: %w", into, err)
		}
	}
	lock, err := own(into)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(filepath.Join(into, lockName))
			if made {
				_ = os.Remove(into)
			}
		}
		err = errors.Join(err, lock.Close())
	}()
	for _, e := range list { // left by a restore that was killed
		if strings.HasPrefix(e.Name(), restoring) {
			if err := os.RemoveAll(filepath.Join(into, e.Name())); err != nil {
				return fmt.Errorf("restore into %s: %w", into, err)
			}
		}
	}
	if o.Dir, err = os.MkdirTemp(into, restoring); err != nil {
		return fmt.Errorf("restore into %s: %w", into, err)
	}
	defer func() { _ = os.RemoveAll(o.Dir) }()
	d, err := o.embedded(ctx, log)
	if err != nil {
		return err
	}
	if err := errors.Join(store.Fill(ctx, d, r), d.Close()); err != nil {
		return err
	}
	if err := os.Rename(filepath.Join(o.Dir, "etcd"), filepath.Join(into, "etcd")); err != nil {
		return fmt.Errorf("restore into %s: %w", into, err)
	}
	return errors.Join(syncDir(into), syncDir(filepath.Dir(into)))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

package etcd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/hub/archive"
	"github.com/longshore/longshore/internal/hub/store"
)

// Backup writes the records of a database that no hub has open. It needs no passphrase.
func (o Options) Backup(ctx context.Context, w io.Writer) error {
	if _, err := os.Lstat(filepath.Join(o.Dir, "etcd")); err != nil {
		return fmt.Errorf("%s is no directory of a hub: %w: %w", o.Dir, errdefs.ErrInvalidArgument, err)
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
	into := filepath.Clean(o.Dir)
	if list, err := os.ReadDir(into); err == nil && len(list) > 0 {
		return info, fmt.Errorf("the directory %s is not empty: %w", into, errdefs.ErrFailedPrecondition)
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return info, fmt.Errorf("restore into %s: %w", into, err)
	}
	if err := os.MkdirAll(filepath.Dir(into), 0o755); err != nil {
		return info, fmt.Errorf("restore into %s: %w", into, err)
	}
	made, err := os.MkdirTemp(filepath.Dir(into), ".restore-")
	if err != nil {
		return info, fmt.Errorf("restore into %s: %w", into, err)
	}
	defer func() { _ = os.RemoveAll(made) }()
	o.Dir = made
	d, err := o.embedded(ctx, quiet)
	if err != nil {
		return info, err
	}
	if err := errors.Join(store.Fill(ctx, d, r), d.Close()); err != nil {
		return info, err
	}
	if err := unix.Rename(made, into); err != nil { // an empty directory gives way
		return info, fmt.Errorf("restore into %s: %w", into, err)
	}
	return info, syncDir(filepath.Dir(into))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

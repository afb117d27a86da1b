package store

import (
	"context"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/archive"
)

// transient are the records of the hubs that run now: they are in no backup.
const transient = "hub/"

// Backup writes all records of one moment in their stored form: sealed ones stay sealed, with the
// key that only the passphrase opens.
func (s *Store) Backup(ctx context.Context, w io.Writer) error { return Backup(ctx, s.db, w) }

// Backup is Store.Backup of a database that nobody has unsealed.
func Backup(ctx context.Context, db DB, w io.Writer) error {
	var out *archive.Writer
	err := db.Pages(ctx, "", func(rev int64, page []Record) (err error) {
		if out == nil {
			if out, err = archive.NewWriter(w, archive.Info{Made: time.Now().UTC(), Revision: rev}); err != nil {
				return err
			}
		}
		for _, r := range page {
			if r.Key == "" || strings.HasPrefix(r.Key, transient) {
				continue
			}
			if err := out.Add(r.Key, r.Value); err != nil {
				return fmt.Errorf("write the backup: %w", err)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	return out.Close()
}

// Check reads a backup and checks that it is complete and has the key of its sealed records.
func Check(r io.Reader) (archive.Info, error) {
	sealed := false
	info, err := archive.Read(r, func(key string, _ []byte) error {
		sealed = sealed || key == sealKey
		return nil
	})
	if err == nil && !sealed {
		err = fmt.Errorf("the backup lacks the key that seals its records: %w", errdefs.ErrDataLoss)
	}
	return info, err
}

// Fill writes the records of a backup into a database that has none. The key of sealed records comes last: without it
// no hub starts. FailedPrecondition if there are records.
func Fill(ctx context.Context, db DB, r io.Reader) error {
	errSome := fmt.Errorf("there are records of a hub already: %w", errdefs.ErrFailedPrecondition)
	err := db.Pages(ctx, "", func(_ int64, page []Record) error {
		if len(page) > 0 {
			return errSome
		}
		return nil
	})
	if err != nil {
		return err
	}
	var writes []Write
	size := 0
	flush := func() error {
		if len(writes) == 0 {
			return nil
		}
		_, err := db.Commit(ctx, writes)
		writes, size = nil, 0
		return err
	}
	last := Write{Key: sealKey, If: Absent}
	_, err = archive.Read(r, func(key string, value []byte) error {
		if key == sealKey {
			last.Value = value
			return nil
		}
		if len(writes) == MaxWrites || size+len(value) > MaxValue {
			if err := flush(); err != nil {
				return err
			}
		}
		writes, size = append(writes, Write{Key: key, Value: value, If: Absent}), size+len(value)
		return nil
	})
	if err != nil {
		return err
	}
	if err := flush(); err != nil {
		return err
	}
	_, err = db.Commit(ctx, []Write{last})
	return err
}

package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/hub/archive"
)

// transient are the records of the hubs that run now: they are in no backup.
const transient = "hub/"

// Backup writes all records as they are at one moment and as they are stored: what is sealed stays
// sealed, with the key that only the passphrase opens.
func (s *Store) Backup(ctx context.Context, w io.Writer) error {
	from, end, rev := s.prefix, clientv3.GetPrefixRangeEnd(s.prefix), int64(0)
	var out *archive.Writer
	for {
		resp, err := s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(page), clientv3.WithRev(rev))
		if err != nil {
			return fmt.Errorf("read the records: %w", classed(err))
		}
		if out == nil {
			rev = resp.Header.GetRevision()
			if out, err = archive.NewWriter(w, archive.Info{Made: time.Now().UTC(), Revision: rev}); err != nil {
				return err
			}
		}
		for _, kv := range resp.Kvs {
			key := strings.TrimPrefix(string(kv.Key), s.prefix)
			if key == "" || strings.HasPrefix(key, transient) {
				continue
			}
			if err := out.Add(key, kv.Value); err != nil {
				return fmt.Errorf("write the backup: %w", err)
			}
		}
		if !resp.More {
			return out.Close()
		}
		from = string(resp.Kvs[len(resp.Kvs)-1].Key) + "\x00"
	}
}

// BackupOf writes the records of a store that no hub has open. It needs no passphrase.
func BackupOf(ctx context.Context, o Options, w io.Writer) error {
	if _, err := os.Lstat(filepath.Join(o.Dir, "etcd")); err != nil {
		return fmt.Errorf("%s is no directory of a hub: %w: %w", o.Dir, errdefs.ErrInvalidArgument, err)
	}
	s, err := embedded(ctx, o)
	if err != nil {
		return err
	}
	return errors.Join(s.Backup(ctx, w), s.Close())
}

// Restore makes a store of a backup: in a directory that is empty or not there, or in the user's etcd, if it has no record with the
// prefix. The backup is read twice, the first time to see that it is whole. FailedPrecondition when there is a store
// already. Nothing is left of one that fails, in a directory.
func Restore(ctx context.Context, o Options, r io.ReadSeeker) (info archive.Info, err error) {
	sealed := false
	if info, err = archive.Read(r, func(key string, _ []byte) error {
		sealed = sealed || key == sealKey
		return nil
	}); err != nil {
		return info, err
	}
	if !sealed {
		return info, fmt.Errorf("the backup has no key by which records are sealed: %w", errdefs.ErrDataLoss)
	}
	if _, err := r.Seek(0, io.SeekStart); err != nil {
		return info, err
	}
	if o.Remote != nil {
		s, err := remote(ctx, o)
		if err != nil {
			return info, err
		}
		return info, errors.Join(s.fill(ctx, r), s.Close())
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
	s, err := embedded(ctx, o)
	if err != nil {
		return info, err
	}
	if err := errors.Join(s.fill(ctx, r), s.Close()); err != nil {
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

// fill writes the records of a backup into a store that has none. The key by which records are sealed comes last: without
// it no hub starts.
func (s *Store) fill(ctx context.Context, r io.Reader) error {
	resp, err := s.client.Get(ctx, s.prefix, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil {
		return fmt.Errorf("look for records: %w", classed(err))
	}
	if len(resp.Kvs) > 0 {
		return fmt.Errorf("there are records below %s already: %w", s.prefix, errdefs.ErrFailedPrecondition)
	}
	var writes []Write
	var values [][]byte
	size := 0
	flush := func() error {
		if len(writes) == 0 {
			return nil
		}
		_, err := s.commit(ctx, writes, values)
		writes, values, size = nil, nil, 0
		return err
	}
	var last []byte
	_, err = archive.Read(r, func(key string, value []byte) error {
		if key == sealKey {
			last = value
			return nil
		}
		if len(writes) == MaxWrites || size+len(value) > MaxValue {
			if err := flush(); err != nil {
				return err
			}
		}
		writes, values, size = append(writes, Write{Key: key, If: Absent}), append(values, value), size+len(value)
		return nil
	})
	if err != nil {
		return err
	}
	if err := flush(); err != nil {
		return err
	}
	_, err = s.commit(ctx, []Write{{Key: sealKey, If: Absent}}, [][]byte{last})
	return err
}

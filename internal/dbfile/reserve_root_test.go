package dbfile_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"go.etcd.io/bbolt"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/dbfile"
	"github.com/longshore/longshore/internal/roottest"
)

// TestATransactionUsesTheReserveOfAFullDisk fills a file system to the last page. A database opens
// and reads all that it had; a transaction that needs new pages succeeds with the reserve, and
// fails without one.
func TestATransactionUsesTheReserveOfAFullDisk(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		dir := t.TempDir()
		must(t, unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"))
		t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
		reserve := dbfile.NewReserve(filepath.Join(dir, "reserve"), 1<<20, 8)
		must(t, reserve.Fill())
		o := dbfile.Options{Path: filepath.Join(dir, "x.db"), Volatile: true, Full: reserve.Release}
		put := func(db *dbfile.DB, key string) error {
			return db.Update(func(tx *dbfile.Tx) error { return tx.Put(key, make([]byte, 256<<10), "b") })
		}
		db, err := dbfile.Open(o)
		must(t, err)
		must(t, put(db, "before"))
		must(t, db.Close())
		fillAll := func() {
			f, err := os.OpenFile(filepath.Join(dir, "filler"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
			must(t, err)
			for err == nil {
				_, err = f.Write(make([]byte, 4096))
			}
			must(t, f.Close())
		}
		fillAll()
		db, err = dbfile.Open(o)
		must(t, err)
		must(t, put(db, "with the reserve"))
		if _, err := os.Stat(filepath.Join(dir, "reserve")); err == nil {
			t.Error("the reserve is there, so the disk was not full")
		}
		fillAll()
		must(t, reserve.Fill()) // there is no room for it
		for i := 0; err == nil; i++ {
			err = put(db, fmt.Sprint("without it ", i))
		}
		if !dbfile.IsFull(err) {
			t.Errorf("without the reserve: %v", err)
		}
		must(t, db.Close())
		db, err = dbfile.Open(o)
		must(t, err)
		must(t, db.View(func(tx *bbolt.Tx) error {
			for _, key := range []string{"before", "with the reserve"} {
				if n := len(tx.Bucket([]byte("b")).Get([]byte(key))); n != 256<<10 {
					t.Errorf("%q has %d bytes", key, n)
				}
			}
			return nil
		}))
		must(t, os.Remove(filepath.Join(dir, "filler")))
		must(t, reserve.Fill())
		if !reserve.Release() || reserve.Release() {
			t.Error("the reserve is there again once there is room, and is released once")
		}
		must(t, db.Close())
	})
}

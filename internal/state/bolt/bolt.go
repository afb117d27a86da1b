// Package bolt opens the node's store: a state.Store that keeps its content in bbolt files and a
// log.
//
// Records and events are in live.db below the state directory (a tmpfs in production, so it is
// never synced). Key-value stores that outlive a boot are in durable.db below the root directory
// (always synced), and so are the records of durable objects, at Sync or a second later. Every event
// is also copied to events.log there, for a list of the running objects after a reboot.
//
// It does not know the meaning of the records. Start at Open; log.go is the event log's file.
package bolt

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"go.etcd.io/bbolt"

	"github.com/longshore/longshore/internal/dbfile"
	"github.com/longshore/longshore/internal/state"
	"github.com/longshore/longshore/internal/weaken"
)

// schema is the number of the files' format that this code writes, and OldestSchema the oldest one that it reads.
const (
	schema       = 1
	OldestSchema = 1
)

// Schema returns the number of the files' format that this program writes: schema, except in builds for tests.
func Schema() int { return weaken.Mark("state", schema) }

// Options says where the store's files are.
type Options struct {
	// State is the directory for files that need not survive a boot, Root for those that must. Both
	// are created if necessary.
	State, Root string
	// EventLimit is how many events stay readable; 0 is state.DefaultEventLimit.
	EventLimit int
	// LogBytes is the size at which events.log is rotated; 0 is 8 MiB.
	LogBytes int64
	// BootID identifies this boot of the node. Live records of another boot are deleted. With ""
	// the kernel's is used.
	BootID string
	// StateFull and RootFull are called when the file system of State or Root is full, and report
	// whether they have freed space; the write is then tried once more. May be nil.
	StateFull, RootFull func() bool
	// Logger may be nil.
	Logger *slog.Logger
	// Observer is called with the duration of each update; may be nil.
	Observer func(took time.Duration)
}

// Open opens or creates the store in o's directories. Files of a newer schema are
// FailedPrecondition and are not changed; a store that another process has open is Unavailable.
// Closing the store syncs the event log and closes the files.
func Open(o Options) (*state.Store, error) {
	if o.State == "" || o.Root == "" {
		return nil, fmt.Errorf("open store: state and root directory: %w", errdefs.ErrInvalidArgument)
	}
	if o.EventLimit == 0 {
		o.EventLimit = state.DefaultEventLimit
	}
	if o.LogBytes == 0 {
		o.LogBytes = 8 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	for _, dir := range []string{o.State, o.Root} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("open store: %w", err)
		}
	}
	f, err := openFiles(o)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", err)
	}
	contents, err := f.load(o.EventLimit)
	if err != nil {
		return nil, fmt.Errorf("open store: %w", errors.Join(err, f.Close()))
	}
	return state.New(o.EventLimit, contents, f, o.Observer), nil
}

// Durable reports whether the root directory has records of durable objects. It makes nothing.
func Durable(o Options) (found bool, err error) {
	if _, err := os.Stat(o.durable().Path); err != nil {
		return false, nil //nolint:nilerr // no agent has had this directory
	}
	db, err := dbfile.Open(o.durable())
	if err != nil {
		return false, err
	}
	err = db.View(func(tx *bbolt.Tx) error {
		for _, kind := range []string{state.KindSandbox, state.KindContainer} {
			if b := tx.Bucket([]byte(kind)); b != nil {
				key, _ := b.Cursor().First()
				found = found || key != nil
			}
		}
		return nil
	})
	return found, errors.Join(err, db.Close())
}

// bootID returns the kernel's identifier of this boot.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(b), err
}

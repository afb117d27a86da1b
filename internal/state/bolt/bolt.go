// Package bolt opens the node's store: a state.Store that keeps its contents in bbolt
// files and a log.
//
// Records and events stand in live.db below the state directory (a tmpfs in
// production, so it is never synced), drawers that outlive a boot in durable.db below
// the root directory (always synced), and every event is copied into events.log
// there, which tells after a reboot what had been running.
//
// It must not know what the records mean. Start at Open; log.go is the event log's
// file.
package bolt

import (
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/state"
)

// Schema is the version of the files that this package writes.
const Schema = 1

// Options says where a store lives.
type Options struct {
	// State is the directory of what a boot may lose, Root of what it may not.
	// Both are made if need be.
	State, Root string
	// EventLimit is how many events stay readable; 0 is state.DefaultEventLimit.
	EventLimit int
	// LogBytes starts a new events.log when it has grown so far; 0 is 8 MiB.
	LogBytes int64
	// BootID names this boot of the node. Live records of another boot are
	// thrown away. "" asks the kernel.
	BootID string
	// Logger may be nil.
	Logger *slog.Logger
}

// Open opens the store in o's directories, or makes it. Files of a newer
// schema are FailedPrecondition and stay as they are; a store that another
// process holds is Unavailable. Its Close syncs the event log and closes the files.
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
	return state.New(o.EventLimit, contents, f), nil
}

// bootID asks the kernel which boot this is.
func bootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return string(b), err
}

package image

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

// trash is where directories go that are no longer wanted: moving them there is
// quick whatever is below them, removing them is done in the background.
type trash struct {
	dir     string
	log     *slog.Logger
	next    atomic.Uint64
	removal sync.WaitGroup
}

func newTrash(dir string, log *slog.Logger) *trash {
	t := &trash{dir: dir, log: log}
	t.next.Store(uint64(time.Now().UnixNano())) // no name of an earlier process
	return t
}

// add moves path away. What is not there is success.
func (t *trash) add(path string) error {
	err := os.Rename(path, filepath.Join(t.dir, strconv.FormatUint(t.next.Add(1), 36)))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// empty starts to remove what is in the trash.
func (t *trash) empty() {
	t.removal.Go(func() {
		entries, err := os.ReadDir(t.dir)
		if err != nil {
			t.log.Warn("empty trash", "error", err)
			return
		}
		for _, e := range entries {
			if err := os.RemoveAll(filepath.Join(t.dir, e.Name())); err != nil {
				t.log.Warn("empty trash", "path", filepath.Join(t.dir, e.Name()), "error", err)
			}
		}
	})
}

// wait waits until what was started to be removed is gone.
func (t *trash) wait() { t.removal.Wait() }

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

// trash is the directory for files and directories to be deleted. Moving a file of any size there
// is quick; deleting it is done in the background.
type trash struct {
	dir     string
	log     *slog.Logger
	next    atomic.Uint64
	removal sync.WaitGroup

	closing chan struct{} // closed by wait: nothing is waited for any more
	close   func()

	mu    sync.Mutex // guards busy, asked
	busy  bool       // a goroutine deletes
	asked bool       // empty was called since that goroutine began its sweep
}

func newTrash(dir string, log *slog.Logger) *trash {
	t := &trash{dir: dir, log: log, closing: make(chan struct{})}
	t.close = sync.OnceFunc(func() { close(t.closing) })
	t.next.Store(uint64(time.Now().UnixNano())) // different from the names of an earlier process
	return t
}

// add moves path to the trash. It succeeds when path does not exist.
func (t *trash) add(path string) error {
	err := os.Rename(path, filepath.Join(t.dir, strconv.FormatUint(t.next.Add(1), 36)))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// empty starts to delete the trash's files, and those that are added meanwhile. Only one goroutine
// at a time does it: when many containers are removed at once, others would try to delete the same
// directories. And it waits a little before it begins, to leave the processors to the removal of
// containers.
func (t *trash) empty() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.asked = true
	if t.busy {
		return
	}
	t.busy = true
	t.removal.Go(func() {
		for t.more() {
			timer := time.NewTimer(trashDelay)
			select {
			case <-timer.C:
			case <-t.closing:
			}
			timer.Stop()
			t.sweep()
		}
	})
}

// trashDelay is from the first call of empty to the sweep.
const trashDelay = 500 * time.Millisecond

// more reports whether empty was called since the last sweep began. When it was not,
// the goroutine that asks ends.
func (t *trash) more() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.busy, t.asked = t.asked, false
	return t.busy
}

// sweep deletes the trash's present files.
func (t *trash) sweep() {
	entries, err := os.ReadDir(t.dir)
	if err != nil {
		t.log.Warn("could not empty the trash of the image store", "error", err)
		return
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(t.dir, e.Name())); err != nil {
			t.log.Warn("could not delete from the trash of the image store", "path", filepath.Join(t.dir, e.Name()), "error", err)
		}
	}
}

// wait finishes the work of empty without delays, and waits for it. The store must not use the
// trash afterwards.
func (t *trash) wait() {
	t.close()
	t.removal.Wait()
}

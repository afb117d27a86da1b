package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

const (
	statsFresh   = 10 * time.Second
	statsEntries = 1_000_000 // with more files than this the size is unknown
)

// size is the size of a container's own layer. Measuring it reads the attributes of every file,
// so callers get the last result and its time, and only the first caller waits.
type size struct {
	mu    sync.Mutex // guards stats, renewing; held while the first caller measures
	stats core.RootStats
	// renewing says that a new measurement is in progress.
	renewing bool
}

// sizing measures layers in the background, one after the other.
type sizing struct {
	ctx  context.Context //nolint:containedctx // of the background work, until stop
	stop context.CancelFunc
	turn chan struct{}
	wg   sync.WaitGroup
	log  *slog.Logger
}

func newSizing(log *slog.Logger) *sizing {
	s := &sizing{turn: make(chan struct{}, 1), log: log}
	s.ctx, s.stop = context.WithCancel(context.Background())
	return s
}

func (s *sizing) close() {
	s.stop()
	s.wg.Wait()
}

// RootStats implements core.Images.
func (s *Store) RootStats(ctx context.Context, container core.ID) (core.RootStats, error) {
	s.mu.RLock()
	co := s.checkouts[container]
	s.mu.RUnlock()
	if co == nil {
		return core.RootStats{}, fmt.Errorf("root of container %s: %w", container, errdefs.ErrNotFound)
	}
	now := s.now()
	if co.ReadOnly {
		return core.RootStats{Bytes: core.Known(0), Inodes: core.Known(0), At: now, Filesystem: filesystemOf(s)}, nil
	}
	dir := filepath.Join(s.rec.checkoutPath(container), "upper")
	co.size.mu.Lock()
	defer co.size.mu.Unlock()
	switch at := co.size.stats.At; {
	case at.IsZero():
		found, err := walk(ctx, dir)
		if err != nil {
			return core.RootStats{}, fmt.Errorf("root of container %s: %w", container, err)
		}
		found.At = now
		co.size.stats = found
	case now.Sub(at) >= statsFresh && !co.size.renewing && s.sizing.ctx.Err() == nil:
		co.size.renewing = true
		s.sizing.wg.Go(func() { s.renew(&co.size, dir) })
	}
	st := co.size.stats
	st.Filesystem = filesystemOf(s)
	return st, nil
}

// renew measures a layer again, when it is its turn.
func (s *Store) renew(z *size, dir string) {
	var found core.RootStats
	var err error
	select {
	case s.sizing.turn <- struct{}{}:
		at := s.now()
		found, err = walk(s.sizing.ctx, dir)
		found.At = at
		<-s.sizing.turn
	case <-s.sizing.ctx.Done():
		err = s.sizing.ctx.Err()
	}
	if err != nil && s.sizing.ctx.Err() == nil {
		s.log.Warn("could not measure a container's layer; its last known size stays", "path", dir, "error", err)
	}
	z.mu.Lock()
	defer z.mu.Unlock()
	z.renewing = false
	if err == nil {
		z.stats = found
	}
}

// filesystemOf returns the stats of the store's filesystem.
func filesystemOf(s *Store) core.FilesystemStats {
	var st unix.Statfs_t
	if err := unix.Statfs(s.root, &st); err != nil || st.Bsize <= 0 {
		return core.FilesystemStats{}
	}
	return core.FilesystemStats{
		Device: s.device(), Bytes: core.Known(st.Blocks * uint64(st.Bsize)),
		Inodes: core.Known(st.Files), FreeInodes: core.Known(st.Ffree),
	}
}

// deviceOf returns the device of path's filesystem; "" if mountinfo does not name it.
func deviceOf(path, mountinfo string) (device string) {
	b, err := os.ReadFile(mountinfo)
	if err != nil {
		return ""
	}
	longest := -1
	for line := range strings.Lines(string(b)) {
		// "36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw"
		left, right, ok := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if !ok || len(l) < 5 || len(r) < 2 {
			continue
		}
		at := l[4] // a blank in it is escaped as octal, and our paths have none
		below := at == "/" || path == at || strings.HasPrefix(path, at+"/")
		if below && len(at) >= longest { // of two mounts at one place the later one is on top
			longest, device = len(at), r[1]
		}
	}
	return device
}

// walk adds up the files in and below dir, every inode once.
func walk(ctx context.Context, dir string) (core.RootStats, error) {
	var bytes, inodes uint64
	linked := map[uint64]bool{}
	tooMany := errors.New("too many files")
	err := filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // files may be removed meanwhile
		}
		if errors.Is(err, unix.ENAMETOOLONG) { // the program has nested its directories deeper than a path can name
			return tooMany
		}
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if errors.Is(err, unix.ENAMETOOLONG) {
			return tooMany
		}
		if err != nil {
			return nil //nolint:nilerr // removed meanwhile
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		if !ok || (st.Nlink > 1 && !fi.IsDir() && linked[st.Ino]) {
			return nil
		}
		if st.Nlink > 1 && !fi.IsDir() {
			linked[st.Ino] = true
		}
		bytes += uint64(st.Blocks) * 512
		if inodes++; inodes > statsEntries {
			return tooMany
		}
		return ctx.Err()
	})
	switch {
	case errors.Is(err, tooMany):
		return core.RootStats{}, nil
	case err != nil:
		return core.RootStats{}, err
	}
	return core.RootStats{Bytes: core.Known(bytes), Inodes: core.Known(inodes)}, nil
}

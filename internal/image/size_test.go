package image

import (
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
)

// TestSizesAreToldWithTheirTime: an old size is returned at once, with the time of its
// measurement, while it is measured again in the background.
func TestSizesAreToldWithTheirTime(t *testing.T) {
	root := t.TempDir()
	now := time.Unix(1000, 0)
	s := &Store{
		root: root, log: slog.New(slog.DiscardHandler), now: func() time.Time { return now }, rec: &records{root: root},
		checkouts: map[core.ID]*checkout{"c": {}, "ro": {ReadOnly: true}}, device: func() string { return "" },
	}
	s.sizing = newSizing(s.log)
	upper := filepath.Join(s.rec.checkoutPath("c"), "upper")
	if err := os.MkdirAll(upper, 0o700); err != nil {
		t.Fatal(err)
	}
	read := func(id core.ID, inodes uint64, at time.Time) {
		t.Helper()
		st, err := s.RootStats(t.Context(), id)
		if err != nil || st.Inodes != core.Known(inodes) || !st.At.Equal(at) || !st.Filesystem.Bytes.OK {
			t.Errorf("%s at %v: %+v, %v; want %d inodes at %v", id, now, st, err, inodes, at)
		}
	}
	read("c", 1, now)
	if err := os.WriteFile(filepath.Join(upper, "f"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	first := now
	now = now.Add(statsFresh - 1)
	read("c", 1, first)
	now = now.Add(1)
	read("c", 1, first) // and starts a measurement
	s.sizing.wg.Wait()
	read("c", 2, now)
	read("ro", 0, now)
	now = now.Add(statsFresh)
	s.sizing.close()
	read("c", 2, now.Add(-statsFresh)) // closed: nothing is measured any more
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	s.checkouts["d"] = &checkout{}
	if err := os.MkdirAll(filepath.Join(s.rec.checkoutPath("d"), "upper"), 0o700); err != nil {
		t.Fatal(err)
	}
	if st, err := s.RootStats(ctx, "d"); err == nil {
		t.Errorf("a caller who has gone was told %+v", st)
	}
	read("d", 1, now)
}

func TestDeviceOf(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mountinfo")
	text := `21 1 8:1 / / rw - ext4 /dev/sda1 rw
22 21 8:2 / /var rw shared:1 - xfs /dev/sda2 rw
23 22 0:5 / /var/lib/x rw - tmpfs first rw
24 22 0:6 / /var/lib/x rw - tmpfs second rw
broken
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		"/": "/dev/sda1", "/variable": "/dev/sda1", "/var": "/dev/sda2", "/var/lib/xy": "/dev/sda2", "/var/lib/x/y": "second",
	} {
		if got := deviceOf(path, file); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
	if got := deviceOf("/", file+"x"); got != "" {
		t.Errorf("without mountinfo: %q", got)
	}
}

// TestDeepDirectoriesHaveNoSize: a program that nests directories deeper than a path can name has a layer of unknown size.
func TestDeepDirectoriesHaveNoSize(t *testing.T) {
	top := t.TempDir()
	dir, err := os.OpenRoot(top)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("d", 200)
	for range 30 {
		if err := dir.Mkdir(name, 0o700); err != nil {
			t.Fatal(err)
		}
		below, err := dir.OpenRoot(name)
		if err != nil {
			t.Fatal(err)
		}
		_ = dir.Close()
		dir = below
	}
	_ = dir.Close()
	if st, err := walk(t.Context(), top); err != nil || st.Bytes.OK {
		t.Errorf("%+v, %v", st, err)
	}
}

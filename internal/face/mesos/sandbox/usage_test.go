package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func writeFile(t *testing.T, path string, size int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		_, err = f.Write(make([]byte, size))
	}
	if err == nil {
		err = errors.Join(f.Sync(), f.Close()) // its usage is final once it is on disk
	}
	if err != nil {
		t.Fatal(err)
	}
}

func mustUsage(t *testing.T, dir string) uint64 {
	t.Helper()
	n, err := Usage(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestUsage: blocks and not sizes, each file once, nothing by links.
func TestUsage(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(other, "far"), 1<<20)
	empty := mustUsage(t, dir)
	if err := os.MkdirAll(filepath.Join(dir, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	dirs := mustUsage(t, dir)
	writeFile(t, filepath.Join(dir, "a", "b", "file"), 1<<20)
	for name, do := range map[string]func() error{
		"a hole":      func() error { return os.Truncate(filepath.Join(dir, "a", "b", "file"), 1<<30) },
		"hard link":   func() error { return os.Link(filepath.Join(dir, "a", "b", "file"), filepath.Join(dir, "again")) },
		"file link":   func() error { return os.Symlink(filepath.Join(other, "far"), filepath.Join(dir, "l")) },
		"link to dir": func() error { return os.Symlink(other, filepath.Join(dir, "m")) },
		"link up":     func() error { return os.Symlink("..", filepath.Join(dir, "a", "up")) },
		"FIFO":        func() error { return unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600) },
	} {
		if err := do(); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	got := mustUsage(t, dir)
	if dirs < empty || got < dirs+1<<20 || got > dirs+1<<20+256<<10 {
		t.Errorf("empty %d, with directories %d, with a file of 1 MiB %d", empty, dirs, got)
	}
	if _, err := Usage(t.Context(), filepath.Join(dir, "none")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("of nothing: %v", err)
	}
	if _, err := Usage(t.Context(), filepath.Join(dir, "m")); err == nil {
		t.Error("a link was followed")
	}
}

// TestTooDeep: a tree that needs too many descriptors is reported as too deep.
func TestTooDeep(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	if err := root.MkdirAll(strings.Repeat("d/", maxDepth-1), 0o700); err != nil {
		t.Fatal(err)
	}
	mustUsage(t, dir)
	if err := root.Mkdir(strings.Repeat("d/", maxDepth-1)+"d", 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := Usage(t.Context(), dir); !errors.Is(err, ErrTooDeep) {
		t.Errorf("%v", err)
	}
}

package mirror

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o640); err != nil {
		t.Fatal(err)
	}
}

func link(t *testing.T, target, path string) {
	t.Helper()
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
}

// tree returns the entries below a directory, as text.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		st, err := d.Info()
		if err != nil {
			return err
		}
		line := name + " " + st.Mode().String()
		switch {
		case st.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(path)
			line = name + " -> " + target
		case st.Mode().IsRegular():
			b, _ := os.ReadFile(path)
			line += " " + string(b) + " " + st.ModTime().UTC().Format(time.RFC3339Nano)
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(all, "\n")
}

// volume makes a directory as kubelet makes a ConfigMap's.
func volume(t *testing.T) (from, to string) {
	t.Helper()
	dir := t.TempDir()
	from, to = filepath.Join(dir, "from"), filepath.Join(dir, "to")
	write(t, from+"/..one/key", "old")
	link(t, "..one", from+"/..data")
	link(t, "..data/key", from+"/key")
	return from, to
}

func synced(t *testing.T, m *Mirror, want bool) {
	t.Helper()
	if got, err := m.Sync(); err != nil || got != want {
		t.Errorf("sync: %t, %v; want %t", got, err, want)
	}
	if a, b := tree(t, m.from), tree(t, m.to); a != b {
		t.Errorf("the copy is\n%s\nand the original\n%s", b, a)
	}
}

// TestSync: the copy follows its original through kubelet's changes and others.
func TestSync(t *testing.T) {
	from, to := volume(t)
	m, err := New(from, to, os.OpenRoot)
	if err != nil {
		t.Fatal(err)
	}
	synced(t, m, true)
	synced(t, m, false)
	write(t, from+"/..two/key", "new")
	write(t, from+"/..two/more", "more")
	link(t, "..two", from+"/..tmp")
	if err := os.Rename(from+"/..tmp", from+"/..data"); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(from + "/..one"); err != nil {
		t.Fatal(err)
	}
	link(t, "..data/more", from+"/more")
	synced(t, m, true)
	for what, do := range map[string]func() error{
		"a mode":           func() error { return os.Chmod(from+"/..two/key", 0o400) },
		"a directory":      func() error { return os.Chmod(from+"/..two", 0o700) },
		"a file less":      func() error { return os.Remove(from + "/more") },
		"a file's content": func() error { return os.WriteFile(from+"/..two/more", []byte("less"), 0o640) },
	} {
		if err := do(); err != nil {
			t.Fatal(err)
		}
		t.Log(what)
		synced(t, m, true)
	}
	// Kinds change places.
	for _, name := range []string{"/..data", "/key"} {
		if err := os.Remove(from + name); err != nil {
			t.Fatal(err)
		}
	}
	write(t, from+"/..data", "a file")
	write(t, from+"/key/in/it", "a directory")
	synced(t, m, true)
	if err := os.RemoveAll(from + "/key"); err != nil {
		t.Fatal(err)
	}
	write(t, from+"/other/in/it", "stays")
	link(t, "other", from+"/key")
	synced(t, m, true)
	if err := syscall.Mkfifo(from+"/pipe", 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Sync(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(to + "/pipe"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a pipe: %v", err)
	}
}

// TestNoReaderSeesHalf: a reader that follows the link finds a whole version, while they change.
func TestNoReaderSeesHalf(t *testing.T) {
	from, to := volume(t)
	write(t, from+"/..one/other", "old")
	m, err := New(from, to, os.OpenRoot)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Sync(); err != nil {
		t.Fatal(err)
	}
	stop, done := make(chan struct{}), make(chan string)
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			data, err := os.OpenRoot(to + "/..data")
			if err != nil {
				continue // removed between the lookup of the link and the opening
			}
			key, err := data.ReadFile("key")
			other, oerr := data.ReadFile("other")
			_ = data.Close()
			if err == nil && oerr == nil && string(key) != string(other) {
				done <- fmt.Sprintf("%q beside %q", key, other)
				return
			}
		}
	}()
	before := "..one"
	for i := range 30 {
		now := fmt.Sprintf("..v%d", i)
		write(t, from+"/"+now+"/key", now)
		write(t, from+"/"+now+"/other", now)
		link(t, now, from+"/..tmp")
		if err := os.Rename(from+"/..tmp", from+"/..data"); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(from + "/" + before); err != nil {
			t.Fatal(err)
		}
		before = now
		if _, err := m.Sync(); err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	if half, ok := <-done; ok {
		t.Errorf("a reader saw %s", half)
	}
	if a, b := tree(t, from), tree(t, to); a != b {
		t.Errorf("the copy is\n%s\nand the original\n%s", b, a)
	}
}

func TestLimits(t *testing.T) {
	from, to := volume(t) // five entries with itself
	m, err := New(from, to, os.OpenRoot)
	if err != nil {
		t.Fatal(err)
	}
	for i := range MaxEntries - 5 {
		write(t, fmt.Sprintf("%s/f%d", from, i), "")
	}
	synced(t, m, true)
	was := tree(t, to)
	write(t, from+"/one-too-many", "")
	if _, err := m.Sync(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too many: %v", err)
	}
	if err := os.Remove(from + "/one-too-many"); err != nil {
		t.Fatal(err)
	}
	write(t, from+"/f0", strings.Repeat("x", MaxBytes))
	if _, err := m.Sync(); !errors.Is(err, ErrTooLarge) { // the links count, too
		t.Errorf("too large: %v", err)
	}
	if now := tree(t, to); now != was {
		t.Errorf("the copy of what is too large is\n%s", now)
	}
	if _, err := New(from+"/..data", to, os.OpenRoot); err == nil {
		t.Error("a link was taken for what it leads to")
	}
	if _, err := New(from+"/nothing", to, os.OpenRoot); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("nothing: %v", err)
	}
}

// TestFile: the copy of a file stays the same file, which a mount may show.
func TestFile(t *testing.T) {
	dir := t.TempDir()
	from, to := dir+"/from", dir+"/to"
	write(t, from, "a long text")
	m, err := New(from, to, os.OpenRoot)
	if err != nil {
		t.Fatal(err)
	}
	synced := func(want string) {
		t.Helper()
		if changed, err := m.Sync(); err != nil || !changed {
			t.Errorf("sync: %t, %v", changed, err)
		}
		if b, err := os.ReadFile(to); err != nil || string(b) != want {
			t.Errorf("the copy is %q, %v; want %q", b, err, want)
		}
	}
	synced("a long text")
	before, _ := os.Stat(to)
	write(t, from, "short")
	synced("short")
	if after, _ := os.Stat(to); !os.SameFile(before, after) {
		t.Error("the copy is another file")
	}
	if err := os.Remove(from); err != nil {
		t.Fatal(err)
	}
	if _, err := m.Sync(); !errors.Is(err, ErrBusy) {
		t.Errorf("the original is gone: %v", err)
	}
}

// TestNoLinkLeadsOut: a container that may write to its copy has nothing else written.
func TestNoLinkLeadsOut(t *testing.T) {
	from, to := volume(t)
	m, err := New(from, to, os.OpenRoot)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Sync(); err != nil {
		t.Fatal(err)
	}
	out := t.TempDir()
	if err := os.RemoveAll(to + "/..one"); err != nil {
		t.Fatal(err)
	}
	link(t, out, to+"/..one")
	write(t, from+"/..one/key", "new")
	_, _ = m.Sync() // it may fail
	if names, err := os.ReadDir(out); err != nil || len(names) > 0 {
		t.Errorf("it has written %v, %v", slices.Collect(func(yield func(string) bool) {
			for _, n := range names {
				yield(n.Name())
			}
		}), err)
	}
}

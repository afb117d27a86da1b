package guest

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/guest/mirror"
	"github.com/longshore/longshore/internal/roottest"
)

// small mounts a tmpfs.
func small(t *testing.T, at, options string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(at, 0o755), unix.Mount("tmpfs", at, "tmpfs", 0, options)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(at, unix.MNT_DETACH) })
}

// fill takes all bytes and all inodes of a small tmpfs, and returns a function that frees them.
func fill(t *testing.T, at string) (free func()) {
	t.Helper()
	dir := filepath.Join(at, "filler")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	err := os.WriteFile(filepath.Join(dir, "bytes"), make([]byte, 1<<20), 0o600)
	for i := 0; !errors.Is(err, unix.ENOSPC) || i == 0; i++ {
		if err != nil && !errors.Is(err, unix.ENOSPC) {
			t.Fatal(err)
		}
		if err = os.WriteFile(filepath.Join(dir, strings.Repeat("x", i+1)), nil, 0o600); i > 200 {
			t.Fatal("it has inodes without end")
		}
	}
	return func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Fatal(err)
		}
	}
}

// names are all of a directory.
func names(t *testing.T, dir string) string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		list = append(list, strings.TrimPrefix(path, dir))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(list, " ")
}

// TestFilesOfTheHostOnAFullDisk: without room, the old file, link or part stays as it was, nothing
// of the attempt fills the disk, and the same call succeeds once there is room.
func TestFilesOfTheHostOnAFullDisk(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		m, dir := ours(t)
		small(t, dir, "size=256k,nr_inodes=40")
		large := bytes.Repeat([]byte("new"), 50<<10)
		copied := func(f File) error {
			f.Path, f.DirMode = filepath.Join(dir, f.Path), 0o755
			return m.CopyFile(f.mine())
		}
		for _, f := range []File{
			{Path: "c/file", Mode: unix.S_IFREG | 0o644, Size: 3, Data: []byte("old")},
			{Path: "c/link", Mode: unix.S_IFLNK | 0o777, Data: []byte("old")},
			{Path: "c/parts", Mode: unix.S_IFREG | 0o644, Size: int64(len(large)), Data: large[:100]}, // begun
		} {
			if err := copied(f); err != nil {
				t.Fatal(err)
			}
		}
		before := names(t, dir)
		free := fill(t, dir)
		for _, f := range []File{
			{Path: "c/file", Mode: unix.S_IFREG | 0o644, Size: int64(len(large)), Data: large},
			{Path: "c/link", Mode: unix.S_IFLNK | 0o777, Data: []byte("new")},
			{Path: "c/more", Mode: unix.S_IFREG | 0o644, Size: 3, Data: []byte("new")},
			{Path: "d/e/f", Mode: unix.S_IFREG | 0o644, Size: 3, Data: []byte("new")},
			{Path: "c/parts", Mode: unix.S_IFREG | 0o644, Size: int64(len(large)), Offset: 100, Data: large[100:]},
		} {
			if err := copied(f); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("%s on a full disk: %v", f.Path, err)
			}
		}
		if b, err := os.ReadFile(filepath.Join(dir, "c/file")); string(b) != "old" {
			t.Errorf("the file has %d bytes, %v", len(b), err)
		}
		if to, err := os.Readlink(filepath.Join(dir, "c/link")); to != "old" {
			t.Errorf("the link leads to %q, %v", to, err)
		}
		free()
		want := strings.Replace(before, " /c/parts"+partSuffix, "", 1)
		if now := names(t, dir); now != want || want == before {
			t.Errorf("the directory has %s, had %s", now, before)
		}
		for _, f := range []File{
			{Path: "c/file", Mode: unix.S_IFREG | 0o644, Size: int64(len(large)), Data: large},
			{Path: "c/link", Mode: unix.S_IFLNK | 0o777, Data: []byte("new")},
		} {
			if err := copied(f); err != nil {
				t.Errorf("%s once there is room: %v", f.Path, err)
			}
		}
	})
}

// TestCopiesOfTheHostOnAFullDisk: a mirror of the host's directory or file keeps its last content
// whole while there is no room, and has the new one at the next sync after that.
func TestCopiesOfTheHostOnAFullDisk(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		from, to := t.TempDir(), filepath.Join(t.TempDir(), "copies")
		small(t, to, "size=512k,nr_inodes=60")
		put := func(text string) {
			t.Helper()
			for _, file := range []string{"file", "dir/data"} {
				if err := errors.Join(os.MkdirAll(filepath.Join(from, "dir"), 0o755), os.WriteFile(filepath.Join(from, file), []byte(text), 0o644)); err != nil {
					t.Fatal(err)
				}
			}
		}
		old, next := strings.Repeat("old\n", 100), strings.Repeat("new\n", 50<<10)
		put(old)
		mirrors := map[string]*mirror.Mirror{}
		for _, name := range []string{"file", "dir"} {
			m, err := mirror.New(filepath.Join(from, name), filepath.Join(to, name), os.OpenRoot)
			if err == nil {
				_, err = m.Sync()
			}
			if err != nil {
				t.Fatal(err)
			}
			mirrors[name] = m
		}
		is := func(want, when string) {
			t.Helper()
			for _, file := range []string{"file", "dir/data"} {
				if b, err := os.ReadFile(filepath.Join(to, file)); string(b) != want {
					t.Errorf("%s: %s has %d bytes from %.8q, want %d; %v", when, file, len(b), b, len(want), err)
				}
			}
		}
		is(old, "at first")
		before := names(t, to)
		free := fill(t, to)
		put(next)
		for name, m := range mirrors {
			if _, err := m.Sync(); !errors.Is(err, unix.ENOSPC) {
				t.Errorf("%s on a full disk: %v", name, err)
			}
		}
		is(old, "on a full disk")
		free()
		if now := names(t, to); now != before {
			t.Errorf("the copies are %s, were %s", now, before)
		}
		for name, m := range mirrors {
			if changed, err := m.Sync(); err != nil || !changed {
				t.Errorf("%s once there is room: %v, %v", name, changed, err)
			}
		}
		is(next, "once there is room")
	})
}

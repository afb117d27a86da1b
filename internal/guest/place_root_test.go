package guest

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath/beneathtest"
	"github.com/longshore/longshore/internal/roottest"
)

// TestPlacesExchanges: a container exchanges a directory on the way to a storage, a volume or a
// file for a link to another one. Nothing is made, mounted, changed or read there, and every mount
// is unmounted.
func TestPlacesExchanges(t *testing.T) { roottest.Run(t, placesExchanges) }

func placesExchanges(t *testing.T) {
	t.Helper()
	m, shared := ours(t)
	other := t.TempDir() // a directory of others
	for _, dir := range []string{"t", "source"} {
		if err := os.Mkdir(filepath.Join(other, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	secret := filepath.Join(other, "file")
	if err := os.WriteFile(secret, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	own := filepath.Join(shared, "own") // the container's
	if err := os.MkdirAll(filepath.Join(own, "d", "source"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(own, "d", "file"), []byte("own"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(other, filepath.Join(own, "l")); err != nil {
		t.Fatal(err)
	}
	before := state(t, other)
	at := func(name string) string { return filepath.Join(own, "d", name) }
	gid := os.Getgid() + 1
	for _, tt := range []struct {
		name string
		do   func() error
	}{
		{"tmpfs", func() error {
			return mountOnce(t, m, Storage{Driver: "ephemeral", Target: at("t"), Options: []string{"size=4096", "fsgid=7"}})
		}},
		{"directory", func() error {
			return mountOnce(t, m, Storage{Driver: "local", Target: at("t"), Options: []string{"mode=0777", "fsgid=7"}})
		}},
		{"bind", func() error {
			return mountOnce(t, m, Storage{Driver: "bind", Source: at("source"), Target: at("b"), Group: &Group{ID: gid}})
		}},
		{"bind of a file", func() error {
			return mountOnce(t, m, Storage{Driver: "bind", Source: at("file"), Target: at("f"), Options: []string{"ro", "nosuid"}})
		}},
		{"resize", func() error {
			err := m.ResizeVolume(at("t"), 1<<20)
			if err != nil && !errors.Is(err, unix.ELOOP) {
				err = nil // nothing is mounted there
			}
			return err
		}},
		{"head", func() error {
			text, err := m.Head(at("file"))
			if text == "secret" {
				t.Error("a file of others was read")
			}
			return err
		}},
		{"usage", func() error { _, err := m.VolumeUsage(at("source")); return err }},
		{"copy", func() error {
			return m.CopyFile(File{Path: at("file"), Mode: unix.S_IFREG | 0o666, DirMode: 0o777, UID: 7, GID: 7, Size: 3, Data: []byte("new")})
		}},
		{"copy of a directory", func() error {
			return m.CopyFile(File{Path: at("t"), Mode: unix.S_IFDIR | 0o777, DirMode: 0o777, UID: 7, GID: 7})
		}},
		{"copy of a link", func() error {
			return m.CopyFile(File{Path: at("file"), Mode: unix.S_IFLNK, DirMode: 0o777, UID: 7, GID: 7, Data: []byte("/etc/passwd")})
		}},
	} {
		stop := beneathtest.Exchange(t, filepath.Join(own, "d"), filepath.Join(own, "l"))
		done, refused := 0, 0
		for range beneathtest.Rounds(t) {
			if err := tt.do(); err != nil {
				refused++
			} else {
				done++
			}
		}
		times := stop()
		if after := state(t, other); after != before {
			t.Fatalf("%s: what belongs to others was\n%s\nand is\n%s", tt.name, before, after)
		}
		t.Logf("%s: done %d times, refused %d times, exchanged %d times", tt.name, done, refused, times)
		if err := tt.do(); err != nil {
			t.Errorf("%s, when nobody exchanges anything: %v", tt.name, err)
		}
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte(own)) || bytes.Contains(mounts, []byte(other)) {
		t.Errorf("mounts are left: %v\n%s", err, mounts)
	}
}

// mountOnce mounts and unmounts a storage. While its place is exchanged, the directory of its mount
// may stay.
func mountOnce(t *testing.T, m *Machine, s Storage) error {
	t.Helper()
	if err := m.Mount(t.Context(), s); err != nil {
		return err
	}
	if err := m.Unmount(t.Context(), s); err != nil && !errors.Is(err, unix.ELOOP) {
		t.Errorf("unmount: %v", err)
	}
	return nil
}

// state describes all that is below a directory.
func state(t *testing.T, dir string) string {
	t.Helper()
	var out strings.Builder
	err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		out.WriteString(strings.Join([]string{path, os.FileMode(st.Mode).String(), string(rune('0' + st.Uid)), string(rune('0' + st.Gid)), string(rune(st.Dev))}, " ") + "\n")
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

package rootfs_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/rootfs"
	"github.com/longshore/longshore/internal/roottest"
)

// mountedAt counts the mounts on path.
func mountedAt(t *testing.T, path string) (n int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if strings.Fields(line)[4] == path {
			n++
		}
	}
	return n
}

func TestADirectoryIsSetApartOnceAndOnlyEmpty(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		t.Helper()
		above := t.TempDir()
		if err := unix.Mount("tmpfs", above, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("", above, "", unix.MS_SHARED, ""); err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Unmount(above, unix.MNT_DETACH) }()
		dir := filepath.Join(above, "dir")
		for range 2 {
			if err := rootfs.MakeOwnMount(dir); err != nil {
				t.Fatal(err)
			}
			if n := mountedAt(t, dir); n != 1 {
				t.Fatalf("%d mounts on it, want 1", n)
			}
		}
		inside := filepath.Join(dir, "inside")
		if err := os.Mkdir(inside, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", inside, "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		if n := mountedAt(t, inside); n != 1 {
			t.Errorf("what is mounted in it is mounted %d times", n)
		}
		if err := unix.Unmount(inside, 0); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if err := rootfs.RemoveOwnMount(dir); err != nil {
				t.Fatal(err)
			}
		}
		if n := mountedAt(t, dir); n != 0 {
			t.Errorf("%d mounts stay", n)
		}
		if _, err := os.Stat(inside); err != nil {
			t.Errorf("what was in it is gone: %v", err)
		}
		if err := rootfs.MakeOwnMount(dir); err != nil || mountedAt(t, dir) != 0 {
			t.Errorf("a directory in use was set apart: %v", err)
		}
		if err := rootfs.RemoveOwnMount(filepath.Join(above, "none")); err != nil {
			t.Errorf("none: %v", err)
		}
	})
}

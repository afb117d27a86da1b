package guest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// loop makes a disk of a file until the test ends.
func loop(t *testing.T, file string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "losetup", "--show", "-f", file).CombinedOutput()
	if err != nil {
		t.Fatalf("losetup %s: %v: %s", file, err, out)
	}
	disk := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.CommandContext(context.WithoutCancel(t.Context()), "losetup", "-d", disk).CombinedOutput(); err != nil {
			t.Errorf("losetup -d %s: %v: %s", disk, err, out)
		}
	})
	return disk
}

// erofs makes a disk with an EROFS of some files.
func erofs(t *testing.T, files map[string]string) string {
	t.Helper()
	dir, at := t.TempDir(), filepath.Join(t.TempDir(), "image")
	for f, text := range files {
		put(t, filepath.Join(dir, f), text)
	}
	if out, err := exec.CommandContext(t.Context(), "mkfs.erofs", at, dir).CombinedOutput(); err != nil {
		t.Fatalf("mkfs.erofs: %v: %s", err, out)
	}
	return loop(t, at)
}

// TestLayersOfErofs: an overlay of layers is mounted, written to and unmounted again, and leaves nothing.
func TestLayersOfErofs(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		if b, err := os.ReadFile("/proc/filesystems"); err != nil || !strings.Contains(string(b), "\terofs\n") {
			t.Skip("this kernel has no erofs")
		}
		if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
			t.Fatal(err)
		}
		top, bottom := erofs(t, map[string]string{"both": "top", "top": "1"}), erofs(t, map[string]string{"both": "bottom", "d/bottom": "2"})
		raw := []string{filepath.Join(t.TempDir(), "ext4"), filepath.Join(t.TempDir(), "broken")}
		for _, f := range raw {
			put(t, f, "")
			if err := os.Truncate(f, 8<<20); err != nil {
				t.Fatal(err)
			}
		}
		if out, err := exec.CommandContext(t.Context(), "mkfs.ext4", "-q", raw[0]).CombinedOutput(); err != nil {
			t.Fatalf("mkfs.ext4: %v: %s", err, out)
		}
		disk, broken := loop(t, raw[0]), loop(t, raw[1])
		const target = containersDir + "/c1/rootfs"
		layer := func(source string, options ...string) Storage {
			s := lower(source, options...)
			s.Target = target
			return s
		}
		m := New()
		mount := func(list ...Storage) error {
			joined, err := JoinLayers(list)
			if err != nil {
				return err
			}
			return m.Mount(t.Context(), joined[0])
		}
		nothing := func() {
			t.Helper()
			if left, err := mountinfo.GetMounts(mountinfo.PrefixFilter(containersDir)); err != nil || len(left) > 0 {
				t.Errorf("still mounted: %v, %v", left, err)
			}
			for _, dir := range []string{layersDir, containersDir + "/c1"} {
				if list, err := os.ReadDir(dir); err == nil && len(list) > 0 {
					t.Errorf("%s has %v", dir, list)
				}
			}
		}
		if err := mount(layer(top, mkdirOption+"{{ mount 0 }}/upper/made:0755", mkdirOption+"{{ mount 1 }}/../../../etc:0755", mkdirOption+"../../up"), layer(bottom)); err == nil || !strings.Contains(err.Error(), "does not have it") {
			t.Errorf("a directory that the lower layer does not have: %v", err)
		}
		nothing()
		if err := mount(layer(top, mkdirOption+"{{ mount 0 }}/upper/made:0755", mkdirOption+"../../up"), layer(bottom)); err != nil {
			t.Fatal(err)
		}
		for f, want := range map[string]string{"both": "top", "top": "1", "d/bottom": "2"} {
			if b, err := os.ReadFile(filepath.Join(target, f)); err != nil || string(b) != want {
				t.Errorf("%s: %q, %v", f, b, err)
			}
		}
		if st, err := os.Stat(filepath.Join(target, "made")); err != nil || !st.IsDir() {
			t.Errorf("the directory that was asked for: %v", err)
		}
		for _, dir := range []string{"/up", "/run/up", "/etc/up"} {
			if _, err := os.Lstat(dir); err == nil {
				t.Errorf("%s was made outside of the layers", dir)
			}
		}
		put(t, filepath.Join(target, "both"), "changed")
		if err := m.Unmount(t.Context(), Storage{Target: target}); err != nil {
			t.Fatal(err)
		}
		nothing()
		// Changes are gone with the overlay, and the layers are as they were.
		if err := mount(layer(bottom)); err != nil {
			t.Fatal(err)
		}
		if b, err := os.ReadFile(filepath.Join(target, "both")); err != nil || string(b) != "bottom" {
			t.Errorf("the second time: %q, %v", b, err)
		}
		if err := m.Unmount(t.Context(), Storage{Target: target}); err != nil {
			t.Fatal(err)
		}
		// With a disk as the upper layer it stays.
		upper := Storage{Driver: driverBlock, Source: disk, Type: "ext4", Target: target, Options: []string{upperOption, layerOption, "noatime"}}
		for _, want := range []string{"bottom", "kept"} {
			if err := mount(upper, layer(bottom)); err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(filepath.Join(target, "both")); err != nil || string(b) != want {
				t.Errorf("on a disk: %q, %v, want %q", b, err, want)
			}
			put(t, filepath.Join(target, "both"), "kept")
			if err := m.Unmount(t.Context(), Storage{Target: target}); err != nil {
				t.Fatal(err)
			}
			nothing()
		}
		if err := mount(layer(bottom)); err != nil {
			t.Fatal(err)
		}
		if err := m.Release(); err != nil {
			t.Error(err)
		}
		nothing()
		if err := mount(layer(top), layer(broken)); err == nil {
			t.Error("a layer that is no file system was mounted")
		}
		nothing()
	})
}

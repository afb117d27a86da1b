package volumes

import (
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

func writeTestFile(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
}

func TestDirCopiesContentAndStaysInside(t *testing.T) {
	base := t.TempDir()
	rootfs, volume := filepath.Join(base, "rootfs"), filepath.Join(base, "volume")
	writeTestFile(t, filepath.Join(base, "secret/f"), "host's", 0o600)
	writeTestFile(t, filepath.Join(rootfs, "data/sub/f"), "image's", 0o750|fs.ModeSetuid)
	writeTestFile(t, filepath.Join(rootfs, "data/kept"), "image's", 0o600)
	writeTestFile(t, filepath.Join(volume, "kept"), "volume's", 0o600)
	for from, to := range map[string]string{"data/link": "/etc/passwd", "escape": "../secret", "absolute": "/secret"} {
		if err := os.Symlink(to, filepath.Join(rootfs, from)); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	if err := fill(root, "/data", volume, owners{}); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"sub/f": "image's", "kept": "volume's"} {
		if b, err := os.ReadFile(filepath.Join(volume, path)); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	info, err := os.Stat(filepath.Join(volume, "sub/f"))
	if err != nil || info.Mode() != 0o750|fs.ModeSetuid {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	if to, err := os.Readlink(filepath.Join(volume, "link")); err != nil || to != "/etc/passwd" {
		t.Errorf("%q, %v", to, err)
	}
	for _, target := range []string{"/escape", "../secret", "/absolute", "/"} {
		empty := t.TempDir()
		_ = fill(root, target, empty, owners{}) // it may return an error or copy nothing
		if entries, err := os.ReadDir(empty); err != nil || len(entries) > 0 {
			t.Errorf("%s: %v, %v", target, entries, err)
		}
	}
	if err := fill(root, "/none", volume, owners{}); err != nil {
		t.Errorf("what the image has not: %v", err)
	}
}

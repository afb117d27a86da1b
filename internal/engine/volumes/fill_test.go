package volumes

import (
	"errors"
	"fmt"
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

// testRootfs is a container's root with links that lead out of it, and its path.
func testRootfs(t *testing.T) (*os.Root, string) {
	t.Helper()
	base := t.TempDir()
	rootfs := filepath.Join(base, "rootfs")
	writeTestFile(t, filepath.Join(base, "secret/f"), "host's", 0o600)
	writeTestFile(t, filepath.Join(rootfs, "data/sub/f"), "image's", 0o750|fs.ModeSetuid)
	writeTestFile(t, filepath.Join(rootfs, "data/other"), "image's", 0o600)
	for from, to := range map[string]string{
		"data/link": "/etc/passwd", "escape": "../secret", "absolute": "/secret", "again": "/data", "loop": "loop", "far": "../../../../../../../../../../etc",
	} {
		if err := os.Symlink(to, filepath.Join(rootfs, from)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(rootfs, "data"), 0o710|fs.ModeSticky); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root, rootfs
}

// testPlaces are new volumes of both kinds, with the directory of their content.
func testPlaces(t *testing.T) map[string]place {
	t.Helper()
	plain := filepath.Join(t.TempDir(), "_data")
	if err := os.Mkdir(plain, 0o755); err != nil {
		t.Fatal(err)
	}
	return map[string]place{plain: plainPlace(plain), "": mountedPlace(t.TempDir())}
}

func (p place) content() string { return filepath.Join(p.base, p.dir) }

// filled says how the content of a volume differs from testRootfs's /data.
func filled(at place) error {
	dir := at.content()
	for name, want := range map[string]string{"sub/f": "image's", "other": "image's"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			return fmt.Errorf("%s: %q, %w", name, b, err)
		}
	}
	for name, want := range map[string]fs.FileMode{".": fs.ModeDir | 0o710 | fs.ModeSticky, "sub/f": 0o750 | fs.ModeSetuid} {
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want {
			return fmt.Errorf("%s: %v, %w", name, info.Mode(), err)
		}
	}
	if to, err := os.Readlink(filepath.Join(dir, "link")); err != nil || to != "/etc/passwd" {
		return fmt.Errorf("link: %q, %w", to, err)
	}
	if _, err := os.Lstat(filepath.Join(at.base, at.stage)); !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the stage is left: %w", err)
	}
	return nil
}

func TestFillCopiesContentAndStaysInside(t *testing.T) {
	root, rootfs := testRootfs(t)
	for _, target := range []string{"/data", "/again", "/again/../data/."} {
		for _, at := range testPlaces(t) {
			if err := fill(root, target, at, owners{}); err != nil {
				t.Fatal(err)
			}
			if err := filled(at); err != nil {
				t.Errorf("%s: %v", target, err)
			}
			from, err := os.Stat(filepath.Join(rootfs, "data/sub"))
			if err != nil {
				t.Fatal(err)
			}
			if to, err := os.Stat(filepath.Join(at.content(), "sub")); err != nil || !to.ModTime().Equal(from.ModTime()) {
				t.Errorf("%s: its time is %v, not %v: %v", target, to.ModTime(), from.ModTime(), err)
			}
		}
	}
	for _, target := range []string{"/escape", "../secret", "/absolute", "/", "/none", "/loop", "/data/other", "/far"} {
		for _, at := range testPlaces(t) {
			err := fill(root, target, at, owners{})
			if (err != nil) != (target == "/") {
				t.Errorf("%s: %v", target, err)
			}
			if entries, err := os.ReadDir(at.content()); err != nil || len(entries) > 0 {
				t.Errorf("%s: %v, %v", target, entries, err)
			}
		}
	}
}

// TestWhatOthersHaveWritten is not mixed with the image's content.
func TestWhatOthersHaveWritten(t *testing.T) {
	root, _ := testRootfs(t)
	for _, at := range testPlaces(t) {
		writeTestFile(t, filepath.Join(at.content(), "own"), "own", 0o600)
		if err := fill(root, "/data", at, owners{}); err != nil {
			t.Fatal(err)
		}
		if entries, err := os.ReadDir(at.content()); err != nil || len(entries) != 1 {
			t.Errorf("%v, %v", entries, err)
		}
	}
}

// TestAnInterruptedFillBeginsAnew wherever it was interrupted: nothing of it stays half.
func TestAnInterruptedFillBeginsAnew(t *testing.T) {
	root, rootfs := testRootfs(t)
	for name, leave := range map[string]func(at place, stage string){
		"nothing copied": func(_ place, stage string) { _ = os.MkdirAll(stage, 0o700) },
		"half a file":    func(_ place, stage string) { writeTestFile(t, stage+"/other", "ima", 0o600) },
		"half moved": func(at place, stage string) {
			_ = os.MkdirAll(stage, 0o700)
			_ = os.CopyFS(at.content()+"/sub", os.DirFS(filepath.Join(rootfs, "data/sub")))
			_ = os.Chmod(at.content()+"/sub/f", 0o750|fs.ModeSetuid)
		},
		"all moved": func(at place, stage string) {
			if err := fill(root, "/data", at, owners{}); err != nil {
				t.Fatal(err)
			}
			_ = os.MkdirAll(stage, 0o700)
		},
	} {
		for _, at := range testPlaces(t) {
			leave(at, filepath.Join(at.base, at.stage))
			if err := fill(root, "/data", at, owners{}); err != nil {
				t.Fatal(err)
			}
			if err := filled(at); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

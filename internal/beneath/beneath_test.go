package beneath_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/beneath/beneathtest"
)

// tree returns a trusted directory with a workload's links in it, and a directory outside of it.
func tree(t *testing.T) (base, outside string) {
	t.Helper()
	dir := t.TempDir()
	base, outside = filepath.Join(dir, "base"), filepath.Join(dir, "outside")
	for _, d := range []string{base + "/a/b", outside + "/b"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file, text := range map[string]string{base + "/a/b/file": "inside", outside + "/b/file": "outside", outside + "/file": "outside"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"out": outside, "up": "../outside", "self": "a", "magic": "/proc/self/root", "a/file": outside + "/file"} {
		if err := os.Symlink(to, filepath.Join(base, link)); err != nil {
			t.Fatal(err)
		}
	}
	return base, outside
}

func TestNoLinkIsFollowed(t *testing.T) {
	base, outside := tree(t)
	read := func(rel string) (string, error) {
		f, err := beneath.Open(base, rel, os.O_RDONLY, 0)
		if err != nil {
			return "", err
		}
		defer func() { _ = f.Close() }()
		b := make([]byte, 100)
		n, err := f.Read(b)
		return string(b[:n]), err
	}
	for _, rel := range []string{"a/b/file", "./a//b/./file"} {
		if text, err := read(rel); text != "inside" || err != nil {
			t.Errorf("%s: %q, %v", rel, text, err)
		}
	}
	for rel, want := range map[string]error{
		"out/b/file": unix.ELOOP, "up/b/file": unix.ELOOP, "self/b/file": unix.ELOOP, "magic/etc/passwd": unix.ELOOP, "a/file": unix.ELOOP, "out": unix.ELOOP,
		"../outside/b/file": unix.EXDEV, "a/../a/b/file": unix.EXDEV, "..": unix.EXDEV, "/etc/passwd": unix.EXDEV, "": unix.EXDEV, "a\x00": unix.EXDEV,
		"none": unix.ENOENT,
	} {
		if text, err := read(rel); !errors.Is(err, want) {
			t.Errorf("%q: %q, %v, want %v", rel, text, err, want)
		}
	}
	if _, err := read("out/b/file"); err == nil || !strings.Contains(err.Error(), "symbolic link") || !strings.Contains(err.Error(), base) {
		t.Errorf("says %v", err)
	}
	// New directories are made there or not at all.
	if d, err := beneath.MkdirAll(base, "a/new/deep", 0o755); err != nil {
		t.Error(err)
	} else {
		_ = d.Close()
	}
	for _, rel := range []string{"out/made", "up/made", "magic/made", "../made", "a/b/file/made"} {
		if _, err := beneath.MkdirAll(base, rel, 0o755); err == nil {
			t.Errorf("made %s", rel)
		}
	}
	if _, err := beneath.Root(base, "out"); !errors.Is(err, unix.ELOOP) {
		t.Errorf("a root by a link: %v", err)
	}
	if root, err := beneath.Root(base, "a"); err != nil {
		t.Error(err)
	} else {
		if b, err := root.ReadFile("b/file"); string(b) != "inside" || err != nil {
			t.Errorf("%q, %v", b, err)
		}
		_ = root.Close()
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 2 {
		t.Errorf("outside: %v, %v", left, err)
	}
}

func TestRel(t *testing.T) {
	for _, c := range []struct{ base, path, rel string }{
		{"/a", "/a/b", "b"}, {"/a/", "/a//b/", "b"}, {"/a", "/a", "."}, {"/", "/b", "b"}, {"/a", "/ab", "-"}, {"/a", "/a/../b", "-"}, {"/a", "/", "-"}, {"a", "a/b", "-"}, {"", "/a", "-"},
	} {
		rel, ok := beneath.Rel(c.base, c.path)
		if c.rel == "-" && ok || c.rel != "-" && rel != c.rel {
			t.Errorf("%q in %q is %q, %t", c.path, c.base, rel, ok)
		}
	}
}

// FuzzRel: a path that Rel reports below a directory is below it.
func FuzzRel(f *testing.F) {
	f.Add("/a", "/a/b")
	f.Add("/a/..", "/../a//./b")
	f.Fuzz(func(t *testing.T, base, p string) {
		rel, ok := beneath.Rel(base, p)
		if ok && (filepath.Join(base, rel) != filepath.Clean(p) || !filepath.IsLocal(rel)) {
			t.Errorf("%q below %q is %q", p, base, rel)
		}
	})
}

// old is the former Open: it resolves the path, and then opens it by its name.
func old(base, rel string) (*os.File, error) {
	p := filepath.Join(base, rel)
	led, err := filepath.EvalSymlinks(p)
	if err != nil {
		return nil, err
	}
	if led != p {
		return nil, unix.ELOOP
	}
	return os.Open(p)
}

// TestExchanges opens a file below a directory that is a link every other moment.
// A check before the open is beaten by that, a resolution in one call is not.
func TestExchanges(t *testing.T) {
	base, outside := tree(t)
	if err := os.Symlink(outside, base+"/a/link"); err != nil {
		t.Fatal(err)
	}
	try := func(rounds int, open func(base, rel string) (*os.File, error)) (opened, refused, reached int) {
		for range rounds {
			f, err := open(base, "a/b/file")
			if err != nil {
				refused++
				continue
			}
			b := make([]byte, 100)
			n, _ := f.Read(b)
			if opened++; string(b[:n]) != "inside" {
				reached++
			}
			_ = f.Close()
		}
		return opened, refused, reached
	}
	rounds := beneathtest.Rounds(t) * 20
	stop := beneathtest.Exchange(t, base+"/a/b", base+"/a/link")
	controls := 0
	for range 200 { // the same against the former code
		_, _, reached := try(rounds, old)
		if controls += reached; controls > 0 {
			break
		}
	}
	var opened, refused, reached, made int
	for i := 0; i < 200 && (opened == 0 || refused == 0 || made == 0); i++ { // it may stand still for as long as a few rounds take
		o, f, r := try(rounds, func(base, rel string) (*os.File, error) { return beneath.Open(base, rel, os.O_RDONLY, 0) })
		opened, refused, reached = opened+o, refused+f, reached+r
		for range rounds {
			if d, err := beneath.MkdirAll(base, "a/b/made/deep", 0o755); err == nil {
				made++
				_ = d.Close()
			}
		}
	}
	times := stop()
	t.Logf("%d exchanges; opened %d, refused %d, reached %d; made %d; reached %d times by a check before the open", times, opened, refused, reached, made, controls)
	if reached > 0 || controls == 0 || opened == 0 || refused == 0 || made == 0 {
		t.Error("an open reached the outside, or the attack shows nothing")
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) != 2 {
		t.Errorf("made outside: %v, %v", left, err)
	}
}

// TestInFollowsLinksInside: with any links in a root, In opens only files in it.
func TestInFollowsLinksInside(t *testing.T) {
	base := t.TempDir()
	root := filepath.Join(base, "root")
	for _, dir := range []string{root + "/a/b", base + "/etc"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{root + "/a/b/f": "inside", base + "/etc/f": "outside"} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"abs": "/a/b", "up": "../../../a/b", "etc": "/../etc", "magic": "/proc/self/root/etc", "loop": "loop"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			t.Fatal(err)
		}
	}
	dir, err := os.Open(root)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dir.Close() }()
	for _, p := range []string{"/a/b/f", "abs/f", "/up/f", "../../a/b/f", "/abs/../b/f"} {
		f, err := beneath.In(dir, p, os.O_RDONLY, 0)
		if err != nil {
			t.Errorf("%s: %v", p, err)
			continue
		}
		if b, err := io.ReadAll(f); err != nil || string(b) != "inside" {
			t.Errorf("%s: %q, %v", p, b, err)
		}
		_ = f.Close()
	}
	for _, p := range []string{"/etc/f", "magic/f", "loop/f", "../etc/f"} {
		if f, err := beneath.In(dir, p, os.O_RDONLY, 0); err == nil {
			t.Errorf("%s was opened", p)
			_ = f.Close()
		}
	}
	if r, err := beneath.RootIn(dir, "/"); err != nil {
		t.Error(err)
	} else if err := r.Close(); err != nil {
		t.Error(err)
	}
}

package sandbox

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// tree is a directory with the sandbox of a, and something beside that nobody may
// see.
func filesTree(t *testing.T) (Tree, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "containers")
	box := filepath.Join(dir, "a")
	if err := os.MkdirAll(filepath.Join(box, "sub"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"a/stdout": strings.Repeat("0123456789", 10000), "a/sub/x": "x", "../secret": "s3cret"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{"out": "../../secret", "abs": filepath.Join(dir, "../secret"), "in": "sub/x", "up": ".."} {
		if err := os.Symlink(target, filepath.Join(box, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := unix.Mkfifo(filepath.Join(box, "fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	return Tree{filepath.Dir(dir)}, box
}

func TestReadInPages(t *testing.T) {
	f, box := filesTree(t)
	want := strings.Repeat("0123456789", 10000)
	var got bytes.Buffer
	pages := 0
	for ; ; pages++ {
		size, data, err := f.ReadFile(box+"/stdout", uint64(got.Len()), nil)
		if err != nil || size != uint64(len(want)) {
			t.Fatalf("size %d, %v", size, err)
		}
		if len(data) == 0 {
			break
		}
		got.Write(data)
	}
	if got.String() != want || pages != 2 {
		t.Errorf("%d bytes in %d pages", got.Len(), pages)
	}
	five, none := uint64(5), uint64(0)
	if _, data, err := f.ReadFile(box+"/stdout", 3, &five); err != nil || string(data) != "34567" {
		t.Errorf("five bytes: %q, %v", data, err)
	}
	if size, data, err := f.ReadFile(box+"/stdout", 3, &none); err != nil || size != 100000 || len(data) != 0 || data == nil {
		t.Errorf("no bytes: %d, %v, %v", size, data, err)
	}
	if size, data, err := f.ReadFile(box+"/stdout", 1<<63, nil); err != nil || size != 100000 || len(data) != 0 {
		t.Errorf("beyond its end: %d, %q, %v", size, data, err)
	}
	if _, data, err := f.ReadFile(box+"/in", 0, nil); err != nil || string(data) != "x" {
		t.Errorf("by a link that stays inside: %q, %v", data, err)
	}
}

func TestNoPathLeadsOut(t *testing.T) {
	f, box := filesTree(t)
	if _, _, err := f.ReadFile(box+"/sub", 0, nil); !errors.Is(err, ErrDirectory) {
		t.Errorf("a directory: %v", err)
	}
	for _, p := range []string{box + "/out", box + "/abs", box + "/up/b", box + "/fifo"} {
		_, _, err := f.ReadFile(p, 0, nil)
		if err == nil || err.Error() != "'"+p+"' is inaccessible." || !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", p, err)
		}
	}
	if _, err := f.ListFiles(box + "/up"); err == nil || !errdefs.IsInvalidArgument(err) {
		t.Errorf("the directory above: %v", err)
	}
	for _, p := range []string{"", "stdout", "/etc/passwd", f.Dir(), f.Dir() + "/", f.Dir() + "/none/x", box + "/none", box + "/../../secret", box + "/stdout\x00"} {
		if _, _, err := f.ReadFile(p, 0, nil); !errdefs.IsNotFound(err) {
			t.Errorf("%q: %v", p, err)
		}
	}
}

func TestListIsSorted(t *testing.T) {
	f, box := filesTree(t)
	list, err := f.ListFiles(box + "/")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, i := range list {
		names = append(names, strings.TrimPrefix(i.GetPath(), box+"/"))
		if i.GetPath() == box+"/stdout" && (i.GetSize() != 100000 || i.GetMode() != unix.S_IFREG|0o600 || i.GetNlink() != 1 || i.GetUid() == "" || i.GetMtime().GetNanoseconds()%1e9 != 0) {
			t.Errorf("%v", i)
		}
	}
	if got := strings.Join(names, " "); got != "abs fifo in out stdout sub up" {
		t.Errorf("listed %s", got)
	}
	if list, err := f.ListFiles(box + "/stdout"); err != nil || len(list) != 0 {
		t.Errorf("a file lists %v, %v", list, err)
	}
}

// FuzzPaths: no path reads a file beside the sandboxes.
func FuzzPaths(f *testing.F) {
	f.Add("/a/../../secret")
	f.Add("/a/out")
	f.Add("/a/up/../../secret")
	f.Fuzz(func(t *testing.T, p string) {
		files, _ := filesTree(t)
		if _, data, err := files.ReadFile(files.Dir()+p, 0, nil); err == nil && strings.Contains(string(data), "s3cret") {
			t.Errorf("%q reads the secret", p)
		}
		if list, err := files.ListFiles(files.Dir() + p); err == nil {
			for _, i := range list {
				if strings.HasSuffix(i.GetPath(), "secret") {
					t.Errorf("%q lists the secret", p)
				}
			}
		}
	})
}

package guest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ours returns a machine that shares a directory of the test, and that directory.
func ours(t testing.TB) (*Machine, string) {
	t.Helper()
	m := New()
	m.shared = filepath.Join(t.TempDir(), "shared")
	return m, m.shared
}

func (f File) mine() File {
	f.UID, f.GID = os.Getuid(), os.Getgid()
	return f
}

func TestCopyFile(t *testing.T) {
	m, dir := ours(t)
	const regular, directory, link = unix.S_IFREG, unix.S_IFDIR, unix.S_IFLNK
	copied := func(f File) error {
		t.Helper()
		if f.DirMode == 0 {
			f.DirMode = 0o750
		}
		f.Path = filepath.Join(dir, f.Path)
		return m.CopyFile(f.mine())
	}
	must := func(f File) {
		t.Helper()
		if err := copied(f); err != nil {
			t.Errorf("%s at %d: %v", f.Path, f.Offset, err)
		}
	}
	content := func(name string) string {
		t.Helper()
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			return err.Error()
		}
		return string(b)
	}
	// Two files of one stem, part by part, and one over another.
	must(File{Path: "c1/a.txt", Mode: regular | 0o640, Size: 6, Data: []byte("one")})
	must(File{Path: "c1/a.json", Mode: regular | 0o600, Size: 6, Data: []byte("two")})
	if _, err := os.Stat(filepath.Join(dir, "c1/a.txt")); err == nil {
		t.Error("half a file has its name")
	}
	must(File{Path: "c1/a.txt", Mode: regular | 0o640, Size: 6, Offset: 3, Data: []byte("ONE")})
	must(File{Path: "c1/a.json", Mode: regular | 0o600, Size: 6, Offset: 3, Data: []byte("TWO")})
	if a, b := content("c1/a.txt"), content("c1/a.json"); a != "oneONE" || b != "twoTWO" {
		t.Errorf("a.txt is %q, a.json %q", a, b)
	}
	if st, err := os.Stat(filepath.Join(dir, "c1/a.txt")); err != nil || st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v, %v", st.Mode(), err)
	}
	if st, err := os.Stat(filepath.Join(dir, "c1")); err != nil || st.Mode().Perm() != 0o750 {
		t.Errorf("the directory's mode %v, %v", st.Mode(), err)
	}
	must(File{Path: "c1/a.txt", Mode: regular | 0o600})
	if got := content("c1/a.txt"); got != "" {
		t.Errorf("an empty file over another has %q", got)
	}
	must(File{Path: "c1/d", Mode: directory | 0o711})
	must(File{Path: "c1/d", Mode: directory | 0o711})
	must(File{Path: "c1/..data", Mode: link | 0o777, Data: []byte("d")})
	must(File{Path: "c1/..data", Mode: link | 0o777, Data: []byte("/etc")})
	if to, err := os.Readlink(filepath.Join(dir, "c1/..data")); err != nil || to != "/etc" {
		t.Errorf("the link leads to %q, %v", to, err)
	}
	for name, f := range map[string]File{
		"through a link":          {Path: "c1/..data/passwd", Mode: regular, Size: 1, Data: []byte("x")},
		"longer than it says":     {Path: "c1/long", Mode: regular, Size: 1, Data: []byte("xx")},
		"a device":                {Path: "c1/dev", Mode: unix.S_IFCHR},
		"a link without a target": {Path: "c1/l", Mode: link},
		"a size below 0":          {Path: "c1/neg", Mode: regular, Size: -1},
		"a directory over a file": {Path: "c1/a.txt", Mode: directory},
	} {
		if err := copied(f); err == nil {
			t.Errorf("%s is taken", name)
		}
	}
	for name, f := range map[string]File{
		"the second part first": {Path: "c1/none", Mode: regular, Size: 6, Offset: 3, Data: []byte("x")},
	} {
		if err := copied(f); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	must(File{Path: "c1/gap", Mode: regular, Size: 9, Data: []byte("x")})
	if err := copied(File{Path: "c1/gap", Mode: regular, Size: 9, Offset: 5, Data: []byte("x")}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a gap: %v", err)
	}
	if err := m.CopyFile(File{Path: "/etc/passwd", Mode: regular}.mine()); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a file elsewhere: %v", err)
	}
}

// TestCopyFileStaysInside: the ways out of the shared directory that agents of Kata had, and
// others like them.
func TestCopyFileStaysInside(t *testing.T) {
	const regular, directory, link = unix.S_IFREG | 0o666, unix.S_IFDIR | 0o777, unix.S_IFLNK | 0o777
	m, dir := ours(t)
	out := filepath.Join(filepath.Dir(dir), "out")
	if err := os.MkdirAll(filepath.Join(out, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(out, "f"), []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	copied := func(path string, mode uint32, data string) error {
		return m.CopyFile(File{Path: path, Mode: mode, DirMode: 0o777, Size: int64(len(data)), Data: []byte(data)}.mine())
	}
	for name, target := range map[string]string{"abs": out, "rel": "../out", "file": out + "/f", "up": "..", "self": "self", "two": "abs"} {
		if err := copied(dir+"/"+name, link, target); err != nil {
			t.Fatal(err)
		}
	}
	// A container puts these into its directory meanwhile.
	if err := os.Symlink(out+"/f", dir+"/planted"+partSuffix); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(dir+"/fifo"+partSuffix, 0o666); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{
		dir, dir + "/", dir + "/.", dir + "/..", dir + "/../out/x", dir + "/a/../../out/x", dir + "//x", dir + "-x/y", "x", "", "/", "/etc/x", "../x", dir + "/a\x00b",
		dir + "/abs/x", dir + "/rel/x", dir + "/up/out/x", dir + "/self/x", dir + "/two/x", dir + "/abs/d/x", dir + "/abs/new/x", dir + "/file/x",
	} {
		for _, mode := range []uint32{regular, directory, link} {
			if err := copied(path, mode, "data"); err == nil {
				t.Errorf("%q was taken, with the mode %o", path, mode)
			}
		}
	}
	for _, mode := range []uint32{0, 0o644, unix.S_IFIFO, unix.S_IFSOCK, unix.S_IFBLK, unix.S_IFCHR, unix.S_IFMT} {
		if err := copied(dir+"/type", mode, ""); !errdefs.IsInvalidArgument(err) {
			t.Errorf("the type %o: %v", mode, err)
		}
	}
	for name, f := range map[string]File{
		"an offset that overflows":      {Path: dir + "/n", Mode: regular, Size: 1<<63 - 1, Offset: 1<<63 - 1, Data: []byte("x")},
		"an offset below 0":             {Path: dir + "/n", Mode: regular, Size: 1, Offset: -1, Data: []byte("x")},
		"a part behind the end":         {Path: dir + "/n", Mode: regular, Size: 1, Offset: 1, Data: []byte("x")},
		"a name that is too long":       {Path: dir + "/" + strings.Repeat("x", 256), Mode: regular},
		"a part that is a link's":       {Path: dir + "/planted", Mode: regular, Size: 9, Offset: 1, Data: []byte("x")},
		"a part that is a pipe's":       {Path: dir + "/fifo", Mode: regular, Size: 9, Offset: 1, Data: []byte("x")},
		"a directory in place of links": {Path: dir + "/abs", Mode: directory},
		"a link's second part":          {Path: dir + "/l", Mode: link, Size: 9, Offset: 1, Data: []byte("x")},
	} {
		f.DirMode = 0o777
		if err := m.CopyFile(f.mine()); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
	// A file replaces a link, and not the link's target; its size is that of the data.
	if err := copied(dir+"/file", regular, "new"); err != nil {
		t.Error(err)
	}
	if err := copied(dir+"/planted", regular, "new"); err != nil {
		t.Error(err)
	}
	huge := File{Path: dir + "/huge", Mode: regular, DirMode: 0o777, Size: 1 << 60, Data: []byte("x")}
	if err := m.CopyFile(huge.mine()); err != nil {
		t.Error(err)
	}
	if st, err := os.Stat(dir + "/huge" + partSuffix); err != nil || st.Size() != 1 {
		t.Errorf("the first part of a huge file: %v, %v", st, err)
	}
	// A link in place of a directory removes that and follows no link in it.
	if err := copied(dir+"/tree/l", link, out); err != nil {
		t.Error(err)
	}
	if err := copied(dir+"/tree", link, "elsewhere"); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(out + "/f"); err != nil || string(b) != "old" {
		t.Errorf("outside is %q, %v", b, err)
	}
	for where, want := range map[string]string{filepath.Dir(dir): "out shared", out: "d f", out + "/d": ""} {
		list, err := os.ReadDir(where)
		var names []string
		for _, e := range list {
			names = append(names, e.Name())
		}
		if got := strings.Join(names, " "); err != nil || got != want {
			t.Errorf("%s has %q, want %q, %v", where, got, want, err)
		}
	}
	if st, err := os.Stat(out + "/f"); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("outside has the mode %v, %v", st.Mode(), err)
	}
}

// FuzzCopyFile: with any path and any link on it, nothing outside of the shared directory is made
// or changed.
func FuzzCopyFile(f *testing.F) {
	f.Add("c/a", "a", "c/b", []byte("x"))
	f.Add("c/l", "..", "c/l/../../out", []byte("x"))
	f.Add("l", "../out", "l/x", []byte{})
	f.Fuzz(func(t *testing.T, link, target, name string, data []byte) {
		m, dir := ours(t)
		out := filepath.Join(filepath.Dir(dir), "out")
		if err := os.Mkdir(out, 0o700); err != nil {
			t.Fatal(err)
		}
		_ = m.CopyFile(File{Path: dir + "/" + link, Mode: unix.S_IFLNK, DirMode: 0o700, Data: []byte(target)}.mine())
		_ = m.CopyFile(File{Path: dir + "/" + name, Mode: unix.S_IFREG | 0o600, DirMode: 0o700, Size: int64(len(data)), Data: data}.mine())
		_ = m.CopyFile(File{Path: dir + "/" + name, Mode: unix.S_IFDIR | 0o700, DirMode: 0o700}.mine())
		for _, d := range []struct{ dir, only string }{{filepath.Dir(dir), "out shared"}, {out, ""}} {
			list, err := os.ReadDir(d.dir)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, e := range list {
				names = append(names, e.Name())
			}
			if got := strings.Join(names, " "); got != d.only && got != "out" {
				t.Errorf("%s has %q", d.dir, got)
			}
		}
	})
}

package treecopy

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// testRoot is a directory that is a root, beside a file that no copy may reach.
func testRoot(t *testing.T, files map[string]string) (root *os.File, dir string) {
	t.Helper()
	base := t.TempDir()
	dir = filepath.Join(base, "root")
	put(t, base, map[string]string{"outside": "secret", "etc/passwd": "host's"})
	put(t, dir, files)
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root, dir
}

// put makes files; content that begins with -> makes a link, and a name that ends in a slash a
// directory.
func put(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for name, content := range files {
		at := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(at), 0o755)
		if to, ok := strings.CutPrefix(content, "->"); ok {
			err = errors.Join(err, os.Symlink(to, at))
		} else if strings.HasSuffix(name, "/") {
			err = errors.Join(err, os.MkdirAll(at, 0o755))
		} else {
			err = errors.Join(err, os.WriteFile(at, []byte(content), 0o640))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// tree returns the content of a directory, in the form of put, in a line.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var list []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || p == dir {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		switch {
		case d.Type()&fs.ModeSymlink != 0:
			to, err := os.Readlink(p)
			list = append(list, name+"->"+to)
			return err
		case d.IsDir():
			list = append(list, name+"/")
			return nil
		case !d.Type().IsRegular():
			list = append(list, name+" "+d.Type().String())
			return nil
		}
		b, err := os.ReadFile(p)
		list = append(list, name+"="+string(b))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(list)
	return strings.Join(list, " ")
}

func copyTo(from *os.File, src string, to *os.File, dest string, follow bool) error {
	what, err := Look(from, src, follow)
	if err != nil {
		return err
	}
	target, err := Place(to, dest, what)
	if err != nil {
		return err
	}
	var b bytes.Buffer
	if err := Pack(&b, from, src, what.Name, follow, IDs{}); err != nil {
		return err
	}
	return Unpack(&b, to, target, Mine, IDs{})
}

// TestDockersRules of where a copy goes.
func TestDockersRules(t *testing.T) {
	from, _ := testRoot(t, map[string]string{"f": "new", "d/x": "1", "d/s/y": "2", "link": "->f", "dirlink": "->/d", "odd": "->nowhere"})
	for _, tc := range []struct {
		src, dest, want string
		fails           error
	}{
		{src: "/f", dest: "/new", want: "new=new"},
		{src: "/f", dest: "/new/", fails: errdefs.ErrNotFound},
		{src: "/f", dest: "/none/new", fails: errdefs.ErrNotFound},
		{src: "/f", dest: "/file", want: "file=new"},
		{src: "/f", dest: "/file/", fails: errdefs.ErrInvalidArgument},
		{src: "/f", dest: "/dir", want: "dir/f=new"},
		{src: "/f", dest: "/dir/", want: "dir/f=new"},
		{src: "/f", dest: "/abs", want: "dir/f=new"},
		{src: "/f", dest: "/tofile", want: "file=new"},
		{src: "/f/", dest: "/dir", fails: errdefs.ErrInvalidArgument},
		{src: "/d", dest: "/new", want: "new/ new/s/ new/s/y=2 new/x=1"},
		{src: "/d/", dest: "/new/", want: "new/ new/s/ new/s/y=2 new/x=1"},
		{src: "/d/.", dest: "/new", want: "new/ new/s/ new/s/y=2 new/x=1"},
		{src: "/d", dest: "/file", fails: errdefs.ErrInvalidArgument},
		{src: "/d", dest: "/dir", want: "dir/d/ dir/d/s/ dir/d/s/y=2 dir/d/x=1"},
		{src: "/d/.", dest: "/dir", want: "dir/s/ dir/s/y=2 dir/x=1"},
		{src: "/d/../d/.", dest: "/dir/.", want: "dir/s/ dir/s/y=2 dir/x=1"},
		{src: "/link", dest: "/dir", want: "dir/link->f"},
		{src: "/dirlink", dest: "/dir", want: "dir/dirlink->/d"},
		{src: "/dirlink/", dest: "/dir", want: "dir/dirlink/ dir/dirlink/s/ dir/dirlink/s/y=2 dir/dirlink/x=1"},
		{src: "/odd", dest: "/dir", want: "dir/odd->nowhere"},
		{src: "/none", dest: "/dir", fails: errdefs.ErrNotFound},
		{src: "/d", dest: "/clash", fails: errdefs.ErrInvalidArgument},
		{src: "/f", dest: "/out", want: "out=new"},
	} {
		before := "abs->/dir clash/ clash/d=file dir/ file=old out->../outside tofile->file"
		to, dir := testRoot(t, map[string]string{"dir/": "", "file": "old", "abs": "->/dir", "tofile": "->file", "out": "->../outside", "clash/d": "file"})
		err := copyTo(from, tc.src, to, tc.dest, false)
		if tc.fails != nil {
			if !errors.Is(err, tc.fails) {
				t.Errorf("%s to %s: %v, want %v", tc.src, tc.dest, err, tc.fails)
			}
			if got := tree(t, dir); got != before {
				t.Errorf("%s to %s: left %s", tc.src, tc.dest, got)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s to %s: %v", tc.src, tc.dest, err)
		}
		want := strings.Fields(before + " " + tc.want)
		if slices.Contains(want, "file=new") {
			want = slices.DeleteFunc(want, func(s string) bool { return s == "file=old" })
		}
		if slices.Contains(want, "out=new") { // the link leads nowhere in this root
			want = slices.DeleteFunc(want, func(s string) bool { return strings.HasPrefix(s, "out->") })
		}
		slices.Sort(want)
		if got := tree(t, dir); got != strings.Join(want, " ") {
			t.Errorf("%s to %s:\ngot  %s\nwant %s", tc.src, tc.dest, got, strings.Join(want, " "))
		}
	}
	to, dir := testRoot(t, nil)
	if err := copyTo(from, "/dirlink", to, "/new", true); err != nil || tree(t, dir) != "new/ new/s/ new/s/y=2 new/x=1" {
		t.Errorf("following a link: %s, %v", tree(t, dir), err)
	}
}

// TestModesAndTimes are those of the source, also of directories that nobody may write to.
func TestModesAndTimes(t *testing.T) {
	from, src := testRoot(t, map[string]string{"d/s/f": "1"})
	for name, mode := range map[string]fs.FileMode{"d/s/f": 0o751 | fs.ModeSetgid, "d/s": 0o500, "d": 0o711 | fs.ModeSticky} {
		if err := os.Chmod(filepath.Join(src, name), mode); err != nil {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(src, "d/s"), 0o700) })
	to, dir := testRoot(t, nil)
	if err := copyTo(from, "/d", to, "/", false); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.Chmod(filepath.Join(dir, "d/s"), 0o700) })
	for _, name := range []string{"d", "d/s", "d/s/f"} {
		a, err := os.Stat(filepath.Join(src, name))
		b, err2 := os.Stat(filepath.Join(dir, name))
		if err != nil || err2 != nil || a.Mode() != b.Mode() || !a.ModTime().Equal(b.ModTime()) {
			t.Errorf("%s: %v %v, was %v %v: %v, %v", name, b.Mode(), b.ModTime(), a.Mode(), a.ModTime(), err, err2)
		}
	}
}

func tarOf(entries ...tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		body := ""
		if h.Typeflag == tar.TypeReg {
			body = "bad"
		}
		h.Size, h.Mode = int64(len(body)), 0o644
		_ = w.WriteHeader(&h)
		_, _ = w.Write([]byte(body))
	}
	_ = w.Close()
	return b.Bytes()
}

func hostileTars() map[string][]byte {
	return map[string][]byte{
		"dots":         tarOf(tar.Header{Name: "../../outside", Typeflag: tar.TypeReg}),
		"absolute":     tarOf(tar.Header{Name: "/../etc/passwd", Typeflag: tar.TypeReg}),
		"link up":      tarOf(tar.Header{Name: "l", Linkname: "../..", Typeflag: tar.TypeSymlink}, tar.Header{Name: "l/outside", Typeflag: tar.TypeReg}),
		"link to root": tarOf(tar.Header{Name: "l", Linkname: "/", Typeflag: tar.TypeSymlink}, tar.Header{Name: "l/etc/passwd", Typeflag: tar.TypeReg}),
		"link itself":  tarOf(tar.Header{Name: "l", Linkname: "../outside", Typeflag: tar.TypeSymlink}, tar.Header{Name: "l", Typeflag: tar.TypeReg}),
		"hard link":    tarOf(tar.Header{Name: "h", Linkname: "../outside", Typeflag: tar.TypeLink}, tar.Header{Name: "h", Typeflag: tar.TypeReg}),
		"hard link by link": tarOf(tar.Header{Name: "l", Linkname: "../outside", Typeflag: tar.TypeSymlink}, tar.Header{Name: "h", Linkname: "l", Typeflag: tar.TypeLink},
			tar.Header{Name: "h", Typeflag: tar.TypeReg}),
		"proc":      tarOf(tar.Header{Name: "l", Linkname: "/proc/self/cwd", Typeflag: tar.TypeSymlink}, tar.Header{Name: "l/f", Typeflag: tar.TypeReg}),
		"device":    tarOf(tar.Header{Name: "null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}, tar.Header{Name: "p", Typeflag: tar.TypeFifo}),
		"a file up": tarOf(tar.Header{Name: "f", Typeflag: tar.TypeReg}, tar.Header{Name: "f/g", Typeflag: tar.TypeReg}),
		"deep":      tarOf(tar.Header{Name: strings.Repeat("d/", 3000), Typeflag: tar.TypeDir}),
	}
}

// TestHostileTars write nothing outside of the root.
func TestHostileTars(t *testing.T) {
	for name, b := range hostileTars() {
		root, dir := testRoot(t, map[string]string{"in/own": "own"})
		err := Unpack(bytes.NewReader(b), root, Target{At: "/in"}, Mine, IDs{})
		if got := tree(t, filepath.Dir(dir)); !strings.Contains(got, "outside=secret") || !strings.Contains(" "+got, " etc/passwd=host's") {
			t.Errorf("%s: %v: %s", name, err, got)
		}
		if name == "device" && (err != nil || tree(t, dir) != "in/ in/own=own in/p p---------") {
			t.Errorf("devices: %s, %v", tree(t, dir), err)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	for _, b := range hostileTars() {
		f.Add(b, "", false)
	}
	f.Add(tarOf(tar.Header{Name: "a/b", Typeflag: tar.TypeReg}, tar.Header{Name: "a/c", Linkname: "a/b", Typeflag: tar.TypeLink}), "new", true)
	f.Fuzz(func(t *testing.T, b []byte, name string, strip bool) {
		if len(b) > 1<<16 || strings.ContainsAny(name, "/\x00") || name == ".." || name == "." {
			return
		}
		base := t.TempDir()
		dir := filepath.Join(base, "root")
		put(t, base, map[string]string{"outside": "secret"})
		put(t, dir, map[string]string{"in/own": "own", "out": "->../outside", "up": "->.."})
		root, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = root.Close() }()
		_ = Unpack(&limited{bytes.NewReader(b)}, root, Target{At: "/in", Name: name, Strip: strip}, Mine, IDs{})
		entries, err := os.ReadDir(base)
		if got, rerr := os.ReadFile(filepath.Join(base, "outside")); err != nil || rerr != nil || string(got) != "secret" || len(entries) != 2 {
			t.Fatal(fmt.Sprint("outside: ", string(got), rerr, entries, err))
		}
	})
}

// limited hides that a reader can seek, as a stream cannot.
type limited struct{ r *bytes.Reader }

func (l *limited) Read(p []byte) (int, error) { return l.r.Read(p) }

// TestBitsOfAnOwnerGoWithTheOwner: setuid and setgid of a file or directory that gets another owner
// or group are left out, and stay with the owner that the tar names.
func TestBitsOfAnOwnerGoWithTheOwner(t *testing.T) {
	me, mine := os.Geteuid(), os.Getegid()
	for name, c := range map[string]struct {
		uid, gid int
		owners   Owners
		file     fs.FileMode // the bits that stay, setuid and setgid
		needs    bool        // root
	}{
		"another user's":              {me + 1000, mine + 1000, Mine, 0, false},
		"another group's":             {me, mine + 1000, Mine, fs.ModeSetuid, false},
		"another user's, of my group": {me + 1000, mine, Mine, 0, false},
		"mine":                        {me, mine, Mine, fs.ModeSetuid | fs.ModeSetgid, false},
		"another user's, which stays": {me + 1000, mine + 1000, Theirs, fs.ModeSetuid | fs.ModeSetgid, true},
	} {
		t.Run(name, func(t *testing.T) {
			if c.needs && me != 0 {
				t.Skip("only root may give files away")
			}
			root, dir := testRoot(t, map[string]string{"in/": ""})
			var b bytes.Buffer
			w := tar.NewWriter(&b)
			for _, h := range []tar.Header{{Name: "x/d/", Typeflag: tar.TypeDir, Mode: 0o7755}, {Name: "x/f", Typeflag: tar.TypeReg, Mode: 0o7755, PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"}}} {
				h.Uid, h.Gid = c.uid, c.gid
				if err := w.WriteHeader(&h); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			if err := Unpack(&b, root, Target{At: "/in"}, c.owners, IDs{}); err != nil {
				t.Fatal(err)
			}
			for p, want := range map[string]fs.FileMode{"in/x/f": c.file, "in/x/d": c.file | fs.ModeSticky} {
				info, err := os.Stat(filepath.Join(dir, p))
				if err != nil {
					t.Fatal(err)
				}
				if got := info.Mode() & (fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky); got != want {
					t.Errorf("%s has %s, want %s", p, got, want)
				}
			}
			if n, err := unix.Getxattr(filepath.Join(dir, "in/x/f"), "security.capability", nil); err == nil {
				t.Errorf("the file has capabilities, %d bytes", n)
			}
		})
	}
}

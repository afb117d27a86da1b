package archive

import (
	"archive/tar"
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

type entry struct {
	name, content, link string
	kind                byte
}

func tarOf(t testing.TB, list ...entry) []byte {
	t.Helper()
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, e := range list {
		if e.kind == 0 {
			e.kind = tar.TypeReg
		}
		if err := tw.WriteHeader(&tar.Header{Typeflag: e.kind, Name: e.name, Linkname: e.link, Size: int64(len(e.content)), Mode: 0o777}); err != nil {
			t.Fatal(err)
		}
		if _, err := tw.Write([]byte(e.content)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func open(t testing.TB, dir string) *os.Root {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	return root
}

func files(t testing.TB, dir string) (list []string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			list = append(list, strings.TrimPrefix(p, dir+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

func TestAnArchiveIsReadAsItWasWritten(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	want := map[string]string{Meta: "{}", Root: "tar", "checkpoint/pages-1.img": strings.Repeat("page", 9000), "checkpoint/core-1.img": ""}
	for name, content := range want {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(from, name)), 0o700), os.WriteFile(filepath.Join(from, name), []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(from+"/lock", nil, 0o600); err != nil { // is no part of it
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Write(&b, open(t, from)); err != nil {
		t.Fatal(err)
	}
	if err := Read(&b, open(t, to), Limits{}); err != nil {
		t.Fatal(err)
	}
	for name, content := range want {
		if got, err := os.ReadFile(filepath.Join(to, name)); err != nil || string(got) != content {
			t.Errorf("%s: %d bytes, %v", name, len(got), err)
		}
	}
	if got := files(t, to); len(got) != len(want) {
		t.Errorf("read %v", got)
	}
}

func TestHostileArchivesAreRefused(t *testing.T) {
	for name, c := range map[string]struct {
		entries []entry
		limit   int64
		is      func(error) bool
	}{
		"above":        {entries: []entry{{name: "../evil", content: "x"}}},
		"absolute":     {entries: []entry{{name: "/checkpoint/evil", content: "x"}}},
		"inside above": {entries: []entry{{name: "checkpoint/../../evil", content: "x"}}},
		"link":         {entries: []entry{{name: "checkpoint", kind: tar.TypeSymlink, link: "/etc"}, {name: "checkpoint/evil", content: "x"}}},
		"hard link":    {entries: []entry{{name: "checkpoint/a", kind: tar.TypeLink, link: "/etc/passwd"}}},
		"device":       {entries: []entry{{name: "checkpoint/a", kind: tar.TypeChar}}},
		"fifo":         {entries: []entry{{name: Meta, kind: tar.TypeFifo}}},
		"twice":        {entries: []entry{{name: Meta, content: "a"}, {name: Meta, content: "b"}}},
		"huge":         {entries: []entry{{name: "checkpoint/a", content: strings.Repeat("x", 2000)}}, limit: 1999, is: errdefs.IsResourceExhausted},
		"huge in all":  {entries: []entry{{name: "checkpoint/a", content: strings.Repeat("x", 1000)}, {name: "checkpoint/b", content: strings.Repeat("x", 1000)}}, limit: 1999, is: errdefs.IsResourceExhausted},
	} {
		t.Run(name, func(t *testing.T) {
			above := t.TempDir()
			dir := above + "/in"
			if err := os.Mkdir(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			is := c.is
			if is == nil {
				is = errdefs.IsInvalidArgument
			}
			if err := Read(bytes.NewReader(tarOf(t, c.entries...)), open(t, dir), Limits{Bytes: c.limit}); !is(err) {
				t.Errorf("got %v", err)
			}
			if got := files(t, above); slices.ContainsFunc(got, func(p string) bool { return !strings.HasPrefix(p, "in/") }) {
				t.Errorf("wrote %v", got)
			}
		})
	}
}

func TestFilesOfOthersAreSkipped(t *testing.T) {
	dir := t.TempDir()
	b := tarOf(t, entry{name: "./", kind: tar.TypeDir}, entry{name: "bind.mounts", content: "x"}, entry{name: "artifacts/", kind: tar.TypeDir}, entry{name: "checkpoint/deep/a", content: "x"}, entry{name: "./" + Meta, content: "{}"})
	if err := Read(bytes.NewReader(b), open(t, dir), Limits{}); err != nil {
		t.Fatal(err)
	}
	if got := files(t, dir); !slices.Equal(got, []string{Meta}) {
		t.Errorf("read %v", got)
	}
}

func TestAFullDiskEndsTheRead(t *testing.T) {
	full := errors.New("full")
	err := Read(bytes.NewReader(tarOf(t, entry{name: Meta, content: "{}"})), open(t, t.TempDir()), Limits{Room: func() error { return full }})
	if !errors.Is(err, full) {
		t.Errorf("got %v", err)
	}
}

func FuzzRead(f *testing.F) {
	f.Add(tarOf(f, entry{name: Meta, content: "{}"}, entry{name: "checkpoint/", kind: tar.TypeDir}, entry{name: "checkpoint/core-1.img", content: "core"}))
	f.Add(tarOf(f, entry{name: "../evil", content: "x"}))
	f.Add(tarOf(f, entry{name: "checkpoint", kind: tar.TypeSymlink, link: "/tmp"}, entry{name: "checkpoint/evil", content: "x"}))
	f.Add([]byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0})
	f.Add([]byte{0x1f, 0x8b, 8, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		above := t.TempDir()
		if err := os.Mkdir(above+"/in", 0o700); err != nil {
			t.Fatal(err)
		}
		const limit = 1 << 20
		_ = Read(bytes.NewReader(b), open(t, above+"/in"), Limits{Bytes: limit})
		total := int64(0)
		for _, p := range files(t, above) {
			info, err := os.Lstat(filepath.Join(above, p))
			if err != nil || !info.Mode().IsRegular() {
				t.Fatalf("%s: %v, %v", p, info, err)
			}
			total += info.Size()
			rel, in := strings.CutPrefix(p, "in/")
			if !in || !slices.Contains(names, rel) && filepath.Dir(rel) != Images {
				t.Fatalf("wrote %s", p)
			}
		}
		if total > limit {
			t.Fatalf("wrote %d bytes", total)
		}
	})
}

package disk

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, path string, size int) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(strings.Repeat("x", size)), 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestMeasure: each file counts once, below the part that place says, and the sums are those of all blocks.
func TestMeasure(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a/one/x/y/z/deep", 100_000)
	write(t, dir+"/a/two/f", 50_000)
	write(t, dir+"/b/f", 10_000)
	if err := os.Link(dir+"/a/two/f", dir+"/b/again"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/", dir+"/b/outside"); err != nil {
		t.Fatal(err)
	}
	asked := map[string]bool{}
	p, err := Measure(t.Context(), dir, "top", func(path string) Place {
		asked[path] = true
		if n := strings.Count(path, "/"); n >= depth {
			t.Errorf("asked about %s", path)
		}
		first, rest, _ := strings.Cut(path, "/")
		second, _, _ := strings.Cut(rest, "/")
		switch {
		case first == "a" && second != "":
			return Place{Path: []string{"A", second}, Note: "note " + second, Unused: second == "one"}
		case first == ".":
			return Place{}
		}
		return Place{Path: []string{first}}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(p.Parts) < 2 || p.Parts[0].Name != "A" || len(p.Parts[0].Parts) != 2 || p.Parts[0].Parts[0].Name != "one" || p.Parts[0].Parts[0].Note != "note one" {
		t.Fatalf("%+v", p)
	}
	one := p.Parts[0].Parts[0]
	if one.Bytes < 100_000 || one.Bytes > 200_000 || one.Frees != one.Bytes || p.Frees != one.Bytes {
		t.Errorf("one: %+v, all frees %d", one, p.Frees)
	}
	var sum func(p *Part) uint64
	sum = func(p *Part) (n uint64) {
		for _, c := range p.Parts {
			n += sum(c)
		}
		return max(n, p.Bytes)
	}
	if p.Bytes < 160_000 || p.Bytes > 300_000 || sum(p) != p.Bytes {
		t.Errorf("%d bytes in all", p.Bytes)
	}
	if _, err := Measure(t.Context(), dir+"/none", "", nil); err == nil {
		t.Error("a directory that is not there is measured")
	}
}

func TestDeleted(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/f", 300_000)
	f, err := os.Open(dir + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	before, err := Deleted(t.Context(), "/proc", dir, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(dir + "/f"); err != nil {
		t.Fatal(err)
	}
	after, err := Deleted(t.Context(), "/proc", dir, func(string) string { return "" })
	if err != nil {
		t.Fatal(err)
	}
	name, found := fmt.Sprintf("process %d (", os.Getpid()), uint64(0)
	for _, p := range after.Parts {
		if strings.HasPrefix(p.Name, name) {
			found = p.Bytes
		}
	}
	if found < 300_000 || after.Bytes < before.Bytes {
		t.Errorf("%d bytes of %d, before %d", found, after.Bytes, before.Bytes)
	}
}

package sandbox

import (
	"os"
	"path/filepath"
	"testing"
	"time"
)

func makeTree(t *testing.T, names ...string) Tree {
	t.Helper()
	tr, err := New(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if _, err := tr.Make(n); err != nil {
			t.Fatal(err)
		}
	}
	return tr
}

func names(t *testing.T, tr Tree) (all []string) {
	t.Helper()
	list, err := tr.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		all = append(all, s.ID)
	}
	return all
}

// TestListAndRemove: the list shows all sandboxes made, and each goes with its content.
func TestListAndRemove(t *testing.T) {
	tr := makeTree(t, "a", "a.b", "a.b.c", "d")
	for _, other := range []string{"containers/not.ours", "containers/a/containers/b/mine", "containers/a/other"} {
		if err := os.MkdirAll(filepath.Join(tr.root, other), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, link := range []string{"containers/l", "containers/d/containers/l"} {
		if err := os.Symlink(tr.Path("a"), filepath.Join(tr.root, link)); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, tr); len(got) != 4 || got[0] != "a" || got[1] != "a.b" || got[2] != "a.b.c" || got[3] != "d" {
		t.Errorf("listed %q", got)
	}
	for range 2 {
		if err := tr.Remove("a.b"); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, tr); len(got) != 2 {
		t.Errorf("listed %q", got)
	}
	left(t, tr)
}

// left wants nothing to be on its way out.
func left(t *testing.T, tr Tree) {
	t.Helper()
	for _, dir := range []string{tr.Dir(), filepath.Join(tr.Path("a"), Nested)} {
		if list, err := filepath.Glob(filepath.Join(dir, removedPrefix+"*")); err != nil || len(list) > 0 {
			t.Errorf("left %v, %v", list, err)
		}
	}
}

// TestFinish removes the rest of a removal that was cut.
func TestFinish(t *testing.T) {
	tr := makeTree(t, "a", "a.b")
	for _, dir := range []string{tr.Dir(), filepath.Join(tr.Path("a"), Nested)} {
		if err := os.MkdirAll(filepath.Join(dir, removedPrefix+"x", "y"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if got := names(t, tr); len(got) != 2 {
		t.Errorf("listed %q", got)
	}
	for range 2 {
		if err := tr.FinishRemovals(); err != nil {
			t.Error(err)
		}
	}
	left(t, tr)
	if got := names(t, tr); len(got) != 2 {
		t.Errorf("listed %q", got)
	}
}

func TestTouch(t *testing.T) {
	tr := makeTree(t, "a", "a.b")
	at := time.Unix(1e9, 0)
	if err := tr.Touch("a.b", at); err != nil {
		t.Fatal(err)
	}
	if err := tr.Touch("gone", at); err != nil {
		t.Error(err)
	}
	list, err := tr.List()
	if err != nil || len(list) != 2 || !list[1].LastUsed.Equal(at) || list[0].LastUsed.Equal(at) {
		t.Errorf("%v, %v", list, err)
	}
}

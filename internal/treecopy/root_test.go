package treecopy_test

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/longshore/longshore/internal/treecopy"
)

// TestPackRoot checks that mounts are empty in the tar.
func TestPackRoot(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"etc/hosts": "mounted", "etc/passwd": "root", "proc/1/stat": "mounted", "vol/x": "mounted", "data/vol/x": "kept"} {
		if err := os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	var out bytes.Buffer
	if err := treecopy.PackRoot(&out, root, []string{"/proc", "/vol/", "/etc/hosts", "/none"}, treecopy.IDs{}); err != nil {
		t.Fatal(err)
	}
	var names []string
	for r := tar.NewReader(&out); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(r)
		if err != nil || string(body) == "mounted" {
			t.Errorf("%s: %q, %v", h.Name, body, err)
		}
		names = append(names, h.Name)
	}
	want := []string{"./", "data/", "data/vol/", "data/vol/x", "etc/", "etc/hosts", "etc/passwd", "proc/", "vol/"}
	if slices.Sort(names); !slices.Equal(names, want) {
		t.Errorf("got %q, want %q", names, want)
	}
}

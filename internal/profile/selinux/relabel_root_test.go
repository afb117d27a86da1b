package selinux

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// TestRelabelStaysInTheDirectory labels a tree with links. Their targets keep their labels.
func TestRelabelStaysInTheDirectory(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		const label = "system_u:object_r:container_file_t:s0:c1,c2"
		root := t.TempDir()
		tree, outside := filepath.Join(root, "tree"), filepath.Join(root, "outside")
		for _, dir := range []string{filepath.Join(tree, "a", "b"), outside} {
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
		}
		for _, file := range []string{filepath.Join(tree, "a", "b", "file"), filepath.Join(outside, "file")} {
			if err := os.WriteFile(file, nil, 0o000); err != nil {
				t.Fatal(err)
			}
		}
		for from, to := range map[string]string{"link": "../outside", "a/dangling": "nowhere", "a/loop": "."} {
			if err := os.Symlink(to, filepath.Join(tree, from)); err != nil {
				t.Fatal(err)
			}
		}
		if err := unix.Mkfifo(filepath.Join(tree, "fifo"), 0o600); err != nil {
			t.Fatal(err)
		}
		of := func(path string) string {
			buf := make([]byte, 100)
			n, err := unix.Lgetxattr(path, attribute, buf)
			if err != nil {
				return ""
			}
			return strings.TrimRight(string(buf[:n]), "\x00")
		}
		before := of(outside)
		if err := Relabel(tree, label); err != nil {
			t.Fatal(err)
		}
		for _, name := range []string{"", "a", "a/b", "a/b/file", "link", "a/dangling", "a/loop", "fifo"} {
			if got := of(filepath.Join(tree, name)); got != label {
				t.Errorf("tree/%s has the label %q", name, got)
			}
		}
		// Names of one letter keep the path below the kernel's limit.
		deep := tree
		for range maxDepth {
			deep += "/d"
		}
		if err := os.MkdirAll(deep, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := Relabel(tree, label); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("directories that are nested too deep: %v", err)
		}
		if got := of(outside); got != before || of(filepath.Join(outside, "file")) != before {
			t.Errorf("outside of the directory: %q", got)
		}
	})
}

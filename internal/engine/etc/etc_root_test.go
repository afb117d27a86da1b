package etc_test

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/etc"
	"github.com/longshore/longshore/internal/rootfs"
	"github.com/longshore/longshore/internal/roottest"
)

// TestSharedFilesFillNothing writes to the shared files after removing everything that protects
// them: that fills only the small file system of these files, not the one that the sandbox is on.
// It also repeats a create that failed over them.
func TestSharedFilesFillNothing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		state, err := os.MkdirTemp("/run", "state")
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("tmpfs", state, "tmpfs", 0, "size=4m"); err != nil {
			t.Fatal(err)
		}
		sb, roots := &core.Sandbox{Dir: filepath.Join(state, "sb")}, rootfs.New(rootfs.Options{})
		for _, name := range names {
			put(t, filepath.Join(sb.Dir, name), name)
		}
		if err := os.Mkdir(filepath.Join(sb.Dir, "etc"), 0o700); err != nil { // left by a create that failed
			t.Fatal(err)
		}
		at, err := etc.Share(t.Context(), roots, sb, names)
		if err != nil {
			t.Fatal(err)
		}
		if !etc.Shared(sb) {
			t.Error("it is not shared")
		}
		if again, err := etc.Share(t.Context(), roots, sb, names); err != nil || again != at {
			t.Errorf("again: %s, %v", again, err)
		}
		for _, name := range names {
			if b, err := os.ReadFile(filepath.Join(at, name)); string(b) != name {
				t.Errorf("%s: %q, %v", name, b, err)
			}
		}
		before := free(t, state)
		if n := fillUp(t, filepath.Join(at, "hosts")); n > 128<<10 {
			t.Errorf("%d bytes fit in", n)
		}
		if after := free(t, state); after < before {
			t.Errorf("the state file system lost %d bytes", before-after)
		}
		// The control: a file of the sandbox's directory, as it was once bound.
		if fillUp(t, filepath.Join(sb.Dir, "hosts")); free(t, state) > 64<<10 {
			t.Errorf("the control left %d bytes free", free(t, state))
		}
		if err := etc.Remove(t.Context(), roots, sb.Dir); err != nil {
			t.Error(err)
		}
		if mounted, err := roots.Mounted(t.Context(), sb.Dir); err != nil || len(mounted) > 0 {
			t.Errorf("mounted: %v, %v", mounted, err)
		}
		if err := etc.Remove(t.Context(), roots, sb.Dir); err != nil {
			t.Errorf("again: %v", err)
		}
	})
}

func free(t *testing.T, dir string) int64 {
	t.Helper()
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		t.Fatal(err)
	}
	return int64(st.Bavail) * st.Bsize
}

// fillUp appends to a file until there is no room, and returns the number of bytes written.
func fillUp(t *testing.T, path string) (n int) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for page := make([]byte, 4096); n < 64<<20; {
		k, err := f.Write(page)
		if n += k; errors.Is(err, unix.ENOSPC) {
			return n
		} else if err != nil {
			t.Fatal(err)
		}
	}
	return n
}

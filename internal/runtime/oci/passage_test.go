package oci

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// TestPassagesAreCounted: a directory is open to each for as long as one of its
// creates is under way, and as it was after the last.
func TestPassagesAreCounted(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "closed")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	var p passages
	list := func() (n int) {
		size, err := unix.Getxattr(dir, accessList, nil)
		if err != nil {
			return 0
		}
		return (size - 4) / 8
	}
	for i, uid := range []uint32{7, 7, 8} {
		needed, err := p.grant(dir, uid)
		if err != nil && i == 0 {
			t.Skipf("no access control lists here: %v", err)
		}
		if err != nil || !needed {
			t.Fatalf("%d: %v, %v", uid, needed, err)
		}
	}
	for i, want := range []int{6, 6, 5, 0} { // owner, group, mask and others, beside the users
		if got := list(); got != want {
			t.Errorf("after %d revocations %d entries, want %d", i, got, want)
		}
		if i < 3 {
			if err := p.revoke([]string{dir}, []uint32{7, 7, 8}[i]); err != nil {
				t.Fatal(err)
			}
		}
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	if needed, err := p.grant("/", 7); needed || err != nil {
		t.Errorf("/: %v, %v", needed, err)
	}
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
}

package selinux

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
)

// TestPairs makes the level of each two of the first categories, in both orders.
func TestPairs(t *testing.T) {
	seen := map[string]int{}
	for a := range 30 {
		for b := range 29 {
			seen[pair(a, b)]++
		}
	}
	if len(seen) != 30*29/2 {
		t.Errorf("%d levels", len(seen))
	}
	for level, n := range seen {
		if n != 2 {
			t.Fatalf("%s is made %d times", level, n)
		}
	}
	if last := pair(categories-1, categories-2); last != "s0:c1022,c1023" {
		t.Errorf("the last is %s", last)
	}
}

func TestLevelOf(t *testing.T) {
	for label, want := range map[string]string{
		"system_u:object_r:container_file_t:s0:c1,c2": "s0:c1,c2", "u:r:t:s0": "s0", "u:r:t": "", "": "", "u:r:t:s0-s0:c0.c1023": "s0-s0:c0.c1023",
	} {
		if got := LevelOf(label); got != want {
			t.Errorf("%q: %q, want %q", label, got, want)
		}
	}
}

// TestUsable: this test has no SELinux, or a policy without such a type.
func TestUsable(t *testing.T) {
	if err := Usable("system_u:system_r:nobodys_t:s0"); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "SELinux") {
		t.Errorf("%v", err)
	}
}

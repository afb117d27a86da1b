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

// TestChosenLevelsAreFree: neither a used one nor one that another caller has not released.
func TestChosenLevelsAreFree(t *testing.T) {
	var l Levels
	used, all := map[string]bool{}, map[string]bool{}
	for i := range 2000 {
		level, release, err := l.Choose(func(level string) bool { return used[level] })
		if err != nil || all[level] {
			t.Fatalf("choice %d is %s: chosen before %v, %v", i, level, all[level], err)
		}
		all[level] = true
		if i%2 == 0 {
			used[level] = true
			release()
		}
	}
	if len(l.being) != 1000 {
		t.Errorf("%d levels are held", len(l.being))
	}
}

func TestNoLevelIsFree(t *testing.T) {
	var l Levels
	if level, _, err := l.Choose(func(string) bool { return true }); !errdefs.IsUnavailable(err) {
		t.Errorf("%q, %v", level, err)
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

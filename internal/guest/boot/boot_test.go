package boot

import (
	"slices"
	"strings"
	"testing"
)

func TestNameIn(t *testing.T) {
	for file, want := range map[string]string{
		"": "localhost", "\n# a guest\n  kata  \nother\n": "kata", "kata": "kata", strings.Repeat("x", 70): strings.Repeat("x", 64), "#\n": "localhost",
	} {
		if got := nameIn(file); got != want {
			t.Errorf("%q: %q, want %q", file, got, want)
		}
	}
}

func TestEnabledControllers(t *testing.T) {
	file := "#subsys_name\thierarchy\tnum_cgroups\tenabled\nmemory\t0\t1\t0\ncpu\t3\t1\t1\ndevices\t4\t1\t1\nodd\t1\n../x\t1\t1\t1\ncpuset\t2\t7\t1\n"
	if got, want := enabled(file), []string{"cpu", "cpuset", "devices"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestStateOf(t *testing.T) {
	for stat, want := range map[string]struct {
		state  byte
		parent int
	}{
		"12 (sh) Z 1 12 12 0": {'Z', 1}, "12 (a) Z 1 (b) S 7 12": {'S', 7}, "": {}, "12 (x": {}, "12 (x)": {}, "12 (x) Z": {}, "12 (x) Z y": {}, "12 (x) ZZ 1": {},
	} {
		if state, parent := stateOf([]byte(stat)); state != want.state || parent != want.parent {
			t.Errorf("%q: %c %d", stat, state, parent)
		}
	}
}

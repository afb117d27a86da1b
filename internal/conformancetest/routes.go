package conformancetest

import (
	"maps"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

// Routes compares routes, METHOD PATH each, with the table of a section of docs/conformance.md below root. Each route must have one
// row, with a state, and the tests in the row's last cell must exist: those without a directory in dir.
func Routes(t *testing.T, root, heading, dir string, routes []string) {
	t.Helper()
	_, text, _ := strings.Cut(Read(t, root), "\n## "+heading+"\n")
	text, _, _ = strings.Cut(text, "\n## ")
	left := map[string]bool{}
	for _, p := range routes {
		left[p] = true
	}
	for line := range strings.Lines(text) {
		cells := strings.Split(line, "|")
		if len(cells) != 6 || !strings.Contains(cells[1], "/") {
			continue
		}
		for _, route := range strings.Split(strings.TrimSpace(cells[1]), ", ") {
			if !left[route] {
				t.Errorf("%s is no route, or has two rows", route)
			}
			delete(left, route)
		}
		if state := strings.TrimSpace(cells[2]); !slices.Contains([]string{"works", "differs", "refused"}, state) {
			t.Errorf("%s is %q", cells[1], state)
		}
		for _, test := range strings.Split(strings.TrimSpace(cells[4]), ", ") {
			in, name := path.Split(test)
			if in == "" {
				in = dir
			}
			if exec.CommandContext(t.Context(), "grep", "-rqw", "func "+name, path.Join(root, in), "--include=*_test.go").Run() != nil {
				t.Errorf("%s: there is no test %s", cells[1], test)
			}
		}
	}
	if len(left) > 0 {
		t.Errorf("without a row: %v", slices.Sorted(maps.Keys(left)))
	}
}

package options

import (
	"os"
	"strings"
	"testing"
)

// TestEveryOptionHasARow compares the options with the guide's table.
func TestEveryOptionHasARow(t *testing.T) {
	guide, err := os.ReadFile("../../../docs/guide/kata.md")
	if err != nil {
		t.Fatal(err)
	}
	for name, o := range known {
		var row string
		for line := range strings.Lines(string(guide)) {
			if first, rest, ok := strings.Cut(strings.TrimPrefix(line, "| "), " | "); ok && strings.Contains(first, "`"+name+"`") {
				row = rest
			}
		}
		switch {
		case row == "":
			t.Errorf("docs/guide/kata.md has no row for the option %s", name)
		case o.apply == nil != strings.HasPrefix(row, "no effect"):
			t.Errorf("the option %s is served: %v; the guide says %q", name, o.apply != nil, row)
		}
	}
}

package docker_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// knownDifference is one line of the guide's table of differences. In request and path, * is any text.
type knownDifference struct{ request, path, reason string }

// knownDifferences are the differences between dockerd 28 and the node, with their reasons. A line that matches no
// difference fails TestBesideDockerd.
var knownDifferences = []knownDifference{}

// known finds differences in the table.
type known struct {
	used  []int
	found int
	lines []string // of unknown differences, as rows for the guide
}

func newKnown(t *testing.T) *known {
	t.Helper()
	return &known{used: make([]int, len(knownDifferences))}
}

// glob matches text against pattern. An asterisk matches any text.
func glob(pattern, text string) bool {
	return regexp.MustCompile("^(?s:" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + ")$").MatchString(text)
}

// difference counts a known difference, and reports another one.
func (k *known) difference(t *testing.T, scene, request string, d difference) {
	t.Helper()
	k.found++
	for i, e := range knownDifferences {
		if glob(e.request, request) && glob(e.path, d.path) {
			k.used[i]++
			return
		}
	}
	k.lines = append(k.lines, fmt.Sprintf("| %s: `%s` | %s | %s | %s |", scene, request, d.path, cell(d.docker), cell(d.ours)))
}

// cell is a text in one line of a table.
func cell(text string) string {
	if text == "" {
		return "absent"
	}
	if len(text) > 300 {
		text = text[:300] + "…"
	}
	return strings.NewReplacer("\n", "⏎", "|", `\|`).Replace(text)
}

// check reports unknown differences as rows for the guide, and lines of the table that match no difference.
func (k *known) check(t *testing.T) {
	t.Helper()
	if len(k.lines) > 0 {
		t.Errorf("%d differences are not in the table of known differences: request, path, dockerd, node:\n%s", len(k.lines), strings.Join(k.lines, "\n"))
	}
	var rows strings.Builder
	for i, n := range k.used {
		e := knownDifferences[i]
		fmt.Fprintf(&rows, "| `%s` | %s | %s |\n", cell(e.request), cell(e.path), e.reason)
		if n == 0 {
			t.Errorf("no answer differs any more at the known difference %q %q: remove it", e.request, e.path)
		}
	}
	t.Logf("the guide's rows:\n%s", rows.String())
}

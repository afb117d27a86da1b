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
	rows  []string            // of unknown differences, for the guide
	in    map[string][]string // requests by rows
}

func newKnown(t *testing.T) *known {
	t.Helper()
	return &known{used: make([]int, len(knownDifferences)), in: map[string][]string{}}
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
	row := fmt.Sprintf("| %s | %s | %s |", d.path, cell(d.docker), cell(d.ours))
	if k.in[row] == nil {
		k.rows = append(k.rows, row)
	}
	k.in[row] = append(k.in[row], scene+": "+request)
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
	for _, row := range k.rows {
		in := k.in[row]
		more := ""
		if len(in) > 1 {
			more = fmt.Sprintf(" and %d more", len(in)-1)
		}
		t.Errorf("a difference is not in the table of known differences: | `%s`%s %s", in[0], more, row)
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

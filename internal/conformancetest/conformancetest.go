// Package conformancetest reads docs/conformance.md for tests.
package conformancetest

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Read returns docs/conformance.md below root, the top of the tree. Each row of a table is complete
// in it, on a line of its own: the text of its note replaces the word "below" in a cell, and the
// note's tests replace the "…" that ends the list of tests. It fails t if a row lacks its note, or a
// note its row.
func Read(t testing.TB, root string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(root, "docs/conformance.md"))
	if err != nil {
		t.Fatal(err)
	}
	text, err := join(string(b))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

const (
	noteCell  = " | below |"
	moreTests = ", … |"
)

var (
	note  = regexp.MustCompile(`^- \*\*(.+?)\*\*: (.+)$`)
	tests = regexp.MustCompile(`^(.*?)\s*Also shown by (.+)\.$`)
)

// join moves each note into the row that has its name, in the table above the note.
func join(text string) (string, error) {
	lines := strings.Split(text, "\n")
	rows := map[string]int{} // the lines of the last table, by first cell
	inTable := false
	for i := 0; i < len(lines); i++ {
		if name, ok := firstCell(lines[i]); ok {
			if !inTable {
				clear(rows)
			}
			inTable = true
			rows[name] = i
			continue
		}
		inTable = false
		if !strings.HasPrefix(lines[i], "- **") {
			continue
		}
		item := lines[i]
		for i+1 < len(lines) && strings.HasPrefix(lines[i+1], "  ") {
			i++
			item += " " + strings.TrimSpace(lines[i])
		}
		m := note.FindStringSubmatch(item)
		if m == nil {
			continue
		}
		row, ok := rows[m[1]]
		if !ok {
			return "", fmt.Errorf("the note %q has no row in the table above it", m[1])
		}
		joined, err := complete(lines[row], m[2])
		if err != nil {
			return "", fmt.Errorf("%s: %w", m[1], err)
		}
		lines[row] = joined
	}
	for _, l := range lines {
		if name, ok := firstCell(l); ok && (strings.Contains(l, noteCell) || strings.HasSuffix(l, moreTests)) {
			return "", fmt.Errorf("%s has no note", name)
		}
	}
	return strings.Join(lines, "\n"), nil
}

// firstCell returns the first cell of a table's line.
func firstCell(line string) (string, bool) {
	rest, ok := strings.CutPrefix(line, "| ")
	if !ok {
		return "", false
	}
	name, _, ok := strings.Cut(rest, " |")
	return name, ok
}

// complete returns the row with the text and the tests of its note.
func complete(row, body string) (string, error) {
	more := ""
	if m := tests.FindStringSubmatch(body); m != nil {
		body, more = m[1], m[2]
	}
	if strings.Contains(row, noteCell) != (body != "") {
		return "", fmt.Errorf("the row or the note lacks the text")
	}
	if strings.HasSuffix(row, moreTests) != (more != "") {
		return "", fmt.Errorf("the row or the note lacks the further tests")
	}
	if strings.Contains(body, "|") {
		return "", fmt.Errorf("a note cannot contain |")
	}
	row = strings.Replace(row, noteCell, " | "+body+" |", 1)
	if more != "" {
		row = strings.TrimSuffix(row, moreTests) + ", " + more + " |"
	}
	return row, nil
}

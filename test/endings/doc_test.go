package endings

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
)

// elsewhere are the lines of docs/why.md that other tests keep true.
var elsewhere = map[string]string{
	"Mesos: the container that it is nested in ended":          "TestTheEndOfTheParentIsToldRight",
	"stopped by the agent, because systemd shut the node down": "make vm-services",
}

// TestTheDocumentHasEveryDeath: docs/why.md has a line for each of the deaths, with the verdict, exit
// code and reason that these are to have, and no other line.
func TestTheDocumentHasEveryDeath(t *testing.T) {
	doc, err := os.ReadFile("../../docs/why.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(doc), "|---|\n")
	table, _, _ = strings.Cut(table, "\n\n")
	type line struct{ death, verdict, code, reason string }
	var lines []line
	for row := range strings.Lines(table) {
		cells := strings.Split(strings.Trim(row, "|\n"), "|")
		if len(cells) != 4 {
			t.Fatalf("%d cells: %s", len(cells), row)
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if cells[0] == "" { // the verdict continues
			if len(lines) == 0 || cells[2] != "" || cells[3] != "" {
				t.Fatalf("a row without a death: %s", row)
			}
			lines[len(lines)-1].verdict += " " + cells[1]
			continue
		}
		lines = append(lines, line{cells[0], cells[1], cells[2], cells[3]})
	}
	stands := map[string]bool{}
	for _, d := range deaths {
		want := regexp.MustCompile(strings.NewReplacer("STOP", "NAME", "SIGNAL", "NAME", "LIMIT", `the container \(16 MiB\)`).Replace(d.why) + "($| \\()")
		code, reason := fmt.Sprint(d.end.status()), strings.Fields((&criFace{}).says(d.end, d.why))[0]
		if d.gone {
			code, reason = "", ""
		}
		found := false
		for _, l := range lines {
			at := want.FindStringIndex(l.verdict)
			if at == nil || at[0] != 0 && !strings.HasSuffix(l.verdict[:at[0]], "as if they had been there: ") || l.code != code {
				continue
			}
			if !strings.HasPrefix(l.reason, reason) && d.flags == nil { // CRI says nothing of longshore run's flags
				continue
			}
			found, stands[l.death] = true, true
		}
		if !found {
			t.Errorf("docs/why.md has no line for %s: %q, %s, %s", d.name, want, code, reason)
		}
	}
	for _, l := range lines {
		if !stands[l.death] && elsewhere[l.death] == "" {
			t.Errorf("no test has the death of docs/why.md: %q", l)
		}
	}
}

package conformancetest

import (
	"strings"
	"testing"
)

const table = "| call | state | how | shown by |\n|---|---|---|---|\n"

func TestNotesAreJoinedWithTheirRows(t *testing.T) {
	text := table + "| A/Short | works | fits | TestA |\n| A/Long | differs | below | TestB, … |\n| A/Tests | works |  | TestC, … |\n\n" +
		"- **A/Long**: The first half\n  and the second. Also shown by TestD,\n  test/e2e/TestE.\n- **A/Tests**: Also shown by TestF.\n\n" +
		table + "| A/Long | works | below | TestG |\n\n- **A/Long**: Another table.\n\n" +
		"| case | result |\n|---|---|\n| one, two | below |\n\n- **one,\n  two**: Refused.\n"
	got, err := join(text)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| A/Short | works | fits | TestA |\n",
		"| A/Long | differs | The first half and the second. | TestB, TestD, test/e2e/TestE |\n",
		"| A/Tests | works |  | TestC, TestF |\n",
		"| A/Long | works | Another table. | TestG |\n",
		"| one, two | Refused. |\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("no row %q in:\n%s", want, got)
		}
	}
}

func TestNotesThatDoNotFitTheirRowsAreErrors(t *testing.T) {
	for _, c := range []struct{ name, row, notes string }{
		{"no note", "| A | works | below | TestA |", ""},
		{"no tests", "| A | works | fits | TestA, … |", ""},
		{"the note has no text", "| A | works | below | TestA, … |", "- **A**: Also shown by TestB.\n"},
		{"the note has no tests", "| A | works | below | TestA, … |", "- **A**: Text.\n"},
		{"the row has a text", "| A | works | fits | TestA |", "- **A**: Text.\n"},
		{"the row has all tests", "| A | works | below | TestA |", "- **A**: Text. Also shown by TestB.\n"},
		{"no row", "| A | works | fits | TestA |", "- **B**: Text.\n"},
		{"two notes", "| A | works | below | TestA |", "- **A**: Text.\n- **A**: Text.\n"},
		{"a bar", "| A | works | below | TestA |", "- **A**: One | two.\n"},
	} {
		if got, err := join(table + c.row + "\n\n" + c.notes); err == nil {
			t.Errorf("%s: no error, but\n%s", c.name, got)
		}
	}
}

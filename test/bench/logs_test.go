package main

import (
	"fmt"
	"strings"
	"testing"
)

// TestRecordsAreCounted: whole ones and parts, as long as they make up the lines.
func TestRecordsAreCounted(t *testing.T) {
	const at = "2026-01-02T15:04:05.000000001Z stdout "
	var whole, parts strings.Builder
	for i := range logLines {
		fmt.Fprintf(&whole, at+"F line %d of many\n", i+1)
		fmt.Fprintf(&parts, at+"P line \n"+at+"P %d of \n"+at+"F many\n", i+1)
	}
	for log, want := range map[string]int{whole.String(): logLines, parts.String(): 3 * logLines} {
		if n, err := countRecords([]byte(log)); n != want || err != nil {
			t.Errorf("%d records, %v; want %d", n, err, want)
		}
	}
	for _, wrong := range []string{"", strings.Replace(whole.String(), "line 7 ", "line 8 ", 1), "x\n", whole.String() + at + "F \n"} {
		if n, err := countRecords([]byte(wrong)); err == nil {
			t.Errorf("%d records of %.40q", n, wrong)
		}
	}
}

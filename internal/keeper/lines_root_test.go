package keeper_test

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/roottest"
)

// TestALineInPiecesIsOneRecord: a program that writes its lines in pieces has a log of whole lines,
// with a keeper's death between two pieces too, and text without a newline comes soon, and at its
// end.
func TestALineInPiecesIsOneRecord(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		e := newEnv(t)
		log := e.file("log")
		// printf of a shell writes at once.
		l := e.shell("pieces", `
			i=0; while [ $i -lt 300 ]; do printf a; printf b; printf "c\n"; i=$((i+1)); done
			printf part; read x; printf " end\n"
			printf question; read x; printf " answer\nlast"`)
		l.IO.Stdin = core.StdinOpen
		l.IO.Sinks = []core.Sink{{Format: core.FormatCRI, Stdout: true, Stderr: true, Path: log}}
		e.launch(l)
		await := func(what string, ok func(log string) bool) {
			t.Helper()
			tick := time.NewTicker(10 * time.Millisecond)
			defer tick.Stop()
			for over := time.Now().Add(roottest.Patience()); ; {
				b, err := os.ReadFile(log)
				if err == nil && ok(string(b)) {
					return
				}
				if time.Now().After(over) {
					t.Fatalf("never: %s; log ends with %q, %v", what, tail(string(b)), err)
				}
				<-tick.C
			}
		}
		await("300 lines", func(log string) bool { return strings.Count(log, "c\n") == 300 })
		whole := func(log string) int { return strings.Count(log, " stdout F abc\n") }
		if got := read(t, log); whole(got) < 290 { // a piece comes late where the machine is busy
			t.Errorf("%d of 300 lines are one record: %q", whole(got), tail(got))
		}
		killAndWait(t, e.status().KeeperPid)
		st, err := e.c.Streams(e.ctx(), l.Ref, core.StreamOptions{Stdin: true})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := st.Stdin.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		await("a question", func(log string) bool { return strings.HasSuffix(log, " stdout P question\n") })
		if _, err := st.Stdin.Write([]byte("\n")); err != nil {
			t.Fatal(err)
		}
		if x := e.exit(l.Ref); x.Exit.Code != 0 || x.LostOut != 0 {
			t.Errorf("exit %+v", x)
		}
		var text strings.Builder
		for line := range strings.Lines(read(t, log)) {
			_, rest, _ := strings.Cut(line, " stdout ")
			tag, rest, _ := strings.Cut(rest, " ")
			if tag == "P" {
				rest = strings.TrimSuffix(rest, "\n")
			}
			text.WriteString(rest)
		}
		if want := strings.Repeat("abc\n", 300) + "part end\nquestion answer\nlast"; text.String() != want {
			t.Errorf("it ends with %q", tail(text.String()))
		}
		if got := read(t, log); !strings.HasSuffix(got, " stdout P last\n") {
			t.Errorf("it ends with %q", tail(got))
		}
	})
}

func tail(s string) string { return s[max(0, len(s)-200):] }

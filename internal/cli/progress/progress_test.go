package progress

import (
	"strings"
	"testing"
	"time"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// screen returns the lines above the cursor that a terminal shows for a text.
func screen(t *testing.T, text string) []string {
	t.Helper()
	var lines []string
	at, col := 0, 0
	for text != "" {
		if rest, ok := strings.CutPrefix(text, "\x1b["); ok {
			n := 0
			i := 0
			for ; i < len(rest) && rest[i] >= '0' && rest[i] <= '9'; i++ {
				n = n*10 + int(rest[i]-'0')
			}
			switch rest[i] {
			case 'A':
				at -= n
			case 'J':
				lines = lines[:min(at, len(lines))]
			default:
				t.Fatalf("unknown sequence %q", rest[:i+1])
			}
			text = rest[i+1:]
			continue
		}
		c := text[0]
		text = text[1:]
		switch c {
		case '\r':
			col = 0
		case '\n':
			at, col = at+1, 0
		default:
			for len(lines) <= at {
				lines = append(lines, "")
			}
			lines[at] = lines[at][:min(col, len(lines[at]))] + string(c)
			col++
		}
	}
	return lines
}

func TestBarsAreReplacedAndEndedOnesStay(t *testing.T) {
	var out strings.Builder
	now := time.Unix(0, 0)
	b := &bars{w: &out, size: func() (int, int) { return 60, 5 }, now: func() time.Time { now = now.Add(time.Second); return now }, done: map[string]bool{}}
	blob := func(i int) string { return "sha256:" + strings.Repeat(string(rune('a'+i)), 64) }
	b.Step(&longshorev1.PullProgress{Status: "resolving"})
	for i := range 6 {
		b.Step(&longshorev1.PullProgress{Blob: blob(i), Status: "downloading", Done: 1 << 20, Total: 4 << 20})
	}
	b.Step(&longshorev1.PullProgress{Blob: blob(0), Status: "downloading", Done: 2 << 20, Total: 4 << 20})
	got := screen(t, out.String())
	if len(got) != 3 || !strings.Contains(got[0], "["+strings.Repeat("=", 15)+strings.Repeat(" ", 15)+"]") {
		t.Errorf("the terminal of 5 lines shows %q", got)
	}
	for i := range 6 {
		b.Step(&longshorev1.PullProgress{Blob: blob(i), Status: "done", Done: 4 << 20, Total: 4 << 20})
		b.Step(&longshorev1.PullProgress{Blob: blob(i), Status: "done", Done: 4 << 20, Total: 4 << 20})
	}
	b.End()
	b.End()
	got = screen(t, out.String())
	if len(got) != 6 {
		t.Fatalf("at the end it shows %q", got)
	}
	for i, line := range got {
		if !strings.HasPrefix(line, base.Short(blob(i))) || !strings.Contains(line, "done") || len(line) >= 60 {
			t.Errorf("line %d is %q", i, line)
		}
	}
}

// Package progress shows the progress of pulls and pushes: a bar for each blob on a terminal, lines elsewhere.
package progress

import (
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/term"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// Progress shows the progress of a pull or a push.
type Progress interface {
	Step(p *longshorev1.PullProgress)
	// End restores the terminal; it may be called twice.
	End()
}

// New returns bars for a terminal, lines for another writer, and nothing when quiet.
func New(w io.Writer, quiet bool) Progress {
	if quiet {
		return silent{}
	}
	if f, ok := base.Terminal(w); ok {
		return &bars{w: w, size: func() (int, int) { return windowSize(f) }, now: time.Now, done: map[string]bool{}}
	}
	return &lines{w: w, last: map[string]string{}}
}

// waiting is the status of a blob before anything happens to it.
const waiting = "waiting"

type silent struct{}

func (silent) Step(*longshorev1.PullProgress) {}
func (silent) End()                           {}

// lines prints each change of a blob's status once.
type lines struct {
	w    io.Writer
	last map[string]string
}

func (l *lines) Step(p *longshorev1.PullProgress) {
	if l.last[p.GetBlob()] == p.GetStatus() || p.GetStatus() == waiting {
		return
	}
	l.last[p.GetBlob()] = p.GetStatus()
	name := base.Short(p.GetBlob())
	if name == "" {
		name = "image"
	}
	text := fmt.Sprintf("%s: %s", name, p.GetStatus())
	if p.GetTotal() > 0 && (p.GetStatus() == "downloading" || p.GetStatus() == "uploading") {
		text += " " + base.Size(uint64(p.GetTotal()))
	}
	_, _ = fmt.Fprintln(l.w, text)
}

func (l *lines) End() {}

// The bars of a terminal.
const (
	barWidth    = 30
	redrawEvery = 100 * time.Millisecond
)

// bars shows a line with a bar for each blob in progress, and leaves a line for each that is
// done.
type bars struct {
	w     io.Writer
	size  func() (cols, rows int) // of the terminal
	now   func() time.Time
	live  []*longshorev1.PullProgress // in the order of their starts
	done  map[string]bool
	drawn int // lines of live that are on the terminal
	last  time.Time
}

func (b *bars) Step(p *longshorev1.PullProgress) {
	if p.GetBlob() == "" || b.done[p.GetBlob()] || p.GetStatus() == waiting {
		return // the progress of the blobs is enough
	}
	i := slices.IndexFunc(b.live, func(q *longshorev1.PullProgress) bool { return q.GetBlob() == p.GetBlob() })
	changed := i < 0 || b.live[i].GetStatus() != p.GetStatus()
	if i < 0 {
		b.live = append(b.live, p)
	} else {
		b.live[i] = p
	}
	var above string
	if p.GetStatus() == "done" || p.GetStatus() == "exists" {
		b.done[p.GetBlob()] = true
		b.live = slices.DeleteFunc(b.live, func(q *longshorev1.PullProgress) bool { return q.GetBlob() == p.GetBlob() })
		above = base.Short(p.GetBlob()) + "  " + p.GetStatus() + "  " + base.Size(uint64(max(p.GetTotal(), 0)))
	}
	if now := b.now(); changed || now.Sub(b.last) >= redrawEvery {
		b.last = now
		b.draw(above)
	}
}

func (b *bars) End() {
	if b.drawn > 0 {
		b.draw("")
	}
}

// draw replaces the last lines, below a new permanent line if there is one. It never draws more
// lines than the terminal has, because lines that have scrolled away cannot be replaced.
func (b *bars) draw(above string) {
	cols, rows := b.size()
	var out strings.Builder
	if b.drawn > 0 {
		fmt.Fprintf(&out, "\x1b[%dA", b.drawn)
	}
	out.WriteString("\r\x1b[J") // clear from here to the end
	if above != "" {
		out.WriteString(fit(above, cols) + "\n")
	}
	shown := b.live[:min(len(b.live), max(rows-2, 1))]
	for _, p := range shown {
		out.WriteString(fit(bar(p), cols) + "\n")
	}
	b.drawn = len(shown)
	_, _ = io.WriteString(b.w, out.String())
}

// bar returns the line of a blob in progress.
func bar(p *longshorev1.PullProgress) string {
	line := base.Short(p.GetBlob()) + "  "
	if p.GetTotal() <= 0 || p.GetStatus() != "downloading" {
		return line + p.GetStatus()
	}
	done := min(max(p.GetDone(), 0), p.GetTotal())
	full := int(float64(barWidth) * float64(done) / float64(p.GetTotal()))
	return line + "[" + strings.Repeat("=", full) + strings.Repeat(" ", barWidth-full) + "]  " +
		base.Size(uint64(done)) + " / " + base.Size(uint64(p.GetTotal()))
}

// fit cuts a line to the width of the terminal.
func fit(line string, cols int) string {
	if r := []rune(line); len(r) >= cols {
		return string(r[:max(cols-1, 0)])
	}
	return line
}

// windowSize returns the size of a terminal, or the usual size when it is unknown.
func windowSize(f *os.File) (cols, rows int) {
	cols, rows, err := term.GetSize(int(f.Fd()))
	if err != nil || cols < 1 || rows < 1 {
		return 80, 24
	}
	return cols, rows
}

package cli

import (
	"fmt"
	"io"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

// progress shows how a pull goes.
type progress interface {
	step(p *longshorev1.PullProgress)
	// end leaves the terminal as it should be; it may be called twice.
	end()
}

// newProgress shows bars on a terminal and lines elsewhere, or nothing.
func (a *app) newProgress(w io.Writer, quiet bool) progress {
	if quiet {
		return silent{}
	}
	if _, ok := terminal(w); ok {
		return &bars{p: mpb.New(mpb.WithOutput(w), mpb.WithWidth(48)), blobs: map[string]*mpb.Bar{}}
	}
	return &lines{w: w, last: map[string]string{}}
}

type silent struct{}

func (silent) step(*longshorev1.PullProgress) {}
func (silent) end()                           {}

// lines tells each change of a blob's status once.
type lines struct {
	w    io.Writer
	last map[string]string
}

func (l *lines) step(p *longshorev1.PullProgress) {
	if l.last[p.GetBlob()] == p.GetStatus() {
		return
	}
	l.last[p.GetBlob()] = p.GetStatus()
	name := short(p.GetBlob())
	if name == "" {
		name = "image"
	}
	text := fmt.Sprintf("%s: %s", name, p.GetStatus())
	if p.GetTotal() > 0 && p.GetStatus() == "downloading" {
		text += " " + size(uint64(p.GetTotal()))
	}
	_, _ = fmt.Fprintln(l.w, text)
}

func (l *lines) end() {}

// bars has one bar for each blob.
type bars struct {
	p     *mpb.Progress
	blobs map[string]*mpb.Bar
}

func (b *bars) step(p *longshorev1.PullProgress) {
	if p.GetBlob() == "" {
		return // the whole: its blobs show it
	}
	bar := b.blobs[p.GetBlob()]
	if bar == nil {
		blob := p.GetBlob()
		bar = b.p.AddBar(max(p.GetTotal(), 1), mpb.PrependDecorators(
			decor.Name(short(blob)+"  "),
		), mpb.AppendDecorators(decor.CountersKiloByte("% .1f / % .1f")))
		b.blobs[blob] = bar
	}
	if p.GetTotal() > 0 {
		bar.SetTotal(p.GetTotal(), false)
	}
	switch p.GetStatus() {
	case "done", "exists":
		bar.SetTotal(max(p.GetTotal(), p.GetDone(), 1), true)
	default:
		if p.GetStatus() == "downloading" {
			bar.SetCurrent(p.GetDone())
		}
	}
}

func (b *bars) end() {
	for _, bar := range b.blobs {
		if !bar.Completed() {
			bar.Abort(false)
		}
	}
	b.p.Wait()
}

package cli

import (
	"fmt"
	"io"
	"strings"
	"time"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// partNames maps the verbs of a start to words for people.
func partNames() map[string]string {
	return map[string]string{"pull": "pull of its image", "create_sandbox": "sandbox", "create": "container", "renew": "renewal", "start": "start"}
}

// writeStart writes the durations of a container's start: each verb with its stages, and the time
// between two verbs, when the node waited for a caller.
func writeStart(w io.Writer, resp *longshorev1.WhyResponse) error {
	c := resp.GetContainer()
	t := base.Facts{W: w}
	parts := resp.GetStart()
	if len(parts) == 0 {
		t.Line("%s: there is no record of its start: it was removed, or created by an agent that did not measure starts", base.Printable(c.GetKey()))
		return t.Err
	}
	state := c.GetState() + ", was not started"
	if c.GetStarted() != nil {
		state = "started " + stampText(c.GetStarted().AsTime())
	}
	t.Line("%s: %s", base.Printable(c.GetKey()), base.Printable(state))
	var end time.Time // of the part before
	for _, p := range parts {
		began := p.GetAt().AsTime()
		if gap := began.Sub(end); !end.IsZero() && gap > 0 {
			t.Line("%-22s %10s  %s", "  until the next call", span(gap), "the agent's commit and the caller's own work")
		}
		var took time.Duration
		for _, s := range p.GetStages() {
			took += s.GetTook().AsDuration()
		}
		end = began.Add(took)
		note := "at " + began.Local().Format("15:04:05.000") + ", asked by " + base.Printable(p.GetBy())
		if p.GetBytes() > 0 {
			note += ", " + base.Size(p.GetBytes())
		}
		name := base.Printable(p.GetVerb())
		if known, ok := partNames()[name]; ok {
			name = known
		}
		t.Line("%-22s %10s  %s", name, span(took), note)
		for _, s := range p.GetStages() {
			d := s.GetTook().AsDuration()
			t.Line("%-22s %10s  %s", "  "+base.Printable(s.GetName()), span(d), share(d, took))
		}
	}
	return t.Err
}

// span formats a duration with three digits.
func span(d time.Duration) string {
	switch {
	case d >= 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	default:
		return fmt.Sprintf("%.3f ms", float64(d)/float64(time.Millisecond))
	}
}

// share shows a part of a whole.
func share(part, whole time.Duration) string {
	const width = 30
	if whole <= 0 {
		return ""
	}
	return strings.Repeat("#", int(min(width, (int64(part)*width+int64(whole)/2)/int64(whole))))
}

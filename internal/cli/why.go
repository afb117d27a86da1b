package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/present"
)

func newWhy(a *app) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "why CONTAINER",
		Short: "Show why a container ended",
		Args:  exactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.call(func(c *client) error {
				resp, err := c.containers.Why(cmd.Context(), &longshorev1.WhyRequest{Name: args[0]})
				if err != nil {
					return err
				}
				if asJSON {
					return present.WriteJSON(a.o.Stdout, present.Plain(resp), true)
				}
				return writeWhy(a.o.Stdout, resp)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	return cmd
}

// writeWhy writes an autopsy line by line, the verdict first.
func writeWhy(w io.Writer, resp *longshorev1.WhyResponse) error {
	c := resp.GetContainer()
	t := facts{w: w}
	au := c.GetAutopsy()
	if au == nil {
		t.line("%s: %s, has not ended", printable(c.GetKey()), c.GetState())
		if c.GetStarted() != nil {
			t.fact("started", "%s", stampText(c.GetStarted().AsTime()))
		}
	} else {
		t.line("%s: %s", printable(c.GetKey()), printable(au.GetVerdict()))
		t.autopsy(au)
		if c.GetStarted() != nil && au.GetAt() != nil {
			t.fact("ran for", "%s", au.GetAt().AsTime().Sub(c.GetStarted().AsTime()).Round(time.Millisecond))
		}
	}
	if n := resp.GetLostBytes(); n > 0 {
		t.fact("lost output", "%s (a log could not be written)", size(n))
	}
	for _, p := range resp.GetExecs() {
		t.fact("exec "+p.GetId(), "%s", printable(p.GetAutopsy().GetVerdict()))
	}
	for _, warning := range c.GetWarnings() {
		t.fact("warning", "%s", printable(warning))
	}
	for i, l := range au.GetTail() {
		if i == 0 {
			t.line("last output:")
		}
		t.line("  | %s", printable(l))
	}
	return t.err
}

func stampText(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05.000 MST") }

// facts writes lines and remembers the first error.
type facts struct {
	w   io.Writer
	err error
}

func (t *facts) line(format string, args ...any) {
	if _, err := fmt.Fprintf(t.w, format+"\n", args...); err != nil && t.err == nil {
		t.err = fmt.Errorf("write: %w", err)
	}
}

func (t *facts) fact(name, format string, args ...any) {
	t.line("  %-12s %s", name, fmt.Sprintf(format, args...))
}

func (t *facts) autopsy(a *longshorev1.Autopsy) {
	switch {
	case a.GetStart() != "":
		t.fact("start", "%s", printable(a.GetStart()))
	case a.GetLost():
		t.fact("status", "lost: agent and keeper were not running when it ended")
	case a.GetSignal() != 0:
		dump := ""
		if a.GetCore() {
			dump = ", core dumped"
		}
		t.fact("status", "killed by signal %d (%s)%s", a.GetSignal(), signalName(a.GetSignal()), dump)
	default:
		t.fact("status", "exit code %d", a.GetCode())
	}
	if a.GetAt() != nil {
		t.fact("ended", "%s", stampText(a.GetAt().AsTime()))
	}
	if o := a.GetOom(); o != nil {
		who := "another process in it"
		if o.GetMain() {
			who = "the main process"
		}
		pid := ""
		if o.GetVictim() != 0 {
			pid = fmt.Sprintf(", pid %d", o.GetVictim())
		}
		t.fact("out of memory", "%d kill(s) at the limit of the %s, victim: %s%s", o.GetKills(), o.GetLevel(), who, pid)
	}
	if r := a.GetAsked(); r != nil {
		by := ""
		if r.GetUser() != "" {
			by = ", " + r.GetUser()
		}
		sig := ""
		if r.GetSignal() != 0 {
			sig = " with " + signalName(r.GetSignal())
		}
		t.fact("asked by", "%s: %s%s%s", r.GetOwner(), printable(r.GetCall()), sig, by)
	}
	if a.GetPeakBytes() > 0 {
		limit := ""
		if a.GetLimitBytes() > 0 {
			limit = " of " + size(a.GetLimitBytes())
		}
		t.fact("memory peak", "%s%s", size(a.GetPeakBytes()), limit)
	} else if a.GetLimitBytes() > 0 {
		t.fact("memory limit", "%s", size(a.GetLimitBytes()))
	}
}

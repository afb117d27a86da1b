package cli

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/egress"
	"github.com/longshore/longshore/internal/cli/node"
	"github.com/longshore/longshore/internal/cli/present"
)

func newWhy(a *app) *cobra.Command {
	var asJSON, start bool
	cmd := &cobra.Command{
		Use:   "why CONTAINER",
		Short: "Show why a container ended, or where the time of its start went",
		Args:  base.ExactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.Call(func(c *base.Client) error {
				resp, err := c.Containers.Why(cmd.Context(), &longshorev1.WhyRequest{Name: args[0]})
				if err != nil {
					return err
				}
				if asJSON {
					return present.WriteJSON(a.Stdout, present.Plain(resp), true)
				}
				if start {
					return writeStart(a.Stdout, resp)
				}
				return writeWhy(a.Stdout, resp)
			})
		},
	}
	cmd.AddCommand(node.NewWhyDisk(a.App))
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&start, "start", false, "show where the time of its last start went, stage by stage")
	return cmd
}

// writeWhy writes an autopsy line by line, the verdict first.
func writeWhy(w io.Writer, resp *longshorev1.WhyResponse) error {
	c := resp.GetContainer()
	t := base.Facts{W: w}
	au := c.GetAutopsy()
	if au == nil {
		t.Line("%s: %s, has not ended", base.Printable(c.GetKey()), c.GetState())
		if c.GetStarted() != nil {
			t.Fact("started", "%s", stampText(c.GetStarted().AsTime()))
		}
	} else {
		t.Line("%s: %s", base.Printable(c.GetKey()), base.Printable(au.GetVerdict()))
		autopsyFacts(&t, au)
		if c.GetStarted() != nil && au.GetAt() != nil {
			t.Fact("ran for", "%s", au.GetAt().AsTime().Sub(c.GetStarted().AsTime()).Round(time.Millisecond))
		}
	}
	if h := c.GetHealth(); h != "" && au == nil {
		t.Fact("health", "%s", h)
	}
	if f := resp.GetFailedTest(); f != "" {
		t.Fact("failed test", "%s", base.Printable(f))
	}
	if n := resp.GetLostBytes(); n > 0 {
		t.Fact("lost output", "%s (a log could not be written)", base.Size(n))
	}
	for _, p := range resp.GetExecs() {
		t.Fact("exec "+p.GetId(), "%s", base.Printable(p.GetAutopsy().GetVerdict()))
	}
	for _, warning := range c.GetWarnings() {
		t.Fact("warning", "%s", base.Printable(warning))
	}
	for _, r := range resp.GetRefused() {
		t.Fact("refused", "%s", egress.Line(r))
	}
	for i, l := range au.GetTail() {
		if i == 0 {
			t.Line("last output:")
		}
		t.Line("  | %s", base.Printable(l))
	}
	return t.Err
}

func stampText(t time.Time) string { return t.Local().Format("2006-01-02 15:04:05.000 MST") }

// autopsyFacts writes the facts of an autopsy.
func autopsyFacts(t *base.Facts, a *longshorev1.Autopsy) {
	switch {
	case a.GetStart() != "":
		t.Fact("start", "%s", base.Printable(a.GetStart()))
	case a.GetLost():
		t.Fact("status", "lost: agent and keeper were not running when it ended")
	case a.GetSignal() != 0:
		dump := ""
		if a.GetCore() {
			dump = ", core dumped"
		}
		t.Fact("status", "killed by signal %d (%s)%s", a.GetSignal(), base.SignalName(a.GetSignal()), dump)
	default:
		t.Fact("status", "exit code %d", a.GetCode())
	}
	if a.GetAt() != nil {
		t.Fact("ended", "%s", stampText(a.GetAt().AsTime()))
	}
	if o := a.GetOom(); o != nil {
		victim := "another process in it"
		if o.GetMain() {
			victim = "the main process"
		}
		pid := ""
		if o.GetVictim() != 0 {
			pid = fmt.Sprintf(", pid %d", o.GetVictim())
		}
		t.Fact("out of memory", "%d kill(s) at the limit of the %s, victim: %s%s", o.GetKills(), o.GetLevel(), victim, pid)
	}
	if r := a.GetAsked(); r != nil {
		by := ""
		if r.GetUser() != "" {
			by = ", " + r.GetUser()
		}
		sig := ""
		if r.GetSignal() != 0 {
			sig = " with " + base.SignalName(r.GetSignal())
		}
		t.Fact("asked by", "%s: %s%s%s", r.GetOwner(), base.Printable(r.GetCall()), sig, by)
	}
	if a.GetPeakBytes() > 0 {
		limit := ""
		if a.GetLimitBytes() > 0 {
			limit = " of " + base.Size(a.GetLimitBytes())
		}
		t.Fact("memory peak", "%s%s", base.Size(a.GetPeakBytes()), limit)
	} else if a.GetLimitBytes() > 0 {
		t.Fact("memory limit", "%s", base.Size(a.GetLimitBytes()))
	}
}

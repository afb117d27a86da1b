package cli

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newEvents(a *app) *cobra.Command {
	req := &longshorev1.EventsRequest{}
	var since string
	var asJSON, noFollow bool
	cmd := &cobra.Command{
		Use:   "events [NAME]",
		Short: "Show the event log as it grows",
		Long:  "Show new events, or with --since also earlier ones. NAME is a container or sandbox: only its events are shown.",
		Args:  maxArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 1 {
				req.Name = args[0]
			}
			req.Follow = !noFollow
			if n, nerr := strconv.ParseUint(since, 10, 64); nerr == nil {
				req.SinceSeq = &n
			} else if req.Since, err = parseTime("--since", since); err != nil {
				return &usageError{err}
			}
			return a.call(func(c *client) error {
				stream, err := c.node.Events(cmd.Context(), req)
				if err != nil {
					return err
				}
				return receive(stream.Recv, func(m *longshorev1.EventsResponse) error {
					if asJSON {
						return printJSONLine(a.o.Stdout, m.GetEvent())
					}
					return a.print("%s\n", eventText(m.GetEvent()))
				})
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&since, "since", "", "start at a time, a duration ago, or after a sequence number (0: all events)")
	fl.BoolVar(&noFollow, "no-follow", false, "exit after the newest event")
	fl.StringVar(&req.Owner, "owner", "", "only this owner's")
	fl.StringSliceVar(&req.Kinds, "kind", nil, "only these kinds, such as container.exited")
	fl.BoolVar(&asJSON, "json", false, "print each event as a line of JSON")
	return cmd
}

func eventText(e *longshorev1.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d %s", e.GetAt().AsTime().Local().Format(time.StampMilli), e.GetSeq(), e.GetKind())
	for _, f := range []struct{ name, value string }{
		{"owner", e.GetOwner()}, {"name", e.GetKey()}, {"sandbox", short(e.GetSandbox())}, {"container", short(e.GetContainer())}, {"process", e.GetProcess()},
	} {
		if f.value != "" {
			fmt.Fprintf(&b, " %s=%s", f.name, printable(f.value))
		}
	}
	if v := e.GetAutopsy().GetVerdict(); v != "" {
		fmt.Fprintf(&b, " (%s)", printable(v))
	}
	if e.GetNote() != "" {
		fmt.Fprintf(&b, " (%s)", printable(e.GetNote()))
	}
	return b.String()
}

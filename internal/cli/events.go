package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/present"
)

// firstTime is the smallest number that --since takes as seconds since 1970. Smaller ones are sequence numbers.
const firstTime = 1_000_000_000

// eventFilters are the names of the filters of events.
var eventFilters = []string{"container", "event", "image", "label", "type", "scope", "owner", "sandbox"}

func newEvents(a *app) *cobra.Command {
	req := &longshorev1.EventsRequest{}
	var since, until, format string
	var filters []string
	var asJSON, noFollow bool
	cmd := &cobra.Command{
		Use:   "events [NAME]",
		Short: "Show the event log as it grows",
		Long:  "Show new events, or with --since also earlier ones. NAME is a container or sandbox: only its events are shown.",
		Args:  base.OneArg,
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) == 1 {
				req.Name = args[0]
			}
			req.Follow = !noFollow
			if n, nerr := strconv.ParseUint(since, 10, 64); nerr == nil && n < firstTime {
				req.SinceSeq = &n
			} else if req.Since, err = parseTime("--since", since); err != nil {
				return &base.UsageError{Err: err}
			}
			show := eventsShown{json: asJSON}
			if format != "" {
				if show.format, err = present.ParseFormat(format); err != nil {
					return &base.UsageError{Err: err}
				}
			}
			if show.filters, err = present.ParseFilters(filters, eventFilters...); err != nil {
				return &base.UsageError{Err: err}
			}
			end, err := parseTime("--until", until)
			if err != nil {
				return &base.UsageError{Err: err}
			}
			ctx := cmd.Context()
			if end != nil {
				show.until = end.AsTime()
				if req.Follow = req.GetFollow() && show.until.After(time.Now()); req.GetFollow() {
					// A deadline would reach the agent, which may end the stream before we do.
					var cancel context.CancelCauseFunc
					ctx, cancel = context.WithCancelCause(ctx)
					defer cancel(nil)
					defer time.AfterFunc(time.Until(show.until), func() { cancel(errEnough) }).Stop()
				}
			}
			began := timestamppb.Now()
			return a.Call(func(c *base.Client) error {
				if len(show.filters["image"])+len(show.filters["label"]) > 0 {
					if show.objects, err = newEventObjects(cmd.Context(), c); err != nil {
						return err
					}
				}
				last, err := a.events(ctx, c, req, show)
				if !errors.Is(context.Cause(ctx), errEnough) {
					return err
				}
				// Events from before the deadline may arrive after it.
				switch req.Follow = false; {
				case last != 0:
					req.SinceSeq, req.Since = &last, nil
				case req.Since == nil && req.SinceSeq == nil:
					req.Since = began
				}
				_, err = a.events(cmd.Context(), c, req, show)
				return err
			})
		},
	}
	fl := cmd.Flags()
	fl.StringVar(&since, "since", "", "start at a time, a duration ago, or after a sequence number (0: all events)")
	fl.StringVar(&until, "until", "", "end at a time, or a duration ago")
	fl.BoolVar(&noFollow, "no-follow", false, "exit after the newest event")
	fl.StringVar(&req.Owner, "owner", "", "only this owner's")
	fl.StringSliceVar(&req.Kinds, "kind", nil, "only these kinds, such as container.exited")
	fl.StringArrayVarP(&filters, "filter", "f", nil, "only events that match NAME=VALUE: "+strings.Join(eventFilters, ", "))
	fl.StringVar(&format, "format", "", "template for each event, such as '{{.Action}} {{.Name}}', or json")
	fl.BoolVar(&asJSON, "json", false, "print each event as a line of JSON")
	return cmd
}

// eventsShown has the filters and the format of the shown events.
type eventsShown struct {
	filters present.Filters
	format  *present.Format
	until   time.Time
	json    bool
	objects *eventObjects // only with filters that need them
}

// events shows the agent's events and returns the sequence number of the last one.
func (a *app) events(ctx context.Context, c *base.Client, req *longshorev1.EventsRequest, show eventsShown) (last uint64, err error) {
	stream, err := c.Node.Events(ctx, req)
	if err != nil {
		return 0, err
	}
	err = base.Receive(stream.Recv, func(m *longshorev1.EventsResponse) error {
		last = m.GetEvent().GetSeq()
		if show.objects != nil {
			fits, err := show.objects.fit(ctx, m.GetEvent(), show.filters)
			if err != nil || !fits {
				return err
			}
		}
		return event(a, m.GetEvent(), show)
	})
	return last, err
}

func event(a *app, e *longshorev1.Event, show eventsShown) error {
	kind, action := eventAction(e)
	f := show.filters
	if !f.Any("container", func(v string) bool {
		return e.GetContainer() != "" && (e.GetKey() == v || strings.HasPrefix(e.GetContainer(), v))
	}) ||
		!f.Any("sandbox", func(v string) bool { return strings.HasPrefix(e.GetSandbox(), v) }) ||
		!f.Any("owner", func(v string) bool { return e.GetOwner() == v }) ||
		!f.Any("type", func(v string) bool { return kind == v }) || !f.Any("scope", func(v string) bool { return v == "local" }) ||
		!f.Any("event", func(v string) bool {
			_, own, _ := strings.Cut(e.GetKind(), ".")
			return v == action || v == own || v == e.GetKind() || strings.HasPrefix(action, v+": ")
		}) ||
		!show.until.IsZero() && e.GetAt().AsTime().After(show.until) {
		return nil
	}
	switch {
	case show.json:
		return present.WriteLine(a.Stdout, e)
	case show.format != nil:
		at := e.GetAt().AsTime()
		return show.format.One(a.Stdout, present.Row{
			"Type": kind, "Action": action, "Status": action, "ID": e.GetContainer(), "Name": e.GetKey(), "Owner": e.GetOwner(), "Time": at.Unix(), "TimeNano": at.UnixNano(),
			"Seq": e.GetSeq(), "Kind": e.GetKind(), "Sandbox": e.GetSandbox(), "Process": e.GetProcess(), "Why": e.GetAutopsy().GetVerdict(), "Note": e.GetNote(),
			"ExitCode": int(e.GetAutopsy().GetStatus()), "Scope": "local", "Actor": actor(e),
		})
	}
	return a.Print("%s\n", eventText(e))
}

// actor returns the object of an event in docker's form, with those of its attributes that the event has.
func actor(e *longshorev1.Event) present.Row {
	attributes := map[string]string{"name": e.GetKey()}
	if e.GetKind() == "container.exited" {
		attributes["exitCode"] = strconv.Itoa(int(e.GetAutopsy().GetStatus()))
	}
	return present.Row{"ID": cmp.Or(e.GetContainer(), e.GetSandbox()), "Attributes": attributes}
}

// eventAction returns an event's kind of object and its action, with docker's names.
func eventAction(e *longshorev1.Event) (kind, action string) {
	kind, action, _ = strings.Cut(e.GetKind(), ".")
	if kind == "process" {
		kind, action = "container", "exec_"+action
	}
	known := map[string]string{
		"container.created": "create", "container.started": "start", "container.exited": "die", "container.paused": "pause", "container.resumed": "unpause",
		"container.updated": "update", "container.removed": "destroy", "container.exec_started": "exec_start", "container.exec_exited": "exec_die",
		"image.pulled": "pull", "image.removed": "delete",
	}
	if k := known[kind+"."+action]; k != "" {
		action = k
	}
	if action == "health" { // docker's action contains the status
		status, _, _ := strings.Cut(e.GetNote(), ":")
		action = "health_status: " + status
	}
	if action == "create" && e.GetNote() != "" { // docker has no event between the end and the next start
		action = "renew"
	}
	if action == "update" && strings.HasPrefix(e.GetNote(), "renamed") {
		action = "rename"
	}
	return kind, action
}

func eventText(e *longshorev1.Event) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %d %s", e.GetAt().AsTime().Local().Format(time.StampMilli), e.GetSeq(), e.GetKind())
	for _, f := range []struct{ name, value string }{
		{"owner", e.GetOwner()}, {"name", e.GetKey()}, {"sandbox", base.Short(e.GetSandbox())}, {"container", base.Short(e.GetContainer())}, {"process", e.GetProcess()},
	} {
		if f.value != "" {
			fmt.Fprintf(&b, " %s=%s", f.name, base.Printable(f.value))
		}
	}
	if v := e.GetAutopsy().GetVerdict(); v != "" {
		fmt.Fprintf(&b, " (%s)", base.Printable(v))
	}
	if e.GetNote() != "" {
		fmt.Fprintf(&b, " (%s)", base.Printable(e.GetNote()))
	}
	return b.String()
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/egress"
	"github.com/longshore/longshore/internal/cli/present"
)

func newLogs(a *app) *cobra.Command {
	req := &longshorev1.LogsRequest{}
	var since, until, tail string
	var stamps, asJSON, names, connections bool
	cmd := &cobra.Command{
		Use:   "logs CONTAINER...",
		Short: "Show containers' output",
		Long:  "Show the output of containers. With several containers, each line begins with the container's name.",
		Args:  base.MinArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if req.Since, err = parseTime("--since", since); err != nil {
				return &base.UsageError{Err: err}
			}
			if req.Until, err = parseTime("--until", until); err != nil {
				return &base.UsageError{Err: err}
			}
			if tail != "" && tail != "all" {
				n, err := strconv.ParseInt(tail, 10, 64)
				if err != nil {
					return &base.UsageError{Err: fmt.Errorf("--tail %q is not a number of lines", tail)}
				}
				if n >= 0 { // a negative number means all lines, as in other tools
					req.Tail = &n
				}
			}
			if len(args) > 1 && asJSON {
				return &base.UsageError{Err: errors.New("--json shows the output of one container")}
			}
			if connections && len(args) > 1 {
				return &base.UsageError{Err: errors.New("--egress shows the log of one container")}
			}
			return a.Call(func(c *base.Client) error {
				if connections {
					return egress.PrintLog(cmd.Context(), a.App, c, args[0], asJSON)
				}
				outs := logPrinters(args, logPrinter{a: a, stamps: stamps, json: asJSON}, names)
				return showLogs(cmd.Context(), a, c, req, outs)
			})
		},
	}
	fl := cmd.Flags()
	fl.BoolVarP(&req.Follow, "follow", "f", false, "follow new output until the container ends")
	fl.StringVar(&since, "since", "", "only output since a time (RFC 3339) or a duration ago (10m)")
	fl.StringVar(&until, "until", "", "only output until a time or a duration ago")
	fl.StringVarP(&tail, "tail", "n", "", "only the last lines")
	fl.BoolVarP(&stamps, "timestamps", "t", false, "show when each line was written")
	fl.BoolVar(&names, "names", false, "begin each line with the container's name, even for a single container")
	fl.BoolVar(&connections, "egress", false, "show the log of the container's egress list instead, as egress log does")
	fl.BoolVar(&asJSON, "json", false, "print each chunk as a line of JSON")
	return cmd
}

// logPrinters returns a printer for each container. Those of several write the names, and one line
// at a time.
func logPrinters(names []string, like logPrinter, always bool) []*logPrinter {
	width := 0
	for _, n := range names {
		width = max(width, len(n))
	}
	lines := &sync.Mutex{} // serializes the lines of several containers
	outs := make([]*logPrinter, len(names))
	for i, n := range names {
		p := like
		p.lines, p.name = lines, n
		if len(names) > 1 || always {
			p.prefix = fmt.Sprintf("%-*s | ", width, base.Printable(n))
		}
		outs[i] = &p
	}
	return outs
}

// showLogs shows the logs of several containers: one after the other, or side by side when they are followed.
func showLogs(ctx context.Context, a *app, c *base.Client, like *longshorev1.LogsRequest, outs []*logPrinter) error {
	show := func(i int) error {
		req := &longshorev1.LogsRequest{Name: outs[i].name, Follow: like.GetFollow(), Since: like.GetSince(), Until: like.GetUntil(), Tail: like.Tail}
		stream, err := c.Containers.Logs(ctx, req)
		if err != nil {
			return err
		}
		if err := errors.Join(base.Receive(stream.Recv, outs[i].print), outs[i].finish()); err != nil || outs[i].json {
			return err
		}
		why, err := c.Containers.Why(ctx, &longshorev1.WhyRequest{Name: outs[i].name})
		if err != nil {
			return nil //nolint:nilerr // it was removed meanwhile
		}
		return a.WarnLostOutput(why.GetLostBytes())
	}
	if len(outs) == 1 {
		return show(0)
	}
	errs := make([]error, len(outs))
	var wg sync.WaitGroup
	for i := range outs {
		if !like.GetFollow() {
			errs[i] = show(i)
			continue
		}
		wg.Go(func() { errs[i] = show(i) })
	}
	wg.Wait()
	failed := false
	for _, err := range errs {
		if err != nil {
			failed = true
			a.Warn("%s", a.Explain(err))
		}
	}
	if failed {
		return &base.ExitError{Status: 1}
	}
	return nil
}

// logPrinter writes output as the container wrote it: its stderr goes to stderr.
type logPrinter struct {
	a      *app
	name   string // of the container
	stamps bool
	json   bool
	// prefix is in front of each line; lines are then written as a whole.
	prefix string
	lines  *sync.Mutex // serializes the writing of lines of several printers; nil for one alone
	// open reports for each stream whether its last line is incomplete. pending has the unwritten part of that line:
	// with a prefix only whole lines are written.
	open    map[string]bool
	pending map[string][]byte
}

func (p *logPrinter) print(m *longshorev1.LogsResponse) error {
	if p.json {
		return present.WriteLine(p.a.Stdout, m)
	}
	if p.open == nil {
		p.open, p.pending = map[string]bool{}, map[string][]byte{}
	}
	stream := m.GetStream()
	line := p.pending[stream]
	if !p.open[stream] {
		line = append(line, p.prefix...)
		if p.stamps {
			line = m.GetAt().AsTime().AppendFormat(line, "2006-01-02T15:04:05.000000000Z07:00")
			line = append(line, ' ')
		}
	}
	line = append(line, m.GetData()...)
	p.open[stream], p.pending[stream] = m.GetPartial(), nil
	switch {
	case !m.GetPartial():
		line = append(line, '\n')
	case p.prefix != "" && len(line) < maxPendingLine:
		p.pending[stream] = line
		return nil
	case p.prefix != "":
		line, p.open[stream] = append(line, '\n'), false
	}
	return p.write(stream, line)
}

// maxPendingLine bounds the stored part of a line whose end has not arrived, in bytes.
const maxPendingLine = 1 << 20

// finish writes incomplete lines.
func (p *logPrinter) finish() error {
	var errs []error
	for stream, line := range p.pending {
		if len(line) > 0 {
			errs = append(errs, p.write(stream, append(line, '\n')))
		}
	}
	return errors.Join(errs...)
}

func (p *logPrinter) write(stream string, line []byte) error {
	w := p.a.Stdout
	if stream == "stderr" {
		w = p.a.Stderr
	}
	if p.lines != nil {
		p.lines.Lock()
		defer p.lines.Unlock()
	}
	if _, err := w.Write(line); err != nil {
		return fmt.Errorf("write: %w", err)
	}
	return nil
}

// parseTime parses a time, or a duration as that long ago; "" is nil.
func parseTime(flag, s string) (*timestamppb.Timestamp, error) {
	if s == "" {
		return nil, nil //nolint:nilnil // not given
	}
	if d, err := time.ParseDuration(s); err == nil {
		return timestamppb.New(time.Now().Add(-d)), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02 15:04:05", time.DateOnly} {
		if t, err := time.ParseInLocation(layout, s, time.Local); err == nil {
			return timestamppb.New(t), nil
		}
	}
	if secs, err := strconv.ParseFloat(s, 64); err == nil && secs > 0 && secs < 1<<40 {
		return timestamppb.New(time.UnixMilli(int64(secs * 1000))), nil
	}
	return nil, fmt.Errorf("%s %q is neither a time (RFC 3339) nor a duration (10m)", flag, s)
}

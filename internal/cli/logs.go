package cli

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/timestamppb"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
)

func newLogs(a *app) *cobra.Command {
	req := &longshorev1.LogsRequest{}
	var since, until, tail string
	var stamps, asJSON bool
	cmd := &cobra.Command{
		Use:   "logs CONTAINER",
		Short: "Show a container's output",
		Args:  exactArgs(1, "a container"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			req.Name = args[0]
			if req.Since, err = parseTime("--since", since); err != nil {
				return &usageError{err}
			}
			if req.Until, err = parseTime("--until", until); err != nil {
				return &usageError{err}
			}
			if tail != "" && tail != "all" {
				n, err := strconv.ParseInt(tail, 10, 64)
				if err != nil || n < 0 {
					return &usageError{fmt.Errorf("--tail %q is not a number of lines", tail)}
				}
				req.Tail = &n
			}
			return a.call(func(c *client) error {
				stream, err := c.containers.Logs(cmd.Context(), req)
				if err != nil {
					return err
				}
				out := logPrinter{a: a, stamps: stamps, json: asJSON}
				if err := receive(stream.Recv, out.print); err != nil || asJSON {
					return err
				}
				why, err := c.containers.Why(cmd.Context(), &longshorev1.WhyRequest{Name: args[0]})
				if err != nil {
					return nil //nolint:nilerr // it was removed meanwhile
				}
				return a.tellLostOutput(why.GetLostBytes())
			})
		},
	}
	fl := cmd.Flags()
	fl.BoolVarP(&req.Follow, "follow", "f", false, "follow new output until the container ends")
	fl.StringVar(&since, "since", "", "only output since a time (RFC 3339) or a duration ago (10m)")
	fl.StringVar(&until, "until", "", "only output until a time or a duration ago")
	fl.StringVarP(&tail, "tail", "n", "", "only the last lines")
	fl.BoolVarP(&stamps, "timestamps", "t", false, "show when each line was written")
	fl.BoolVar(&asJSON, "json", false, "print each chunk as a line of JSON")
	return cmd
}

// tellLostOutput says on stderr that the log lacks output, where it does.
func (a *app) tellLostOutput(n uint64) error {
	if n == 0 {
		return nil
	}
	_, err := fmt.Fprintf(a.o.Stderr, "longshore: %s of the output is lost: no log could take it\n", size(n))
	return err
}

// receive calls fn with every message until the stream ends.
func receive[M any](recv func() (*M, error), fn func(*M) error) error {
	for {
		m, err := recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := fn(m); err != nil {
			return err
		}
	}
}

// logPrinter writes output as the container wrote it: its stderr goes to stderr.
type logPrinter struct {
	a      *app
	stamps bool
	json   bool
	// within says for each stream whether its last line is incomplete.
	within map[string]bool
}

func (p *logPrinter) print(m *longshorev1.LogsResponse) error {
	if p.json {
		return printJSONLine(p.a.o.Stdout, m)
	}
	w := p.a.o.Stdout
	if m.GetStream() == "stderr" {
		w = p.a.o.Stderr
	}
	var line []byte
	if p.stamps && !p.within[m.GetStream()] {
		line = m.GetAt().AsTime().AppendFormat(line, "2006-01-02T15:04:05.000000000Z07:00")
		line = append(line, ' ')
	}
	line = append(line, m.GetData()...)
	if !m.GetPartial() {
		line = append(line, '\n')
	}
	if p.within == nil {
		p.within = map[string]bool{}
	}
	p.within[m.GetStream()] = m.GetPartial()
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

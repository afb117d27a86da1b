// Package audit has the command that shows and checks the audit trail.
package audit

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/trail"
)

// options of the command.
type options struct {
	verify, follow, json bool
	dir                  string
	last                 int
	only                 string // an object
}

// New returns the command.
func New(a *base.App) *cobra.Command {
	var o options
	cmd := &cobra.Command{
		Use:   "audit [OBJECT]",
		Short: "Show who changed what on this node, and check that the record is whole",
		Long: `Show who changed what on this node: each call that changes something, and each exec, attach, copy, port forward and
signal, with the face, the client and the outcome. With OBJECT, an ID or its beginning, or a name, only its lines are
shown. With --verify, the hashes of all lines are checked: a line that was changed or removed is found.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				o.only = args[0]
			}
			switch {
			case o.follow && (o.dir != "" || o.verify):
				return &base.UsageError{Err: errors.New("--follow excludes --verify and --dir")}
			case o.dir != "":
				return ofDir(a, o)
			}
			return a.Call(func(c *base.Client) error {
				stream, err := c.Node.Audit(cmd.Context(), &longshorev1.AuditRequest{Follow: o.follow})
				if err != nil {
					return err
				}
				return show(a, o, stream.Recv)
			})
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.verify, "verify", false, "check all lines instead of showing them")
	f.BoolVarP(&o.follow, "follow", "f", false, "also show new lines as they are written")
	f.BoolVar(&o.json, "json", false, "print the lines as they are written")
	f.IntVarP(&o.last, "tail", "n", 0, "show only the last lines of those that exist; 0 shows all")
	f.StringVar(&o.dir, "dir", "", "read this directory, and not by the agent: audit below agent.root")
	return cmd
}

// ofDir reads a directory.
func ofDir(a *base.App, o options) error {
	r, err := trail.ReadDir(o.dir)
	if err != nil {
		return err
	}
	defer func() { _ = r.Close() }()
	resp := &longshorev1.AuditResponse{}
	if err := r.Lines(func(line []byte) error {
		resp.Lines = append(resp.Lines, append([]byte(nil), line...))
		return nil
	}); err != nil {
		return err
	}
	seq, hash := r.Head()
	resp.End = &longshorev1.AuditEnd{Seq: seq, Hash: hash}
	return show(a, o, func() (*longshorev1.AuditResponse, error) {
		if resp == nil {
			return nil, io.EOF
		}
		next := resp
		resp = nil
		return next, nil
	})
}

// show prints or checks the lines that next returns.
func show(a *base.App, o options, next func() (*longshorev1.AuditResponse, error)) error {
	var v trail.Verifier
	var kept [][]byte // until End comes
	lines, ended := 0, false
	for {
		resp, err := next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return err
		}
		for _, line := range resp.GetLines() {
			lines++
			switch {
			case o.verify:
				if _, err := v.Line(line); err != nil {
					return err
				}
			case o.last > 0 && !ended:
				if matches(o.only, line) {
					kept = append(kept, line)
					kept = kept[max(0, len(kept)-o.last):]
				}
			case matches(o.only, line):
				printLine(a, o, line)
			}
		}
		if end := resp.GetEnd(); end != nil {
			ended = true
			for _, line := range kept {
				printLine(a, o, line)
			}
			if !o.verify {
				continue
			}
			if err := v.End(end.GetSeq(), end.GetHash()); err != nil {
				return err
			}
		}
	}
	if o.verify {
		_, _ = fmt.Fprintf(a.Stdout, "%d lines are as they were written, up to line %d.\n", lines, v.Seq())
	}
	return nil
}

// matches reports whether a line is about an object.
func matches(only string, line []byte) bool {
	if only == "" {
		return true
	}
	var r trail.Record
	return json.Unmarshal(line, &r) == nil && (r.Name == only || len(only) >= 4 && strings.HasPrefix(r.ID, only))
}

func printLine(a *base.App, o options, line []byte) {
	var r trail.Record
	if o.json || json.Unmarshal(line, &r) != nil {
		_, _ = fmt.Fprintln(a.Stdout, base.Printable(string(line)))
		return
	}
	_, _ = fmt.Fprintln(a.Stdout, Line(r))
}

// Line is a record for people.
func Line(r trail.Record) string {
	text := r.Time.Local().Format(time.DateTime) + "  "
	if r.Outcome == trail.Begun || r.Outcome == trail.Mended {
		return text + strings.TrimSpace("a file of the trail begins "+base.Printable(r.Detail))
	}
	text += cmp.Or(r.Verb, base.Printable(r.Call))
	if object := cmp.Or(base.Printable(r.Name), r.ID); object != "" {
		text += " " + strings.TrimSpace(r.Kind+" "+object)
	}
	if r.Process != "" {
		text += " process " + base.Printable(r.Process)
	}
	if r.Detail != "" {
		text += ", " + base.Printable(r.Detail)
	}
	by := strings.TrimSpace(cmp.Or(r.Face, "node") + " " + base.Printable(r.Peer))
	if r.Verb != "" && r.Call != "" {
		by += ", " + base.Printable(r.Call)
	}
	text += "  by " + by + ": " + r.Outcome
	if r.Error != "" {
		text += ": " + base.Printable(r.Error)
	}
	if r.Lost > 0 {
		text += fmt.Sprintf(" (%d lines before it were lost)", r.Lost)
	}
	return text
}

package logs

import (
	"bytes"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Entry is one piece of output.
type Entry struct {
	At     time.Time // zero if the format has no times
	Stream string    // stdout or stderr; "" if the format does not say
	// Partial means that the line continues in the stream's next entry.
	Partial bool
	Text    []byte // without the line ending
	// End is the position after the entry; zero without Options.From.
	End Position
}

// ParseCRI parses one line of the CRI format, "TIME STREAM TAGS TEXT", without its LF.
func ParseCRI(line []byte) (Entry, error) {
	e, err := parse(core.FormatCRIPlain, line)
	if err != nil {
		return e, err
	}
	// Some writers omit the space before an empty text.
	tags, text, _ := bytes.Cut(e.Text, []byte{' '})
	first, _, _ := bytes.Cut(tags, []byte{':'})
	if string(first) != "P" && string(first) != "F" {
		return Entry{}, bad("tag")
	}
	e.Partial, e.Text = string(first) == "P", text
	return e, nil
}

// parse parses a line of a format with records.
func parse(format core.Format, line []byte) (Entry, error) {
	if format != core.FormatCRIPlain {
		return ParseCRI(line)
	}
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return Entry{}, bad("no time")
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return Entry{}, bad("time")
	}
	stream, text, ok := bytes.Cut(rest, []byte{' '})
	if !ok || string(stream) != "stdout" && string(stream) != "stderr" {
		return Entry{}, bad("stream")
	}
	return Entry{At: at, Stream: string(stream), Text: text}, nil
}

func bad(what string) error {
	return fmt.Errorf("parse log line: %s: %w", what, errdefs.ErrInvalidArgument)
}

package logs

import (
	"bytes"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
)

// Entry is one piece of output.
type Entry struct {
	At     time.Time // zero if the format has no times
	Stream string    // stdout or stderr; "" if the format does not say
	// Partial means that the line continues in the stream's next entry.
	Partial bool
	Text    []byte // without the line ending
}

// ParseCRI parses one line of the CRI format, "TIME STREAM TAGS TEXT", without its LF.
func ParseCRI(line []byte) (Entry, error) {
	bad := func(what string) (Entry, error) {
		return Entry{}, fmt.Errorf("parse log line: %s: %w", what, errdefs.ErrInvalidArgument)
	}
	stamp, rest, ok := bytes.Cut(line, []byte{' '})
	if !ok {
		return bad("no time")
	}
	at, err := time.Parse(time.RFC3339Nano, string(stamp))
	if err != nil {
		return bad("time")
	}
	stream, rest, ok := bytes.Cut(rest, []byte{' '})
	if !ok || string(stream) != "stdout" && string(stream) != "stderr" {
		return bad("stream")
	}
	// Some writers omit the space before an empty text.
	tags, text, _ := bytes.Cut(rest, []byte{' '})
	first, _, _ := bytes.Cut(tags, []byte{':'})
	if string(first) != "P" && string(first) != "F" {
		return bad("tag")
	}
	return Entry{At: at, Stream: string(stream), Partial: string(first) == "P", Text: text}, nil
}

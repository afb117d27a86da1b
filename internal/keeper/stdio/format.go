// Package stdio moves a process's output from its pipe or terminal into its sinks and to attached
// clients. The death of the mover at any instruction neither loses, nor repeats, nor tears
// anything. It must not know processes, connections or the use of output. Start reading at pump.go
// (one transaction), then journal.go (its safety).
package stdio

import (
	"bytes"
	"time"
)

// maxText is the longest text of one CRI record; a longer line becomes several
// records, all but the last tagged P.
const maxText = 16 << 10

// stampLen is the length of a time stamp, which always has nine digits of nanoseconds.
const stampLen = len("2006-01-02T15:04:05.000000000Z")

// overhead is the size of a CRI record without its text: the stamp, " stdout F " and the newline at
// its end.
const overhead = stampLen + 11

// stamp appends a time as RFC 3339 with nanoseconds, in UTC.
func stamp(b []byte, t time.Time) []byte {
	return t.UTC().AppendFormat(b, "2006-01-02T15:04:05.000000000Z07:00")
}

// nextText splits the text of the next record off in. full reports whether the line
// ends there; its newline is removed.
func nextText(in []byte) (text, rest []byte, full bool) {
	head := in[:min(len(in), maxText+1)]
	if i := bytes.IndexByte(head, '\n'); i >= 0 {
		return in[:i], in[i+1:], true
	}
	if len(head) > maxText {
		return in[:maxText], in[maxText:], false
	}
	return in, nil, false
}

// records is a form of CRI records: those of a plain one have no tags.
type records struct{ plain bool }

// append appends the records of in to out until out is longer than limit, and returns the rest of
// in.
func (r records) append(out, in, ts []byte, stderr bool, limit int) (grown, rest []byte) {
	tag := " stdout "
	if stderr {
		tag = " stderr "
	}
	for len(in) > 0 && len(out) < limit {
		text, rest, full := nextText(in)
		out = append(out, ts...)
		out = append(out, tag...)
		switch {
		case r.plain:
		case full:
			out = append(out, "F "...)
		default:
			out = append(out, "P "...)
		}
		out = append(out, text...)
		out = append(out, '\n')
		in = rest
	}
	return out, in
}

// overhead returns the size of a record without its text.
func (r records) overhead() int {
	if r.plain {
		return overhead - len("F ")
	}
	return overhead
}

// size returns the length of the records for in.
func (r records) size(in []byte) int64 {
	var n int64
	for len(in) > 0 {
		text, rest, _ := nextText(in)
		n += int64(len(text) + r.overhead())
		in = rest
	}
	return n
}

// whole returns how many of the first n bytes of made, which append made of in, are whole records,
// and how many bytes of in those records hold.
func (r records) whole(made, in []byte, n int) (kept, used int) {
	for kept < n {
		end := kept
		for end < n && made[end] != '\n' {
			end++
		}
		if end == n {
			break
		}
		used += end + 1 - kept - r.overhead()
		if used < len(in) && in[used] == '\n' {
			used++ // the record ends its line
		}
		kept = end + 1
	}
	return kept, used
}

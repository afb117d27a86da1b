// Package stdio moves a process's output from its pipe or terminal into its sinks and
// to attached clients. The death of the mover at any instruction neither loses, nor
// repeats, nor tears anything.
// It must not know processes, connections or why output is wanted. Start
// reading at pump.go (one transaction), then journal.go (what makes it safe).
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

// overhead is what a CRI record adds to its text: the stamp, " stdout F " and
// the newline at its end.
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

// appendCRI appends the records of in to out until out is longer than limit,
// and returns what is left of in.
func appendCRI(out, in, ts []byte, stderr bool, limit int) (grown, rest []byte) {
	tag := " stdout "
	if stderr {
		tag = " stderr "
	}
	for len(in) > 0 && len(out) < limit {
		text, rest, full := nextText(in)
		out = append(out, ts...)
		out = append(out, tag...)
		if full {
			out = append(out, "F "...)
		} else {
			out = append(out, "P "...)
		}
		out = append(out, text...)
		out = append(out, '\n')
		in = rest
	}
	return out, in
}

// sizeCRI returns the length of the records for in.
func sizeCRI(in []byte) int64 {
	var n int64
	for len(in) > 0 {
		text, rest, _ := nextText(in)
		n += int64(len(text) + overhead)
		in = rest
	}
	return n
}

// wholeCRI returns how many of the first n bytes of records are whole records, and how
// many bytes of output those records hold.
func wholeCRI(records []byte, n int) (kept, told int) {
	for kept < n {
		end := kept
		for end < n && records[end] != '\n' {
			end++
		}
		if end == n {
			break
		}
		told += end + 1 - kept - overhead
		if records[kept+stampLen+8] == 'F' {
			told++
		}
		kept = end + 1
	}
	return kept, told
}

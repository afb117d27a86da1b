package subprocess

import (
	"strings"
	"unicode"
)

// Head keeps the first Max bytes that are written to it and drops the rest. It never fails, so
// that a program is not ended because it writes too much.
type Head struct {
	Max     int
	kept    []byte
	dropped bool
}

// Write implements io.Writer.
func (h *Head) Write(p []byte) (int, error) {
	n := min(len(p), h.Max-len(h.kept))
	h.kept, h.dropped = append(h.kept, p[:n]...), h.dropped || n < len(p)
	return len(p), nil
}

// Bytes returns what was kept.
func (h *Head) Bytes() []byte { return h.kept }

// String returns what was kept.
func (h *Head) String() string { return string(h.kept) }

// Truncated reports whether bytes were dropped.
func (h *Head) Truncated() bool { return h.dropped }

// Line returns the first line of what was kept, without bytes that a terminal or a log could
// take for something else.
func (h *Head) Line() string {
	line, _, _ := strings.Cut(strings.TrimSpace(string(h.kept)), "\n")
	return strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.TrimSpace(line))
}

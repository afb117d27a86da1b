package server

import (
	"time"

	"golang.org/x/sys/unix"
)

// parts are the outputs in whose pipes an unfinished line waits for its newline.
// They are watched by their edges: more of the line is an event, and what is there
// already is none.
type parts map[*source]struct{}

// wait is how many milliseconds the loop may sleep until the first of the lines is
// to be written as it is; -1 is for ever.
func (p parts) wait(now func() time.Time) int {
	if len(p) == 0 {
		return -1
	}
	var first time.Time
	for src := range p {
		if due, ok := src.Part(); ok && (first.IsZero() || due.Before(first)) {
			first = due
		}
	}
	if first.IsZero() {
		return 0
	}
	return int(max(0, first.Sub(now()).Milliseconds()+1)) // a fraction would be a turn too early
}

// write writes the lines that have waited long enough for their rest.
func (p parts) write(s *Server) {
	if len(p) == 0 {
		return
	}
	now := time.Now()
	for src := range p {
		due, ok := src.Part()
		if src.FD < 0 || !ok {
			delete(p, src)
		} else if !now.Before(due) {
			delete(p, src) // it comes back when another line waits
			src.ready(s, 0)
		}
	}
}

// keepPart leaves an unfinished line where it is until there is more of it or its
// time is over.
func (src *source) keepPart(s *Server) {
	s.parts[src] = struct{}{}
	if !src.edge {
		src.edge = true
		s.change(src.FD, unix.EPOLLIN|unix.EPOLLET)
	}
}

package server

import (
	"time"

	"golang.org/x/sys/unix"
)

// partialLines are the outputs with an unfinished line in the pipe, waiting for its newline. They
// are watched edge-triggered, so that only new bytes are an event, and not the present ones.
type partialLines map[*source]struct{}

// wait returns for how many milliseconds the loop may sleep until the first of these
// lines is to be written unfinished; -1 means for ever.
func (p partialLines) wait(now func() time.Time) int {
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
	return int(max(0, first.Sub(now()).Milliseconds()+1)) // rounded up: a fraction less would wake the loop too early
}

// write writes the unfinished lines after their time limit.
func (p partialLines) write(s *Server) {
	if len(p) == 0 {
		return
	}
	now := time.Now()
	for src := range p {
		due, ok := src.Part()
		if src.FD < 0 || !ok {
			delete(p, src)
		} else if !now.Before(due) {
			delete(p, src) // it is added again when another line waits
			src.ready(s, 0)
		}
	}
}

// keepPartialLine leaves an unfinished line in the pipe until more of it comes or its time is
// up.
func (src *source) keepPartialLine(s *Server) {
	s.partialLines[src] = struct{}{}
	if !src.edge {
		src.edge = true
		s.change(src.FD, unix.EPOLLIN|unix.EPOLLET)
	}
}

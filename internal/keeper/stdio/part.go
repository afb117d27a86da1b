package stdio

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
)

// partTime is how long an unfinished line may wait for its newline. Programs without
// buffering write a line in pieces, one right after the other; but the question of a
// program that waits for an answer must become visible.
const partTime = 200 * time.Millisecond

// waitsForLines reports whether unfinished lines of a source stay in its pipe until
// they are finished, so that each line becomes one record. They do if all sinks write
// CRI records: nothing else depends on lines, and a terminal's lines are typed and
// edited. Lines that wait in the pipe survive the
// keeper's death, because the nest holds the pipe too.
func (s *Source) waitsForLines() bool {
	if s.TTY || s.AtOnce || len(s.Taps) > 0 {
		return false
	}
	logs := false
	for _, k := range s.Sinks {
		if k != nil && !k.CRI {
			return false
		}
		logs = logs || k != nil
	}
	return logs
}

// Part returns when the unfinished line that waits in the source's pipe is to be
// written unfinished; ok is false if none waits.
func (s *Source) Part() (due time.Time, ok bool) { return s.part, !s.part.IsZero() }

// cut returns how much of the pipe's content to read now: whole lines, and of a line longer than a
// record all but its last record. It sets the time for the rest. data is the content that cut has
// seen, nil if the pipe is empty.
func (p *Pump) cut(s *Source) (n int, data []byte) {
	since := s.part
	s.part = time.Time{}
	least := 0 // present bytes; later ones are seen next time
	if !since.IsZero() {
		least = min(kernel.Available(s.FD), chunk)
	}
	if data = p.j.look(s.FD, p.out[:chunk]); data == nil {
		return kernel.Available(s.FD), nil
	}
	now := p.now()
	lines := bytes.LastIndexByte(data, '\n') + 1
	part := len(data) - lines
	switch {
	case part == 0:
		return lines, data
	case part > maxText:
		return lines + (part-1)/maxText*maxText, data // the last record's part is read again
	case lines > 0:
	case len(data) < least || s.full(part):
		return part, data // there is no room for the rest of the line
	case !since.IsZero() && !now.Before(since):
		return part, data
	case !since.IsZero():
		s.part = since
		return 0, data
	}
	s.part = now.Add(partTime)
	return lines, data
}

// full reports whether n bytes may fill the pipe. If they do, writer and reader would
// wait for each other. Half the bytes fill a pipe too if they came in pieces that do
// not share pages.
func (s *Source) full(n int) bool {
	if s.room == 0 {
		s.room, _ = unix.FcntlInt(uintptr(s.FD), unix.F_GETPIPE_SZ, 0)
	}
	return n >= s.room/2
}

// look returns the content of a pipe, as much of it as fits into b, without consuming it; nil if
// that fails.
func (j *Journal) look(fd int, b []byte) []byte {
	n, err := unix.Tee(fd, j.peek[1], len(b), unix.SPLICE_F_NONBLOCK)
	if err != nil || n <= 0 {
		return nil
	}
	b = b[:n]
	for got := 0; got < len(b); {
		k, err := unix.Read(j.peek[0], b[got:])
		if err == unix.EINTR {
			continue
		}
		if err != nil || k <= 0 {
			j.clear()
			return nil
		}
		got += k
	}
	return b
}

// clear empties the pipe that look uses; otherwise the next look would begin with the
// rest.
func (j *Journal) clear() {
	var b [4096]byte
	for {
		if n, err := unix.Read(j.peek[0], b[:]); n <= 0 && err != unix.EINTR {
			return
		}
	}
}

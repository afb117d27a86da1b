package stdio

import (
	"bytes"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/kernel"
)

// partTime is how long a line that has no newline yet may wait for it. Programs
// without a buffer write a line in pieces, one right after the other; one that
// asks a question and waits for the answer is to be seen nevertheless.
const partTime = 200 * time.Millisecond

// waitsForLines reports whether unfinished lines of a source stay in its pipe
// until they are finished, so that each becomes one record. They do where all
// that is written is CRI's records: nobody else cares for lines, and a terminal's
// are typed and edited. What waits there is lost by nobody's death.
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
// written as it is; ok is false when none waits.
func (s *Source) Part() (due time.Time, ok bool) { return s.part, !s.part.IsZero() }

// cut returns how much of what is in a pipe is to be read now: whole lines, and
// of a longer line than one record holds all but its last record. It sets the
// time of what stays. data is what it looked at, nil when there is nothing.
func (p *Pump) cut(s *Source) (n int, data []byte) {
	since := s.part
	s.part = time.Time{}
	least := 0 // that is there: what comes after this is not missed below
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
		return lines + (part-1)/maxText*maxText, data // the last is looked at again
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

// full reports whether n bytes may fill the pipe, whose writer would then wait for
// us as we for it. A pipe is as full with half the bytes, in pieces that do not
// share its pages.
func (s *Source) full(n int) bool {
	if s.room == 0 {
		s.room, _ = unix.FcntlInt(uintptr(s.FD), unix.F_GETPIPE_SZ, 0)
	}
	return n >= s.room/2
}

// look returns what is in a pipe, as much of it as fits into b, and leaves it
// there; nil when it cannot.
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

// clear empties the pipe of look, whose next answer would begin with what is left.
func (j *Journal) clear() {
	var b [4096]byte
	for {
		if n, err := unix.Read(j.peek[0], b[:]); n <= 0 && err != unix.EINTR {
			return
		}
	}
}

package server

import (
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/keeper/stdio"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// stream is a client's connection to a process's standard streams. The keeper feeds
// the client's pipe for each tap; the client reads and writes all others directly.
type stream struct {
	id    uint64
	c     *conn
	p     *proc
	stdin bool
	taps  [2]*tap // stdout, stderr
}

// tap is the write end of a pipe that a client reads. It is watched for the reader to
// close its end.
type tap struct {
	stdio.Tap
	st *stream
}

func (t *tap) ready(s *Server, events uint32) {
	if t.FD >= 0 && events&unix.EPOLLERR != 0 {
		t.dropTap(s)
	}
}

// tapBytes is the size of a tap's pipe, which is how far its client may be behind. The
// kernel may allow less.
const tapBytes = 256 << 10

func (c *conn) attach(s *Server, id uint64, m *wire.StreamsRequest) {
	p := s.procs[m.Ref]
	if p == nil || p.phase == starting {
		c.fail(s, id, wire.NotFound, "streams "+wire.Key(m.Ref)+": no such process")
		return
	}
	opened, fds, f := c.openStream(s, p, m.Want)
	if f != nil {
		c.refuse(s, id, f)
		return
	}
	c.ok(s, id, &opened, fds...)
}

// openStream makes a stream and returns the client's descriptors.
func (c *conn) openStream(s *Server, p *proc, want wire.Want) (wire.Opened, []int, *wire.Fail) {
	refuse := func(text string) (wire.Opened, []int, *wire.Fail) {
		return wire.Opened{}, nil, &wire.Fail{Class: wire.FailedPrecondition, Text: "streams " + p.key + ": " + text}
	}
	output := want.Stdout || want.Stderr
	switch {
	case want.Exclusive && !p.io.Hold:
		return refuse("its output is not held")
	case want.Exclusive && p.holder != nil:
		return refuse("another stream reads its held output")
	case !want.Exclusive && p.io.Hold && output:
		return refuse("its output is held: only an exclusive stream reads it")
	}
	s.lastStream++
	st := &stream{id: s.lastStream, c: c, p: p}
	o := wire.Opened{Stream: st.id, TTY: p.io.TTY}
	var fds []int
	add := func(sent *bool, fd int, err error) {
		if err == nil && fd >= 0 {
			*sent = true
			fds = append(fds, fd)
		}
	}
	if want.Stdin {
		st.stdin = true
		in := p.stdin
		if p.io.TTY {
			in = p.pty
		}
		fd, err := dup(in)
		add(&o.Stdin, fd, err)
		if o.Stdin && p.io.Stdin == wire.StdinOnce && !p.stdinOnceUsed {
			p.stdinOnceUsed = true
			p.save(s)
		}
	}
	if want.Stdout {
		fd, err := st.output(s, p.out, want.Exclusive, 0)
		add(&o.Stdout, fd, err)
	}
	if want.Stderr && !p.io.TTY {
		fd, err := st.output(s, p.err, want.Exclusive, 1)
		add(&o.Stderr, fd, err)
	}
	fd, err := dup(p.pidfd)
	add(&o.Pidfd, fd, err)
	if want.Exclusive {
		p.holder = st
	}
	p.streams[st.id] = st
	if c != nil {
		c.streams[st.id] = st
	}
	return o, fds, nil
}

func dup(fd int) (int, error) {
	if fd < 0 {
		return -1, unix.EBADF
	}
	return unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
}

// output returns the descriptor that the client reads: the process's own pipe, or a
// new pipe that the keeper feeds. For a process that has ended, the new pipe is at its
// end at once.
func (st *stream) output(s *Server, src *source, exclusive bool, which int) (int, error) {
	if exclusive {
		if src == nil {
			return -1, unix.EBADF
		}
		return dup(src.FD)
	}
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC|unix.O_NONBLOCK); err != nil {
		return -1, err
	}
	if src == nil || st.p.phase == ended {
		_ = unix.Close(p[1])
		return p[0], nil
	}
	_, _ = unix.FcntlInt(uintptr(p[1]), unix.F_SETPIPE_SZ, tapBytes)
	st.newTap(s, src, p[1], which)
	return p[0], nil
}

func (st *stream) newTap(s *Server, src *source, fd, which int) {
	t := &tap{Tap: stdio.Tap{FD: fd}, st: st}
	st.taps[which] = t
	src.Taps = append(src.Taps, &t.Tap)
	s.add(fd, t, 0) // EPOLLERR, when the reader closes its end, needs no request
}

func (t *tap) dropTap(s *Server) {
	for _, src := range []*source{t.st.p.out, t.st.p.err} {
		if src == nil {
			continue
		}
		for i, x := range src.Taps {
			if x == &t.Tap {
				src.Taps = append(src.Taps[:i:i], src.Taps[i+1:]...)
				break
			}
		}
	}
	s.drop(&t.FD)
}

func (st *stream) endTaps(s *Server) {
	for i, t := range st.taps {
		if t != nil {
			t.dropTap(s)
			st.taps[i] = nil
		}
	}
}

// endStream ends a stream, or only its input.
func (st *stream) endStream(s *Server, stdinOnly bool) {
	p := st.p
	if st.stdin {
		once := p.io.Stdin == wire.StdinOnce
		if once || stdinOnly && p.holder == st {
			p.closeStdin(s, false)
		}
		st.stdin = false
	}
	if stdinOnly {
		return
	}
	st.endTaps(s)
	if p.holder == st {
		p.holder = nil
	}
	delete(p.streams, st.id)
	if st.c != nil {
		delete(st.c.streams, st.id)
	}
}

// closeStdin closes the keeper's end of a process's input, which ends when the
// clients' ends are closed too. A terminal has no such end: if a client asked for the
// close, the program is sent the end-of-file character.
func (p *proc) closeStdin(s *Server, explicit bool) {
	if p.io.TTY {
		if explicit && p.pty >= 0 {
			_, _ = unix.Write(p.pty, []byte{4})
		}
		return
	}
	if p.stdin >= 0 {
		s.drop(&p.stdin)
		p.save(s)
		copyNow(s) // the input ends when the copy is closed, too
	}
}

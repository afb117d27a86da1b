package keeper

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/keeper/wire"
)

// longAgo returns a deadline that has passed.
func longAgo() time.Time { return time.Unix(1, 0) }

// stream is a live connection to a process: descriptors received from the keeper. Held output is
// read from the process's own pipe and so continues even when the keeper dies.
type stream struct {
	p      *pair
	id     uint64
	pidfd  *os.File
	files  []*os.File
	ended  chan struct{} // closed when the process has ended
	closed chan struct{}
	once   sync.Once
}

// streams makes Streams of the descriptors of an answer.
func (p *pair) streams(ref wire.Ref, want core.StreamOptions, o wire.Opened, fds descriptors) *core.Streams {
	s := &stream{p: p, id: o.Stream, ended: make(chan struct{}), closed: make(chan struct{})}
	next := func(there bool, name string) *os.File {
		if !there || len(fds) == 0 {
			return nil
		}
		fd := fds[0]
		fds = fds[1:]
		_ = unix.SetNonblock(fd, true)
		f := os.NewFile(uintptr(fd), name)
		s.files = append(s.files, f)
		return f
	}
	out := &core.Streams{Close: s.close}
	stdin, stdout, stderr := next(o.Stdin, "stdin"), next(o.Stdout, "stdout"), next(o.Stderr, "stderr")
	s.pidfd = next(o.Pidfd, "pidfd")
	fds.close()
	if want.Stdin {
		in := &stdinEnd{s: s, f: stdin}
		p.mu.Lock()
		p.inputs[in] = inputOf{ref}
		p.mu.Unlock()
		out.Stdin = in
	}
	if want.Stdout {
		out.Stdout = s.reader(stdout, want.Exclusive)
	}
	if want.Stderr && !o.TTY {
		out.Stderr = s.reader(stderr, want.Exclusive)
	}
	go s.waitEnd(stdout, stderr)
	return out
}

// waitEnd waits for the end of the process, and then wakes the readers that are
// blocked.
func (s *stream) waitEnd(readers ...*os.File) {
	if s.pidfd != nil {
		rc, err := s.pidfd.SyscallConn()
		if err == nil {
			err = rc.Read(func(fd uintptr) bool { return readable(fd) })
		}
		if err != nil {
			return // the stream was closed
		}
	}
	close(s.ended)
	for _, f := range readers {
		if f != nil {
			_ = f.SetReadDeadline(longAgo())
		}
	}
}

func readable(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0
}

// hasEnded reports whether the process has ended.
func (s *stream) hasEnded() bool {
	select {
	case <-s.ended:
		return true
	default:
	}
	if s.pidfd == nil {
		return true
	}
	rc, err := s.pidfd.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	_ = rc.Control(func(fd uintptr) { gone = readable(fd) })
	return gone
}

func (s *stream) close() error {
	s.once.Do(func() {
		close(s.closed)
		s.p.mu.Lock()
		for in := range s.p.inputs {
			if in.s == s {
				delete(s.p.inputs, in)
			}
		}
		s.p.mu.Unlock()
		for _, f := range s.files {
			_ = f.Close()
		}
		s.p.sendEnd(&wire.StreamEnd{Stream: s.id})
	})
	return nil
}

// sendEnd tells the keeper that a stream has ended. If there is no keeper, nothing needs
// to be done.
func (p *pair) sendEnd(m *wire.StreamEnd) {
	p.mu.Lock()
	conn := p.conn
	p.mu.Unlock()
	if conn == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, _ = p.call(ctx, wire.KindStreamEnd, m, nil)
}

func (s *stream) reader(f *os.File, exclusive bool) io.Reader {
	switch {
	case f == nil:
		return endedReader{}
	case exclusive:
		return &heldReader{s: s, f: f}
	default:
		return &tapReader{s: s, f: f}
	}
}

// endedReader is output that is at its end.
type endedReader struct{}

func (endedReader) Read([]byte) (int, error) { return 0, io.EOF }

// tapReader reads the copy of the output that the keeper sends. The keeper closes it
// after the process has ended; if it closes before that, the keeper has died.
type tapReader struct {
	s *stream
	f *os.File
}

func (r *tapReader) Read(b []byte) (int, error) {
	for {
		n, err := r.f.Read(b)
		switch {
		case n > 0:
			return n, nil
		case errors.Is(err, os.ErrDeadlineExceeded):
			// The process has ended. The keeper sends the rest of the output and then
			// closes.
			_ = r.f.SetReadDeadline(time.Time{})
		case errors.Is(err, io.EOF) && !r.s.hasEnded():
			return 0, fmt.Errorf("stream: the keeper went away: %w", errdefs.ErrUnavailable)
		default:
			return 0, err
		}
	}
}

// heldReader reads a held pipe or terminal directly. It ends when the process has
// ended and its output has been read: another process may hold the pipe open for ever,
// or the process may have closed it long before.
type heldReader struct {
	s *stream
	f *os.File
}

func (r *heldReader) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	select {
	case <-r.s.ended:
		return r.rest(b)
	default:
	}
	n, err := r.f.Read(b)
	if n > 0 {
		return n, nil
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
	case errors.Is(err, io.EOF), errors.Is(err, syscall.EIO):
		select {
		case <-r.s.ended:
		case <-r.s.closed:
			return 0, os.ErrClosed
		}
	default:
		return 0, err
	}
	return r.rest(b)
}

// rest reads the available bytes, without waiting.
func (r *heldReader) rest(b []byte) (int, error) {
	rc, err := r.f.SyscallConn()
	if err != nil {
		return 0, err
	}
	n, rerr := 0, error(nil)
	err = rc.Control(func(fd uintptr) {
		for {
			n, rerr = unix.Read(int(fd), b)
			if !errors.Is(rerr, unix.EINTR) {
				return
			}
		}
	})
	switch {
	case err != nil:
		return 0, err
	case rerr == nil && n > 0:
		return n, nil
	case rerr == nil, errors.Is(rerr, unix.EAGAIN), errors.Is(rerr, unix.EIO):
		return 0, io.EOF
	default:
		return 0, rerr
	}
}

// stdinEnd writes to a process's input.
type stdinEnd struct {
	s    *stream
	f    *os.File // nil if the process has no input or has ended
	once sync.Once
}

// Write implements io.Writer.
func (w *stdinEnd) Write(b []byte) (int, error) {
	if w.f == nil {
		return 0, io.ErrClosedPipe
	}
	n, err := w.f.Write(b)
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, syscall.EIO) || errors.Is(err, os.ErrClosed) {
		err = io.ErrClosedPipe
	}
	return n, err
}

// Close ends the process's input if its stdin mode allows that.
func (w *stdinEnd) Close() error {
	w.once.Do(func() {
		w.s.p.mu.Lock()
		delete(w.s.p.inputs, w)
		w.s.p.mu.Unlock()
		if w.f != nil {
			_ = w.f.Close()
		}
		w.s.p.sendEnd(&wire.StreamEnd{Stream: w.s.id, StdinOnly: true})
	})
	return nil
}

// closeInputs closes the streams' own ends of a process's input.
func (p *pair) closeInputs(ref wire.Ref) {
	p.mu.Lock()
	var open []*stdinEnd
	for in, of := range p.inputs {
		if of.ref == ref {
			open = append(open, in)
			delete(p.inputs, in)
		}
	}
	p.mu.Unlock()
	for _, in := range open {
		if in.f != nil {
			_ = in.f.Close()
		}
	}
}

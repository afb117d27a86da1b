package enginetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Streams connects to a process: to its output from now on, or with Exclusive to the held output.
func (s *Supervisor) Streams(ctx context.Context, ref core.Ref, opts core.StreamOptions) (*core.Streams, error) {
	if err := s.check(ctx, "Streams"); err != nil {
		return nil, err
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	p, err := s.process(ref)
	if err != nil {
		return nil, err
	}
	return p.attach(opts)
}

// attach connects. Preconditions: the supervisor's lock is held.
func (p *Process) attach(opts core.StreamOptions) (*core.Streams, error) {
	if opts.Exclusive && !p.io.Hold {
		return nil, fmt.Errorf("streams of %v: exclusive without hold: %w", p.Ref, errdefs.ErrFailedPrecondition)
	}
	if opts.Exclusive && slices.ContainsFunc(p.views, func(v *stream) bool { return v.exclusive }) {
		return nil, fmt.Errorf("streams of %v: another is exclusive: %w", p.Ref, errdefs.ErrFailedPrecondition)
	}
	v := &stream{out: newPipe(), err: newPipe(), exclusive: opts.Exclusive}
	if opts.Exclusive {
		v.out.write(p.held[0])
		v.err.write(p.held[1])
		p.held = [2][]byte{}
	}
	if p.exit != nil {
		v.out.close()
		v.err.close()
	}
	p.views = append(p.views, v)
	st := &core.Streams{Close: func() error {
		p.sup.lock.Lock()
		defer p.sup.lock.Unlock()
		v.out.close()
		v.err.close()
		p.views = slices.DeleteFunc(p.views, func(o *stream) bool { return o == v })
		return nil
	}}
	if opts.Stdout {
		st.Stdout = v.out
	}
	if opts.Stderr && !p.io.TTY {
		st.Stderr = v.err
	}
	if opts.Stdin && p.io.Stdin != core.StdinClosed {
		st.Stdin = &stdin{p}
	}
	return st, nil
}

// stdin is the client's end of a process's input.
type stdin struct{ p *Process }

func (s *stdin) Write(b []byte) (int, error) { return s.p.stdin.Write(b) }

func (s *stdin) Close() error {
	if s.p.io.Stdin == core.StdinOnce {
		return s.p.stdin.Close()
	}
	return nil
}

// Write writes output of the process to its sinks and to attached clients. stream is 1 or 2.
func (p *Process) Write(stream int, b []byte) error {
	p.sup.lock.Lock()
	defer p.sup.lock.Unlock()
	if p.io.TTY {
		stream = 1
	}
	if p.exit != nil {
		return io.ErrClosedPipe
	}
	if p.io.Hold && len(p.views) == 0 {
		p.held[stream-1] = append(p.held[stream-1], b...)
	}
	for _, v := range p.views {
		if stream == 1 {
			v.out.write(b)
		} else {
			v.err.write(b)
		}
	}
	var errs []error
	for _, sink := range p.io.Sinks {
		if stream == 1 && sink.Stdout || stream == 2 && sink.Stderr {
			errs = append(errs, appendSink(sink, stream, b))
		}
	}
	return errors.Join(errs...)
}

// Stdout returns a writer for the process's standard output.
func (p *Process) Stdout() io.Writer { return procWriter{p, 1} }

// Stderr returns a writer for the process's standard error.
func (p *Process) Stderr() io.Writer { return procWriter{p, 2} }

type procWriter struct {
	p *Process
	n int
}

func (w procWriter) Write(b []byte) (int, error) {
	if err := w.p.Write(w.n, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

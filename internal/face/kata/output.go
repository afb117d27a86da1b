package kata

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/logs"
)

// A buffer for output begins small, because most readers only wait, and grows with the output.
const (
	firstBuffer = 4 << 10
	lastBuffer  = 256 << 10
)

// outputs are the open streams of processes. Output is held by the pipe until somebody
// reads it, so a stream is opened with the first call that wants it.
type outputs struct {
	engine *engine.Client
	recent *logs.Recent // the read output of containers' first processes; may be nil

	mu   sync.Mutex // guards open, done
	open map[core.Ref]*stdio
	done bool
}

// of returns the streams of a process, and opens them if nobody has yet.
func (o *outputs) of(ctx context.Context, ref core.Ref, tty bool) (*stdio, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if s := o.open[ref]; s != nil {
		return s, nil
	}
	if o.done {
		return nil, errors.New("the agent ends")
	}
	streams, err := o.engine.Streams(ctx, ref, core.StreamOptions{Stdin: true, Stdout: true, Stderr: !tty, Exclusive: true})
	if err != nil {
		return nil, err
	}
	s := &stdio{streams: streams, stdout: newPipe(streams.Stdout), writing: make(chan struct{}, 1)}
	s.stderr = s.stdout // a terminal has one output
	if !tty {
		s.stderr = newPipe(streams.Stderr)
	}
	if id := ref.Container; o.recent != nil && ref.Process == core.Main {
		s.stderr.seen = func(b []byte) { o.recent.Add(id, "stderr", b) }
		s.stdout.seen = func(b []byte) { o.recent.Add(id, "stdout", b) } // of a terminal, too
	}
	if o.open == nil {
		o.open = map[core.Ref]*stdio{}
	}
	o.open[ref] = s
	return s, nil
}

// wire has the connections of a process closed with its streams.
func (o *outputs) wire(s *stdio, w *wires) {
	o.mu.Lock()
	defer o.mu.Unlock()
	s.wires = w
	if o.done {
		w.close()
	}
}

// copied waits until the output of a process that has ended was copied to its connections, if it has any.
func (o *outputs) copied(ctx context.Context, ref core.Ref) error {
	o.mu.Lock()
	var w *wires
	if s := o.open[ref]; s != nil {
		w = s.wires
	}
	o.mu.Unlock()
	if w == nil {
		return nil
	}
	done := make(chan struct{})
	go func() {
		w.copying.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drop closes the streams of a process that is being removed, if they are open; with
// Main those of all processes of the container.
func (o *outputs) drop(ref core.Ref) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for r, s := range o.open {
		if r == ref || ref.Process == core.Main && r.Container == ref.Container {
			delete(o.open, r)
			s.close()
		}
	}
	if o.recent != nil && ref.Process == core.Main {
		o.recent.Drop(ref.Container)
	}
}

func (o *outputs) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.done = true
	for r, s := range o.open {
		delete(o.open, r)
		s.close()
	}
}

// read reports whether all output of a process was taken.
func (o *outputs) read(ref core.Ref) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	s := o.open[ref]
	return s != nil && s.stdout.atEnd() && s.stderr.atEnd()
}

// stdio is one process's open streams.
type stdio struct {
	streams        *core.Streams
	stdout, stderr *pipe
	writing        chan struct{} // held by the call that writes
	wires          *wires        // nil while the streams are read and written by calls; guarded by outputs.mu
}

func (s *stdio) close() {
	_ = s.streams.Close()
	s.wires.close()
}

// write gives the process all of data. It returns before that only with an error, or
// when ctx has ended and the process takes no more.
func (s *stdio) write(ctx context.Context, data []byte) (int, error) {
	select {
	case s.writing <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	type result struct {
		n   int
		err error
	}
	wrote := make(chan result, 1)
	go func() {
		defer func() { <-s.writing }()
		n, err := s.streams.Stdin.Write(data)
		wrote <- result{n, err}
	}()
	select {
	case r := <-wrote:
		return r.n, r.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// idle waits until no call writes any more.
func (s *stdio) idle(ctx context.Context) error {
	select {
	case s.writing <- struct{}{}:
		<-s.writing
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pipe is one output. Bytes that were read for a client that disconnected meanwhile are kept for
// the next.
type pipe struct {
	from io.Reader
	turn chan struct{} // held by the call that takes
	seen func([]byte)  // gets the taken bytes; may be nil

	mu     sync.Mutex    // guards rest, err, coming, buf
	rest   []byte        // read, and taken by nobody yet
	err    error         // the end
	coming chan struct{} // closed when the read in progress has ended; nil without one
	buf    []byte
}

func newPipe(r io.Reader) *pipe { return &pipe{from: r, turn: make(chan struct{}, 1)} }

// take returns at most n bytes, and waits until there is one. It returns none at the end.
func (p *pipe) take(ctx context.Context, n int) ([]byte, error) {
	select {
	case p.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-p.turn }()
	coming := p.begin()
	if coming != nil {
		select {
		case <-coming:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n = min(n, len(p.rest))
	// The buffer is read into again while the answer is sent.
	data := append([]byte(nil), p.rest[:n]...)
	p.rest = p.rest[n:]
	if p.seen != nil && n > 0 {
		p.seen(data)
	}
	if n > 0 || errors.Is(p.err, io.EOF) {
		return data, nil
	}
	return nil, p.err
}

// begin reads the next bytes in a goroutine, unless there are some or the end was
// reached. The channel that it returns is closed when that has ended; nil has nothing to
// wait for.
func (p *pipe) begin() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case len(p.rest) > 0 || p.err != nil:
		return nil
	case p.coming != nil:
		return p.coming
	}
	if p.buf == nil {
		p.buf = make([]byte, firstBuffer)
	}
	buf, coming := p.buf, make(chan struct{})
	p.coming = coming
	go func() {
		n, err := p.from.Read(buf)
		for n == 0 && err == nil {
			n, err = p.from.Read(buf)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		p.rest, p.err, p.coming = buf[:n], err, nil
		switch {
		case err != nil:
			p.buf = nil
		case n == len(buf) && n < lastBuffer:
			p.buf = make([]byte, 2*n)
		}
		close(coming)
	}()
	return coming
}

// atEnd reports whether everything was taken.
func (p *pipe) atEnd() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err != nil && len(p.rest) == 0
}

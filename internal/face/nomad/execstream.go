package nomad

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
)

// ExecTaskStreaming implements the service: `nomad alloc exec`. The process lives
// no longer than its client stays.
func (s *server) ExecTaskStreaming(stream nomaddriver.Driver_ExecTaskStreamingServer) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	setup := first.GetSetup()
	if setup == nil {
		return invalid.Errorf("exec: the first message must be the setup")
	}
	ctx := stream.Context()
	c, err := s.task(ctx, setup.GetTaskId())
	if err != nil {
		return err
	}
	p, err := execProcess(c, setup.GetCommand(), setup.GetTty())
	if err != nil {
		return err
	}
	cfg := core.ProcessConfig{
		Spec: p, Ephemeral: true, IO: core.IO{Hold: true, TTY: setup.GetTty(), Stdin: core.StdinOpen},
		Attach: &core.StreamOptions{Stdin: true, Stdout: true, Stderr: !setup.GetTty(), Exclusive: true},
	}
	if size := sizeOf(first.GetTtySize()); setup.GetTty() && size.Rows > 0 && size.Cols > 0 {
		cfg.IO.Size, p.ConsoleSize = size, &specs.Box{Height: uint(size.Rows), Width: uint(size.Cols)}
	}
	proc, streams, err := s.engine.Exec(ctx, c.ID, cfg)
	if err != nil {
		return err
	}
	e := &execSession{server: s, stream: stream, ref: core.Ref{Container: c.ID, Process: proc.ID}, streams: streams, tty: setup.GetTty()}
	defer s.forget(ctx, e.ref, streams, "ExecTaskStreaming")
	return e.run(ctx)
}

// execSession joins Nomad's stream to a process.
type execSession struct {
	server  *server
	stream  nomaddriver.Driver_ExecTaskStreamingServer
	ref     core.Ref
	streams *core.Streams
	tty     bool

	mu sync.Mutex // serializes send: a gRPC stream takes one sender at a time
}

// run ends once the process has and all of its output is sent. What waits for
// more input ends with the call: Nomad never ends its side.
func (e *execSession) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(ctx, func() { _ = e.streams.Close() })
	defer stop()
	go e.input(ctx, cancel)
	var out sync.WaitGroup
	copyOut := func(r io.Reader, as func(*nomaddriver.ExecTaskStreamingIOOperation) *nomaddriver.ExecTaskStreamingResponse) {
		out.Go(func() {
			if err := e.output(r, as); err != nil {
				cancel(err)
			}
		})
	}
	copyOut(e.streams.Stdout, func(op *nomaddriver.ExecTaskStreamingIOOperation) *nomaddriver.ExecTaskStreamingResponse {
		return &nomaddriver.ExecTaskStreamingResponse{Stdout: op}
	})
	copyOut(e.streams.Stderr, func(op *nomaddriver.ExecTaskStreamingIOOperation) *nomaddriver.ExecTaskStreamingResponse {
		return &nomaddriver.ExecTaskStreamingResponse{Stderr: op}
	})
	out.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	a, err := e.server.engine.Wait(ctx, e.ref)
	if err != nil {
		return err
	}
	return e.send(&nomaddriver.ExecTaskStreamingResponse{Exited: true, Result: execResult(a)})
}

func (e *execSession) send(m *nomaddriver.ExecTaskStreamingResponse) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.stream.Send(m)
}

// output sends what the process writes, and its end. A terminal has no stderr of
// its own: its end is sent all the same.
func (e *execSession) output(r io.Reader, as func(*nomaddriver.ExecTaskStreamingIOOperation) *nomaddriver.ExecTaskStreamingResponse) error {
	buf := make([]byte, 32<<10)
	for r != nil {
		n, err := r.Read(buf)
		if n > 0 {
			if serr := e.send(as(&nomaddriver.ExecTaskStreamingIOOperation{Data: buf[:n]})); serr != nil {
				return serr
			}
		}
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("copy output: %w", err)
		}
	}
	return e.send(as(&nomaddriver.ExecTaskStreamingIOOperation{Close: true}))
}

// input gives the process what Nomad sends. What a process that has closed its
// input does not take is dropped; a message without anything is a heartbeat.
func (e *execSession) input(ctx context.Context, gone context.CancelCauseFunc) {
	for {
		m, err := e.stream.Recv()
		if errors.Is(err, io.EOF) {
			e.closeInput(ctx)
			return
		}
		if err != nil {
			gone(err)
			return
		}
		if size := sizeOf(m.GetTtySize()); e.tty && size.Rows > 0 && size.Cols > 0 {
			_ = e.server.engine.Resize(ctx, e.ref, size) // a process that just ended has no size
		}
		if in := m.GetStdin(); in != nil {
			_, _ = e.streams.Stdin.Write(in.GetData())
			if in.GetClose() {
				e.closeInput(ctx)
			}
		}
	}
}

func (e *execSession) closeInput(ctx context.Context) {
	_ = e.server.engine.CloseStdin(ctx, e.ref) // a process that just ended has none
}

func sizeOf(t *nomaddriver.ExecTaskStreamingRequest_TerminalSize) core.Size {
	const most = 1<<16 - 1
	return core.Size{Cols: uint16(min(max(t.GetWidth(), 0), most)), Rows: uint16(min(max(t.GetHeight(), 0), most))}
}

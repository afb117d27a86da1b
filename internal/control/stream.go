package control

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/ocispec"
)

// The sizes of a joined client: how much is read at once, and how many chunks
// of input may wait for a process that does not read before the client waits
// too.
const (
	chunkBytes  = 32 << 10
	stdinChunks = 16
)

// joint joins one client to one process: output goes to send, input comes from
// recv.
type joint struct {
	view    *engine.Client
	ref     core.Ref
	streams *core.Streams
	// log, when set, is where the output is read from in place of streams: a
	// live stream drops what its reader is too slow for, a file does not.
	log *logOutput
	// input says whether the client may send input and signals.
	input bool
	call  string

	mu   sync.Mutex // serializes send: a gRPC stream takes one sender at a time
	send func(*longshorev1.Output) error
	recv func() (*longshorev1.Input, error)
}

func (j *joint) emit(o *longshorev1.Output) error {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.send(o)
}

// started tells the client that it is joined.
func (j *joint) started(tty bool) error {
	return j.emit(&longshorev1.Output{Kind: &longshorev1.Output_Started{Started: &longshorev1.Started{
		Container: string(j.ref.Container), Process: string(j.ref.Process), Tty: tty,
	}}})
}

// run copies until the process has ended and all its output was sent, and then
// sends how it ended. It returns early when the client leaves.
func (j *joint) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Closing the streams is what ends a reader that waits for output.
	stop := context.AfterFunc(ctx, func() { _ = j.streams.Close() })
	defer func() {
		if stop() {
			_ = j.streams.Close()
		}
	}()
	// The receiver ends with the call itself: gRPC cancels its context when the
	// handler returns, and nobody waits for it before.
	go j.receive(ctx, cancel)

	if j.log != nil {
		if err := j.log.copy(ctx, j.emit); err != nil {
			return err
		}
	} else if err := j.copyStreams(ctx, cancel); err != nil {
		return err
	}
	a, err := j.view.Wait(ctx, j.ref)
	if err != nil {
		return err
	}
	return j.emit(&longshorev1.Output{Kind: &longshorev1.Output_Exited{Exited: toAutopsy(&a)}})
}

// copyStreams sends the live output until it ends.
func (j *joint) copyStreams(ctx context.Context, cancel context.CancelCauseFunc) error {
	var out sync.WaitGroup
	copyOut := func(r io.Reader, wrap func([]byte) *longshorev1.Output) {
		if r != nil {
			out.Go(func() {
				if err := j.copyOut(r, wrap); err != nil {
					cancel(err)
				}
			})
		}
	}
	copyOut(j.streams.Stdout, func(b []byte) *longshorev1.Output {
		return &longshorev1.Output{Kind: &longshorev1.Output_Stdout{Stdout: b}}
	})
	copyOut(j.streams.Stderr, func(b []byte) *longshorev1.Output {
		return &longshorev1.Output{Kind: &longshorev1.Output_Stderr{Stderr: b}}
	})
	out.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (j *joint) copyOut(r io.Reader, wrap func([]byte) *longshorev1.Output) error {
	buf := make([]byte, chunkBytes)
	for {
		n, err := r.Read(buf)
		if n > 0 {
			if err := j.emit(wrap(buf[:n])); err != nil {
				return fmt.Errorf("send output: %w", err)
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read output: %w", err)
		}
	}
}

// receive carries out what the client sends. Input is queued, so that a process
// that does not read its input still gets signals and sizes.
func (j *joint) receive(ctx context.Context, cancel context.CancelCauseFunc) {
	stdin := make(chan []byte, stdinChunks)
	if j.streams.Stdin != nil {
		go j.writeStdin(ctx, stdin)
	}
	closed := false
	closeStdin := func() {
		if !closed {
			closed = true
			close(stdin)
		}
	}
	defer closeStdin()
	for {
		in, err := j.recv()
		if errors.Is(err, io.EOF) {
			return // the client has no more to say and still listens
		}
		if err != nil {
			cancel(err)
			return
		}
		if !j.input {
			continue
		}
		switch k := in.GetKind().(type) {
		case *longshorev1.Input_Stdin:
			if closed || j.streams.Stdin == nil || len(k.Stdin) == 0 {
				continue
			}
			select {
			case stdin <- k.Stdin:
			case <-ctx.Done():
				return
			}
		case *longshorev1.Input_StdinClosed:
			closeStdin()
		case *longshorev1.Input_Resize:
			_ = j.view.Resize(ctx, j.ref, toSize(k.Resize)) // a process that just ended has no size
		case *longshorev1.Input_Signal:
			if sig, err := ocispec.Signal(k.Signal); err == nil {
				a := asked(ctx, j.call)
				a.Signal = sig
				_ = j.view.Signal(ctx, j.ref, sig, a) // it may have ended: the client sees its exit
			}
		}
	}
}

// writeStdin ends the process's input when chunks ends, as far as its StdinMode
// lets it. After an error the process has closed its input: the rest is dropped.
func (j *joint) writeStdin(ctx context.Context, chunks <-chan []byte) {
	broken := false
	for {
		select {
		case <-ctx.Done():
			return
		case b, ok := <-chunks:
			if !ok {
				if ctx.Err() == nil { // the client has not gone, it has no more to send
					_ = j.streams.Stdin.Close()
				}
				return
			}
			if !broken {
				_, err := j.streams.Stdin.Write(b)
				broken = err != nil
			}
		}
	}
}

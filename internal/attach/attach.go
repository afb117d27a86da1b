// Package attach connects a face's client to a process: it copies the process's output to the
// client and the client's input to the process, until the process has ended or the client has
// disconnected.
//
// The package knows no protocol. A face supplies functions for output to its client and for its
// client's input; everything else is the same for all:
//
//   - Output is sent as it comes, each stream by a goroutine of its own. A client that
//     does not read holds up its own session only. Output that is held for the client
//     (core.IO.Hold) waits, and in the end so does the process; from a log nothing is
//     lost and nobody waits; a live stream of another process drops output for a slow
//     client.
//   - Input that the process does not read waits in a short queue, so that sizes and
//     signals still get through, and then holds up the client. Input is
//     dropped after the process has closed it.
//   - The end of the client's input is no end of the session. Its context, a
//     failed Output or an error of Input ends it. The process continues, unless the
//     client owns it: then Exec.End kills it.
//   - When the process has ended, Run returns once all of its output was sent.
//
// Start reading at Session; Exec runs processes that live no longer than their client.
package attach

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/logs"
)

// chunkBytes bounds one call of Output for a live stream: a little less than a pipe's size, so that
// a message with it fits into a buffer of 64 KiB.
const chunkBytes = 60 << 10

// Sender sends output to the client. It may block while the client does not read,
// until the session's context ends. The data is the Sender's until it returns.
type Sender func(stderr bool, data []byte) error

// Serial returns send for one call at a time, as gRPC's streams want it.
func Serial(send Sender) Sender {
	var mu sync.Mutex // serializes send
	return func(stderr bool, data []byte) error {
		mu.Lock()
		defer mu.Unlock()
		return send(stderr, data)
	}
}

// Writers returns a Sender that writes to stdout and stderr; either may be nil.
func Writers(stdout, stderr io.Writer) Sender {
	return func(isStderr bool, data []byte) error {
		w := stdout
		if isStderr {
			w = stderr
		}
		if w == nil {
			return nil
		}
		_, err := w.Write(data)
		return err
	}
}

// Session is one client that is attached to one process. Engine and Ref are required.
// A Session is used once.
type Session struct {
	Engine *engine.Client
	Ref    core.Ref
	// Streams are the live connection; nil has none. The session closes them.
	Streams *core.Streams
	// Log, when set, is where output is read from in place of Streams. From says which
	// part of it; its Follow, Begun and Ended are not used.
	Log  *core.Sink
	From logs.Options
	// Output sends the process's output. It is called from two goroutines, for stdout and stderr,
	// unless output comes from a log. nil drops all output.
	Output Sender
	// Input copies the client's input, in a goroutine of its own that nobody waits for. It begins
	// when the session captures all further output. It returns nil at the end of the client's
	// input, while the client still listens, and an error, which ends the session, when the client
	// has disconnected. nil: the client sends nothing.
	Input func(ctx context.Context, to *Input) error
	// EndsInput makes the end of the client's input end the process's input, on a terminal too.
	// Otherwise the process's StdinMode decides.
	EndsInput bool

	end *end
}

// end is how a process ended, once done is closed.
type end struct {
	done    chan struct{}
	cancel  context.CancelFunc
	autopsy core.Autopsy
	err     error
}

// Follow waits for the process's end from now on. Run does it too, but later a process
// of the same name may be another one. Run or Close ends it.
func (s *Session) Follow(ctx context.Context) {
	if s.end != nil {
		return
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	x := &end{done: make(chan struct{}), cancel: cancel}
	s.end = x
	wait := s.Engine.JoinWait(s.Ref)
	go func() {
		defer close(x.done)
		x.autopsy, x.err = wait(ctx)
	}()
}

// Close closes the streams and returns once nothing of the session but its Input is
// left. Run does so too; further calls do nothing.
func (s *Session) Close() {
	if s.end != nil {
		s.end.cancel()
		<-s.end.done
	}
	s.closeStreams()
}

func (s *Session) closeStreams() {
	if s.Streams != nil {
		_ = s.Streams.Close()
	}
}

// Run serves the client until the process has ended and all of its output was sent, and returns its
// autopsy. If the client has disconnected before, or ctx has ended, it returns the cause.
func (s *Session) Run(ctx context.Context) (core.Autopsy, error) {
	defer s.Close()
	s.Follow(ctx)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// A closed stream ends a reader that waits for output.
	stop := context.AfterFunc(ctx, s.closeStreams)
	defer stop()
	if s.Log != nil {
		if err := s.readLog(ctx, cancel); err != nil {
			cancel(err)
		}
	} else {
		s.begin(ctx, cancel)
		s.copyStreams(cancel)
	}
	if ctx.Err() != nil {
		return core.Autopsy{}, context.Cause(ctx)
	}
	select {
	case <-s.end.done:
		return s.end.autopsy, s.end.err
	case <-ctx.Done():
		return core.Autopsy{}, context.Cause(ctx)
	}
}

// begin lets the client's input begin.
func (s *Session) begin(ctx context.Context, cancel context.CancelCauseFunc) {
	if s.Input == nil {
		return
	}
	in := &Input{Engine: s.Engine, Ref: s.Ref, Ends: s.EndsInput}
	if s.Streams != nil {
		in.Stdin = s.Streams.Stdin
	}
	go func() {
		if err := s.Input(ctx, in); err != nil {
			cancel(err)
			return
		}
		in.End(ctx)
	}()
}

// copyStreams sends the live output until it ends.
func (s *Session) copyStreams(cancel context.CancelCauseFunc) {
	if s.Streams == nil {
		return
	}
	var out sync.WaitGroup
	defer out.Wait()
	for stderr, r := range map[bool]io.Reader{false: s.Streams.Stdout, true: s.Streams.Stderr} {
		if r == nil {
			continue
		}
		out.Go(func() {
			if _, err := io.CopyBuffer(sending{s, stderr}, onlyReader{r}, make([]byte, chunkBytes)); err != nil {
				cancel(fmt.Errorf("copy output: %w", err))
			}
		})
	}
}

// sending is an io.Writer to the client.
type sending struct {
	s      *Session
	stderr bool
}

// Write implements io.Writer.
func (w sending) Write(b []byte) (int, error) {
	if w.s.Output == nil {
		return len(b), nil
	}
	if err := w.s.Output(w.stderr, b); err != nil {
		return 0, err
	}
	return len(b), nil
}

// onlyReader hides a reader's other methods, so that a copy uses its buffer.
type onlyReader struct{ io.Reader }

// readLog sends the log's entries until the process has ended.
func (s *Session) readLog(ctx context.Context, cancel context.CancelCauseFunc) error {
	ended := make(chan struct{})
	returned := make(chan struct{})
	defer close(returned)
	go func() {
		select {
		case <-s.end.done:
			if s.end.err == nil || errdefs.IsNotFound(s.end.err) {
				close(ended)
			}
		case <-returned:
		}
	}()
	o := s.From
	o.Follow, o.Ended, o.Begun = true, ended, func() { s.begin(ctx, cancel) }
	return logs.Copy(ctx, *s.Log, o, func(stderr bool, data []byte) error {
		_, err := sending{s, stderr}.Write(data)
		return err
	})
}

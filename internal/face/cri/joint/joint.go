// Package joint runs commands in containers for the CRI's clients, and joins the
// clients' streams to processes: input, output, terminal sizes, until the process
// has ended or the client has gone.
//
// It must not know how a client's streams are carried. Start reading at Runner.
package joint

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/cri/stream"
	"github.com/longshore/longshore/internal/logs"
)

func toSize(s stream.Size) core.Size { return core.Size{Cols: s.Width, Rows: s.Height} }

// joint joins one client to one process.
type joint struct {
	engine  *engine.Client
	ref     core.Ref
	streams *core.Streams
	sess    stream.Session
	log     *core.Sink // where the output is read from in place of streams; nil: from those
	tty     bool
	ours    bool // an exec: the end of the client's input is that of the process's
}

// run copies until the process has ended and all of its output was sent, and
// returns how it ended; or until ctx ends, or until the client takes no more.
func (j *joint) run(ctx context.Context) (core.Autopsy, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// Closing the streams is what ends a reader that waits for output.
	stop := context.AfterFunc(ctx, func() { _ = j.streams.Close() })
	defer stop()
	if j.tty {
		go j.resize(ctx)
	}
	var out sync.WaitGroup
	begin := func() {
		if j.streams.Stdin != nil {
			go j.input(ctx)
		}
	}
	if j.log != nil {
		out.Go(func() {
			if err := j.follow(ctx, begin); err != nil {
				cancel(err)
			}
		})
	} else {
		begin()
	}
	copyOut := func(w io.Writer, r io.Reader) {
		if r == nil {
			return
		}
		if w == nil {
			w = io.Discard
		}
		out.Go(func() {
			if _, err := io.Copy(w, r); err != nil {
				cancel(fmt.Errorf("copy output: %w", err))
			}
		})
	}
	copyOut(j.sess.Stdout, j.streams.Stdout)
	copyOut(j.sess.Stderr, j.streams.Stderr)
	out.Wait()
	if ctx.Err() != nil {
		return core.Autopsy{}, context.Cause(ctx)
	}
	return j.engine.Wait(ctx, j.ref)
}

// input gives the process what the client sends. What a process that has closed
// its input does not take is dropped.
func (j *joint) input(ctx context.Context) {
	_, err := io.Copy(j.streams.Stdin, j.sess.Stdin)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		_, _ = io.Copy(io.Discard, j.sess.Stdin)
	case j.ours && j.tty:
		_ = j.engine.CloseStdin(ctx, j.ref) // a process that just ended has none
	default:
		_ = j.streams.Stdin.Close() // as far as its mode lets it
	}
}

func (j *joint) resize(ctx context.Context) {
	for {
		select {
		case size := <-j.sess.Resize:
			_ = j.engine.Resize(ctx, j.ref, toSize(size)) // as above
		case <-ctx.Done():
			return
		}
	}
}

// follow sends what is logged from now on, until the process has ended. Begin is
// called when nothing of what comes can be missed any more.
func (j *joint) follow(ctx context.Context, begin func()) error {
	ended := make(chan struct{})
	wait, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		if _, err := j.engine.Wait(wait, j.ref); err == nil || errdefs.IsNotFound(err) {
			close(ended)
		}
	}()
	return logs.Copy(ctx, *j.log, logs.Options{Follow: true, Tail: -1, Begun: begin, Ended: ended}, func(stderr bool, data []byte) error {
		to := j.sess.Stdout
		if stderr {
			to = j.sess.Stderr
		}
		if to == nil {
			return nil
		}
		_, err := to.Write(data)
		return err
	})
}

package cri

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/stream"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/logs"
	"github.com/longshore/longshore/internal/ocispec"
)

// maxOutput bounds both streams of one ExecSync together, so that the answer fits into the 16 MiB
// that kubelet and crictl take. Further output of a command is read and dropped.
const maxOutput = 16<<20 - 4<<10

// ExecSync implements the service.
func (s *server) ExecSync(ctx context.Context, req *v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) {
	if len(req.GetCmd()) == 0 {
		return nil, invalid.Errorf("exec in container %s: no command", req.GetContainerId())
	}
	c, err := s.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	p, err := execProcess(c, req.GetCmd(), false, core.Size{})
	if err != nil {
		return nil, err
	}
	limit := grace(req.GetTimeout())
	out := &outputs{left: maxOutput}
	a, err := execs(s, "ExecSync").Collect(ctx, c.ID, p, limit, out.add)
	if errors.Is(err, attach.ErrTimeout) {
		err = fmt.Errorf("exec in container %s: no end after %s: %w", c.ID, limit, context.DeadlineExceeded)
	}
	if err != nil {
		return nil, err
	}
	return &v1.ExecSyncResponse{Stdout: out.data[0], Stderr: out.data[1], ExitCode: int32(a.Exit.Status())}, nil
}

// execs runs processes for the clients of a call.
func execs(s *server, call string) attach.Exec {
	return attach.Exec{Engine: s.engine, Log: s.log, Owner: s.as.owner, Call: call, Background: &s.background}
}

// execProcess is the main process with another command.
func execProcess(c core.Container, args []string, tty bool, size core.Size) (*specs.Process, error) {
	p, err := ocispec.ExecProcess(c.Bundle, args, tty, size)
	if err != nil {
		return nil, fmt.Errorf("exec in container %s: %w", c.ID, err)
	}
	return p, nil
}

// outputs are stdout and stderr, which share one allowance.
type outputs struct {
	mu   sync.Mutex // guards left, data
	left int
	data [2][]byte
}

// add keeps output up to the allowance, and takes all of it, so that the program never blocks.
func (o *outputs) add(stderr bool, p []byte) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	n := min(len(p), o.left)
	o.left -= n
	which := 0
	if stderr {
		which = 1
	}
	o.data[which] = append(o.data[which], p[:n]...)
	return nil
}

// Exec implements stream.Backend: the process lives no longer than its client stays.
func (b backend) Exec(ctx context.Context, req stream.Request, sess stream.Session) (int, error) {
	c, err := b.s.container(ctx, req.ID)
	if err != nil {
		return 0, err
	}
	var size core.Size
	select {
	case first := <-sess.Resize:
		size = toSize(first)
	default:
	}
	p, err := execProcess(c, req.Args, req.TTY, size)
	if err != nil {
		return 0, err
	}
	stdin := core.StdinClosed
	if sess.Stdin != nil {
		stdin = core.StdinOpen
	}
	x := execs(b.s, "Exec")
	at, err := x.Start(ctx, c.ID, attach.Held(p, stdin, size))
	if err != nil {
		return 0, err
	}
	at.Output, at.Input, at.EndsInput = attach.Writers(sess.Stdout, sess.Stderr), inputOf(sess, req.TTY), true
	a, err := at.Run(ctx)
	x.End(ctx, at, err != nil)
	return a.Exit.Status(), err
}

// Attach implements stream.Backend. The container does not notice when its client leaves. The
// output comes from the log if there is one: a live stream drops output for a slow client, a file
// does not.
func (b backend) Attach(ctx context.Context, req stream.Request, sess stream.Session) error {
	c, err := b.s.container(ctx, req.ID)
	if err == nil {
		err = running(c, stream.KindAttach)
	}
	if err != nil {
		return err
	}
	at := attach.Session{
		Engine: b.s.engine, Ref: core.Ref{Container: c.ID}, From: logs.Options{Tail: -1},
		Output: attach.Writers(sess.Stdout, sess.Stderr), Input: inputOf(sess, c.Main.TTY),
	}
	if sess.Stdout != nil || sess.Stderr != nil {
		at.Log = ownLog(c)
	}
	want := core.StreamOptions{
		Stdin:  sess.Stdin != nil && c.Config.IO.Stdin != core.StdinClosed,
		Stdout: at.Log == nil && sess.Stdout != nil, Stderr: at.Log == nil && sess.Stderr != nil && !c.Main.TTY,
	}
	if want.Stdin || want.Stdout || want.Stderr {
		if at.Streams, err = b.s.engine.Streams(ctx, at.Ref, want); err != nil {
			return err
		}
	}
	if b.s.as.paths == nil || sess.Stdin == nil || c.Config.IO.Stdin == core.StdinOnce {
		_, err = at.Run(ctx)
		return err
	}
	return untilInputEnds(ctx, &at)
}

var errInputEnded = errors.New("the client's input has ended")

// untilInputEnds runs a session that ends with its client's input, as with runtimes of 2017, if the
// container's own input stays open.
func untilInputEnds(ctx context.Context, at *attach.Session) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	input := at.Input
	at.Input = func(ctx context.Context, to *attach.Input) error {
		err := input(ctx, to)
		if err == nil {
			cancel(errInputEnded)
		}
		return err
	}
	_, err := at.Run(ctx)
	if errors.Is(context.Cause(ctx), errInputEnded) {
		return nil
	}
	return err
}

// inputOf copies the input of a stream's client.
func inputOf(sess stream.Session, tty bool) func(context.Context, *attach.Input) error {
	return func(ctx context.Context, to *attach.Input) error {
		if tty {
			go func() {
				for {
					select {
					case size := <-sess.Resize:
						to.Resize(ctx, toSize(size))
					case <-ctx.Done():
						return
					}
				}
			}()
		}
		if sess.Stdin != nil && to.Stdin != nil && to.Copy(sess.Stdin) != nil {
			<-ctx.Done() // a client with failing input is about to disconnect
		}
		return nil
	}
}

func toSize(s stream.Size) core.Size { return core.Size{Cols: s.Width, Rows: s.Height} }

// ownLog is a container's log if it can be read back.
func ownLog(c core.Container) *core.Sink {
	if len(c.Config.IO.Sinks) != 1 {
		return nil
	}
	sink := c.Config.IO.Sinks[0]
	// A plain log has lines that are not the program's.
	if sink.Format == core.FormatCRIPlain || !logs.Readable(sink) {
		return nil
	}
	return &sink
}

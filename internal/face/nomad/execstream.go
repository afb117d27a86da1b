package nomad

import (
	"context"
	"errors"
	"io"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/errtext"
	"github.com/longshore/longshore/internal/invalid"
)

// ExecTaskStreaming implements the service: `nomad alloc exec`. The process lives
// no longer than its client stays.
func (s *server) ExecTaskStreaming(stream nomaddriver.Driver_ExecTaskStreamingServer) error {
	return execError(s.execStreaming(stream))
}

// maxExecError bounds an error's text for a client, in bytes. Nomad's API sends an error of an exec as the reason of
// its websocket's end, in a frame of 125 bytes. Two are a code, and "rpc error: code = Unknown desc = " is 33 more.
// With a longer one the client sees only "unexpected EOF".
const maxExecError = 125 - 2 - 33

// execError cuts the text of an error that Nomad could not hand on.
func execError(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	text := errtext.Plain(err.Error())
	if len(text) <= maxExecError {
		return err
	}
	const more = "…"
	return status.Error(codes.Unknown, strings.ToValidUTF8(text[:maxExecError-len(more)], "")+more)
}

func (s *server) execStreaming(stream nomaddriver.Driver_ExecTaskStreamingServer) error {
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
	var size core.Size
	if first := sizeOf(first.GetTtySize()); setup.GetTty() && first.Rows > 0 && first.Cols > 0 {
		size = first
	}
	p, err := execProcess(c, setup.GetCommand(), setup.GetTty(), size)
	if err != nil {
		return err
	}
	x := s.execs("ExecTaskStreaming")
	at, err := x.Start(ctx, c.ID, attach.Held(p, core.StdinOpen, size))
	if err != nil {
		return err
	}
	at.Output, at.Input, at.EndsInput = attach.Serial(execOutput(stream)), execInput(stream, setup.GetTty()), true
	a, err := at.Run(ctx)
	if err == nil {
		err = sendExit(stream, a)
	}
	x.End(ctx, at, err != nil)
	return err
}

// execOutput sends the process's output.
func execOutput(stream nomaddriver.Driver_ExecTaskStreamingServer) attach.Sender {
	return func(stderr bool, data []byte) error {
		return stream.Send(execMessage(stderr, &nomaddriver.ExecTaskStreamingIOOperation{Data: data}))
	}
}

func execMessage(stderr bool, op *nomaddriver.ExecTaskStreamingIOOperation) *nomaddriver.ExecTaskStreamingResponse {
	if stderr {
		return &nomaddriver.ExecTaskStreamingResponse{Stderr: op}
	}
	return &nomaddriver.ExecTaskStreamingResponse{Stdout: op}
}

// sendExit sends the end of both streams, that of stderr for a terminal too, which has
// none of its own, and how the process ended.
func sendExit(stream nomaddriver.Driver_ExecTaskStreamingServer, a core.Autopsy) error {
	for _, stderr := range []bool{false, true} {
		if err := stream.Send(execMessage(stderr, &nomaddriver.ExecTaskStreamingIOOperation{Close: true})); err != nil {
			return err
		}
	}
	return stream.Send(&nomaddriver.ExecTaskStreamingResponse{Exited: true, Result: execResult(a)})
}

// execInput passes Nomad's input to the process; an empty message is a heartbeat. The wait for more
// ends with the call, because Nomad never ends its side.
func execInput(stream nomaddriver.Driver_ExecTaskStreamingServer, tty bool) func(context.Context, *attach.Input) error {
	return func(ctx context.Context, to *attach.Input) error {
		for {
			m, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return err
			}
			if tty {
				to.Resize(ctx, sizeOf(m.GetTtySize()))
			}
			if in := m.GetStdin(); in != nil {
				to.Send(ctx, in.GetData())
				if in.GetClose() {
					to.End(ctx)
				}
			}
		}
	}
}

func sizeOf(t *nomaddriver.ExecTaskStreamingRequest_TerminalSize) core.Size {
	const most = 1<<16 - 1
	return core.Size{Cols: uint16(min(max(t.GetWidth(), 0), most)), Rows: uint16(min(max(t.GetHeight(), 0), most))}
}

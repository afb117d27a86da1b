package control

import (
	"context"
	"errors"
	"io"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/control/access"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/solo/translate"
)

// client is an attached client: output goes to send, input comes from recv.
type client struct {
	call string
	// input says whether the client may send input and signals.
	input bool
	tty   bool
	send  func(*longshorev1.Output) error
	recv  func() (*longshorev1.Input, error)
}

// started reports to the client that it is attached.
func (c client) started(ref core.Ref) error {
	return c.send(&longshorev1.Output{Kind: &longshorev1.Output_Started{Started: &longshorev1.Started{
		Container: string(ref.Container), Process: string(ref.Process), Tty: c.tty,
	}}})
}

// serve reports to the client that it is attached, copies its streams, and reports the process's end.
func (c client) serve(ctx context.Context, s *attach.Session) error {
	defer s.Close()
	if err := c.started(s.Ref); err != nil {
		return err
	}
	s.Output, s.Input = attach.Serial(c.output), c.receive
	a, err := s.Run(ctx)
	if err != nil {
		return err
	}
	return c.send(&longshorev1.Output{Kind: &longshorev1.Output_Exited{Exited: view.Autopsy(&a)}})
}

func (c client) output(stderr bool, data []byte) error {
	if stderr {
		return c.send(&longshorev1.Output{Kind: &longshorev1.Output_Stderr{Stderr: data}})
	}
	return c.send(&longshorev1.Output{Kind: &longshorev1.Output_Stdout{Stdout: data}})
}

// receive handles the client's messages. It ends with the call: gRPC cancels its context when the
// handler returns.
func (c client) receive(ctx context.Context, to *attach.Input) error {
	for {
		in, err := c.recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if !c.input {
			continue
		}
		switch k := in.GetKind().(type) {
		case *longshorev1.Input_Stdin:
			to.Send(ctx, k.Stdin)
		case *longshorev1.Input_StdinClosed:
			to.End(ctx)
		case *longshorev1.Input_Resize:
			to.Resize(ctx, translate.Size(k.Resize))
		case *longshorev1.Input_Signal:
			if sig, err := ocispec.Signal(k.Signal); err == nil {
				a := access.StopRequest(ctx, c.call)
				a.Signal = sig
				_ = to.Engine.Signal(ctx, to.Ref, sig, a) // it may have ended: the client gets its exit
			}
		}
	}
}

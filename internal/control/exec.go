package control

import (
	"context"
	"fmt"
	"time"

	"github.com/longshore/longshore/internal/solo"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/attach"
	"github.com/longshore/longshore/internal/control/access"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo/translate"
)

// Exec runs a further process. The process belongs to the call: when the client leaves it is
// killed, unless the client asked to detach.
func (s *containerServer) Exec(stream grpc.BidiStreamingServer[longshorev1.ExecRequest, longshorev1.Output]) (err error) {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	req := first.GetStart()
	if req == nil || len(req.GetCommand()) == 0 {
		return invalid.Errorf("the first message must name a container and a command")
	}
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return err
	}
	view, err := s.srv.changer(c.Meta, req.GetForce())
	if err != nil {
		return err
	}
	p, err := translate.Exec(c, req)
	if err != nil {
		return err
	}
	a := access.StopRequest(ctx, "longshore exec")
	x := attach.Exec{Engine: view, Log: s.srv.o.Logger, Owner: a.Owner, Call: a.Call, User: a.User}
	at, err := x.Start(ctx, c.ID, execConfig(p, req))
	if err != nil {
		return startFailure(err)
	}
	to := client{
		call: a.Call, input: true, tty: req.GetTty(), send: stream.Send,
		recv: func() (*longshorev1.Input, error) {
			m, err := stream.Recv()
			return m.GetInput(), err
		},
	}
	if req.GetDetach() {
		at.Close()
		return to.started(at.Ref)
	}
	err = to.serve(ctx, at)
	x.End(ctx, at, err != nil)
	return err
}

// execConfig returns the configuration of an exec's process. Unless the client detaches, the process keeps its output for it.
func execConfig(p *specs.Process, req *longshorev1.ExecStart) core.ProcessConfig {
	size := translate.Size(req.GetSize())
	if req.GetDetach() {
		return core.ProcessConfig{Spec: p, IO: core.IO{TTY: req.GetTty(), Size: size}}
	}
	stdin := core.StdinClosed
	if req.GetStdin() {
		stdin = core.StdinOnce
	}
	return attach.Held(p, stdin, size)
}

// Attach attaches the client to a container's main process.
func (s *containerServer) Attach(stream grpc.BidiStreamingServer[longshorev1.AttachRequest, longshorev1.Output]) (err error) {
	ctx := stream.Context()
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	req := first.GetStart()
	if req == nil {
		return invalid.Errorf("the first message must name a container")
	}
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return err
	}
	view := s.srv.all
	// Reading output changes nothing; sending input and starting do.
	input := c.Owner == core.OwnerCLI || req.GetForce()
	if req.GetStdin() || req.GetStart() {
		if view, err = s.srv.changer(c.Meta, req.GetForce()); err != nil {
			return err
		}
	}
	again := c.State == core.ContainerExited && req.GetStart() && c.Owner == core.OwnerCLI
	if c.State == core.ContainerExited && !again {
		return fmt.Errorf("attach to %s: it has exited: %w", req.GetName(), errdefs.ErrFailedPrecondition)
	}
	// While a client is attached, settle does not touch an ended container.
	s.srv.solo.Enter(c.ID)
	defer func() {
		s.srv.solo.Leave(ctx, c.ID)
		if err != nil && c.Config.IO.Hold {
			s.srv.solo.Orphan(c.ID)
		}
	}()

	if again {
		if err := s.srv.solo.Renew(ctx, c.ID); err != nil {
			return err
		}
	}
	at := &attach.Session{Engine: view, Ref: core.Ref{Container: c.ID}, Log: solo.OwnLog(c)}
	if !req.GetStart() || again { // skip the output of an earlier run
		at.From.Since = time.Now()
	}
	if at.Streams, err = attachStreams(ctx, view, c, req.GetStdin(), at.Log == nil); err != nil {
		return err
	}
	defer at.Close()
	at.Follow(ctx) // before the start, because the container may be removed soon after it
	to := client{
		call: "longshore attach", input: input, tty: c.Main.TTY, send: stream.Send,
		recv: func() (*longshorev1.Input, error) {
			m, err := stream.Recv()
			return m.GetInput(), err
		},
	}
	if req.GetSize() != nil && c.Main.TTY && input {
		_ = view.Resize(ctx, at.Ref, translate.Size(req.GetSize())) // a container that has just ended has no size
	}
	if req.GetStart() {
		start := func() error { return view.StartContainer(ctx, c.ID) }
		if c.Owner == core.OwnerCLI {
			start = func() error { return s.srv.solo.StartCreated(ctx, c) }
		}
		if err := start(); err != nil {
			return startFailure(err)
		}
	}
	return to.serve(ctx, at)
}

// attachStreams opens those of a main process's streams that the client wants.
func attachStreams(ctx context.Context, view *engine.Client, c core.Container, stdin, output bool) (*core.Streams, error) {
	opts := core.StreamOptions{Stdin: stdin && c.Config.IO.Stdin != core.StdinClosed, Stdout: output, Stderr: output && !c.Main.TTY, Exclusive: c.Config.IO.Hold}
	if !opts.Stdin && !opts.Stdout {
		return nil, nil //nolint:nilnil // the client wants no stream
	}
	return view.Streams(ctx, core.Ref{Container: c.ID}, opts)
}

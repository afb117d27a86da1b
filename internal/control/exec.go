package control

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
)

// Exec runs a further process. It belongs to the call: when the client leaves,
// the process is killed, unless it asked to be detached.
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
	c, err := s.container(ctx, req.GetName())
	if err != nil {
		return err
	}
	view, err := s.changer(c.Meta, req.GetForce())
	if err != nil {
		return err
	}
	cfg, err := execConfig(c, req)
	if err != nil {
		return err
	}
	p, streams, err := view.Exec(ctx, c.ID, cfg)
	if err != nil {
		return startFailure(err)
	}
	ref := core.Ref{Container: c.ID, Process: p.ID}
	j := &joint{
		view: view, ref: ref, streams: streams, input: true, call: "longshore exec", send: stream.Send,
		recv: func() (*longshorev1.Input, error) {
			m, err := stream.Recv()
			return m.GetInput(), err
		},
	}
	if req.GetDetach() {
		return j.started(req.GetTty())
	}
	defer func() { s.forget(ctx, view, ref, err != nil) }()
	if err := j.started(req.GetTty()); err != nil {
		_ = streams.Close()
		return err
	}
	return j.run(ctx)
}

// forget drops an exec's record, and kills what runs of it when it was cut short.
func (s *Server) forget(ctx context.Context, view *engine.Client, ref core.Ref, cut bool) {
	clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	opts := engine.RemoveOptions{Force: cut, Asked: asked(ctx, "longshore exec")}
	if err := view.RemoveProcess(clean, ref, opts); err != nil && !errdefs.IsNotFound(err) {
		s.o.Logger.WarnContext(ctx, "exec could not be removed", "container", string(ref.Container), "process", string(ref.Process), "error", err)
	}
}

// Attach joins a container's main process.
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
	c, err := s.container(ctx, req.GetName())
	if err != nil {
		return err
	}
	view := s.all
	// Output is for reading; whoever sends input or starts changes something.
	input := c.Owner == core.OwnerCLI || req.GetForce()
	if req.GetStdin() || req.GetStart() {
		if view, err = s.changer(c.Meta, req.GetForce()); err != nil {
			return err
		}
	}
	if c.State == core.ContainerExited {
		return fmt.Errorf("attach to %s: it has exited: %w", req.GetName(), errdefs.ErrFailedPrecondition)
	}
	// While somebody is attached, the sweep leaves an ended container alone.
	s.sessions.enter(c.ID)
	defer func() {
		s.leave(ctx, c.ID)
		if err != nil && c.Config.IO.Hold {
			s.sessions.orphan(c.ID)
		}
	}()

	ref := core.Ref{Container: c.ID}
	var log *logOutput
	if sink := ownLog(c); sink != nil {
		log = &logOutput{sink: *sink}
		if !req.GetStart() {
			log.since = time.Now()
		}
		var stop func()
		log.ended, stop = s.ended(ctx, c.ID)
		defer stop()
	}
	streams, err := attachStreams(ctx, view, c, req.GetStdin(), log == nil)
	if err != nil {
		return err
	}
	j := &joint{
		view: view, ref: ref, streams: streams, log: log, input: input, call: "longshore attach", send: stream.Send,
		recv: func() (*longshorev1.Input, error) {
			m, err := stream.Recv()
			return m.GetInput(), err
		},
	}
	if req.GetSize() != nil && c.Main.TTY && input {
		_ = view.Resize(ctx, ref, toSize(req.GetSize())) // a container that just ended has no size
	}
	if req.GetStart() {
		if err := view.StartContainer(ctx, c.ID); err != nil {
			_ = streams.Close()
			s.dropIfAuto(ctx, c)
			return startFailure(err)
		}
	}
	if err := j.started(c.Main.TTY); err != nil {
		_ = streams.Close()
		return err
	}
	return j.run(ctx)
}

// attachStreams opens what of a main process's streams is wanted.
func attachStreams(ctx context.Context, view *engine.Client, c core.Container, stdin, output bool) (*core.Streams, error) {
	opts := core.StreamOptions{Stdin: stdin && c.Config.IO.Stdin != core.StdinClosed, Stdout: output, Stderr: output && !c.Main.TTY, Exclusive: c.Config.IO.Hold}
	if !opts.Stdin && !opts.Stdout {
		return &core.Streams{Close: func() error { return nil }}, nil
	}
	return view.Streams(ctx, core.Ref{Container: c.ID}, opts)
}

package kata

import (
	"context"
	"math"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/types/known/emptypb"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
)

// maxRead is the most that one answer has. The caller says how much it wants, and may
// say four gigabytes; a message of ttrpc has four megabytes.
const maxRead = 1 << 20

// WriteStdin implements katav1.AgentServiceService. Empty data is the end of the input.
func (s *service) WriteStdin(ctx context.Context, req *katav1.WriteStreamRequest) (*katav1.WriteStreamResponse, error) {
	ref, io, err := s.face.stdio(ctx, req.GetContainerId(), req.GetExecId())
	if err != nil {
		return nil, refuse(codes.Internal, "cannot write: %v", err)
	}
	if len(req.GetData()) == 0 {
		return &katav1.WriteStreamResponse{}, s.face.closeStdin(ctx, ref, io)
	}
	n, err := io.write(ctx, req.GetData())
	if err != nil {
		return nil, refuse(codes.Internal, "cannot write: the process has closed its input: %v", err)
	}
	return &katav1.WriteStreamResponse{Len: uint32(n)}, nil
}

// CloseStdin implements katav1.AgentServiceService.
func (s *service) CloseStdin(ctx context.Context, req *katav1.CloseStdinRequest) (*emptypb.Empty, error) {
	ref, io, err := s.face.stdio(ctx, req.GetContainerId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	return &emptypb.Empty{}, s.face.closeStdin(ctx, ref, io)
}

// closeStdin ends a process's input after the present writes.
func (f *Face) closeStdin(ctx context.Context, ref core.Ref, io *stdio) error {
	if err := io.idle(ctx); err != nil {
		return err
	}
	err := f.o.Engine.CloseStdin(ctx, ref)
	if errdefs.IsNotFound(err) { // it has ended, and its input with it
		return nil
	}
	return err
}

// ReadStdout implements katav1.AgentServiceService.
func (s *service) ReadStdout(ctx context.Context, req *katav1.ReadStreamRequest) (*katav1.ReadStreamResponse, error) {
	_, io, err := s.face.stdio(ctx, req.GetContainerId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	return answer(ctx, io.stdout, req.GetLen())
}

// ReadStderr implements katav1.AgentServiceService. On a terminal it is the output.
func (s *service) ReadStderr(ctx context.Context, req *katav1.ReadStreamRequest) (*katav1.ReadStreamResponse, error) {
	_, io, err := s.face.stdio(ctx, req.GetContainerId(), req.GetExecId())
	if err != nil {
		return nil, err
	}
	return answer(ctx, io.stderr, req.GetLen())
}

func answer(ctx context.Context, p *pipe, n uint32) (*katav1.ReadStreamResponse, error) {
	if n == 0 {
		return nil, refuse(codes.InvalidArgument, "a read of no bytes would look like the end of the output")
	}
	for {
		data, err := p.take(ctx, int(min(n, maxRead)))
		if err != nil {
			return nil, err
		}
		// Withheld output is read and dropped until its end, or the process would block.
		if !withheld(ctx) || len(data) == 0 {
			return &katav1.ReadStreamResponse{Data: data}, nil
		}
	}
}

// TtyWinResize implements katav1.AgentServiceService.
func (s *service) TtyWinResize(ctx context.Context, req *katav1.TtyWinResizeRequest) (*emptypb.Empty, error) {
	ct, err := s.face.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, unknown(req.GetContainerId(), err)
	}
	p, err := s.face.process(&ct, req.GetExecId())
	if err != nil {
		return nil, err
	}
	if !p.TTY {
		return nil, refuse(codes.Unavailable, "no tty")
	}
	size := core.Size{Cols: uint16(min(req.GetColumn(), math.MaxUint16)), Rows: uint16(min(req.GetRow(), math.MaxUint16))}
	err = s.face.o.Engine.Resize(ctx, core.Ref{Container: ct.ID, Process: p.ID}, size)
	if errdefs.IsNotFound(err) {
		err = refuse(codes.NotFound, "the process has ended")
	}
	return &emptypb.Empty{}, err
}

// stdio finds a process's streams, for the calls that read and write.
func (f *Face) stdio(ctx context.Context, container, exec string) (core.Ref, *stdio, error) {
	ct, err := f.container(ctx, container)
	if err != nil {
		return core.Ref{}, nil, unknown(container, err)
	}
	p, err := f.process(&ct, exec)
	if err != nil {
		return core.Ref{}, nil, err
	}
	ref := core.Ref{Container: ct.ID, Process: p.ID}
	s, err := f.outs.of(ctx, ref, p.TTY)
	if errdefs.IsNotFound(err) {
		err = refuse(codes.NotFound, "the process is gone")
	}
	return ref, s, err
}

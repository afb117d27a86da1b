package control

import (
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/logs"
)

// Logs reads the output of a container from its sinks.
func (s *containerServer) Logs(req *longshorev1.LogsRequest, stream grpc.ServerStreamingServer[longshorev1.LogsResponse]) error {
	ctx := stream.Context()
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return err
	}
	sinks := logs.Whole(c.Config.IO.Sinks)
	recent := len(sinks) == 0 && c.Config.IO.Hold && s.srv.o.Recent != nil
	if len(sinks) == 0 && !recent {
		return fmt.Errorf("logs of %s: its output is not stored: %w", c.ID.Short(), errdefs.ErrFailedPrecondition)
	}
	opts := logs.Options{Follow: req.GetFollow()}
	if req.GetSince() != nil {
		opts.Since = req.GetSince().AsTime()
	}
	if req.GetUntil() != nil {
		opts.Until = req.GetUntil().AsTime()
	}
	if req.Tail != nil {
		if opts.Tail = int(req.GetTail()); opts.Tail <= 0 {
			opts.Tail = -1 // no earlier output
		}
	}
	if opts.Follow {
		var stop func()
		opts.Ended, stop = engine.Ended(ctx, s.srv.all, c.ID)
		defer stop()
	}
	send := func(e logs.Entry) error {
		return stream.Send(&longshorev1.LogsResponse{At: view.Time(e.At), Stream: e.Stream, Data: e.Text, Partial: e.Partial})
	}
	if recent {
		return s.srv.o.Recent.Read(ctx, c.ID, opts, send)
	}
	return logs.ReadWhole(ctx, sinks, opts, send)
}

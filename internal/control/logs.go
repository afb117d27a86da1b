package control

import (
	"context"
	"fmt"
	"sync"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/logs"
)

// Logs reads a container's sinks back.
func (s *containerServer) Logs(req *longshorev1.LogsRequest, stream grpc.ServerStreamingServer[longshorev1.LogsResponse]) error {
	ctx := stream.Context()
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return err
	}
	sinks := readable(c.Config.IO.Sinks)
	if len(sinks) == 0 {
		return fmt.Errorf("logs of %s: its output is kept nowhere: %w", c.ID.Short(), errdefs.ErrFailedPrecondition)
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
			opts.Tail = -1 // nothing of what is there
		}
	}
	if opts.Follow {
		var stop func()
		opts.Ended, stop = s.srv.ended(ctx, c.ID)
		defer stop()
	}
	var mu sync.Mutex // serializes send: a gRPC stream takes one sender at a time
	send := func(m *longshorev1.LogsResponse) error {
		mu.Lock()
		defer mu.Unlock()
		return stream.Send(m)
	}
	return readAll(ctx, sinks, opts, send)
}

// readable are the sinks that tell the whole output once: one that has both
// streams, or one for each.
func readable(sinks []core.Sink) []core.Sink {
	for _, s := range sinks {
		if s.Stdout && s.Stderr {
			return []core.Sink{s}
		}
	}
	var list []core.Sink
	var out, err bool
	for _, s := range sinks {
		if (s.Stdout && !out) || (s.Stderr && !err) {
			list = append(list, s)
			out, err = out || s.Stdout, err || s.Stderr
		}
	}
	return list
}

// ended returns what is closed once a container has ended and all of its output
// is in its sinks, or is gone.
func (s *Server) ended(ctx context.Context, id core.ID) (<-chan struct{}, func()) {
	ctx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		_, err := s.all.Wait(ctx, core.Ref{Container: id})
		if err == nil || errdefs.IsNotFound(err) {
			close(done)
		}
	}()
	return done, stop
}

// readAll reads every sink, one after the other, or at once when they are
// followed.
func readAll(ctx context.Context, sinks []core.Sink, opts logs.Options, send func(*longshorev1.LogsResponse) error) error {
	read := func(ctx context.Context, sink core.Sink) error {
		return logs.Read(ctx, sink, opts, func(e logs.Entry) error {
			if e.Stream == "" {
				if e.Stream = "stdout"; !sink.Stdout {
					e.Stream = "stderr"
				}
			}
			return send(&longshorev1.LogsResponse{At: stamp(e.At), Stream: e.Stream, Data: e.Text, Partial: e.Partial})
		})
	}
	if !opts.Follow || len(sinks) == 1 {
		for _, sink := range sinks {
			if err := read(ctx, sink); err != nil {
				return err
			}
		}
		return nil
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, sink := range sinks {
		wg.Go(func() {
			if err := read(ctx, sink); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// ownLog is the log of a container of ours, nil for others: what turns and
// removes their logs is not ours to know.
func ownLog(c core.Container) *core.Sink {
	list := readable(c.Config.IO.Sinks)
	if c.Owner != core.OwnerCLI || len(list) != 1 || list[0].Path != recordOf(c).Log {
		return nil
	}
	return &list[0]
}

package control

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/view"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/solo"
)

// checkpoints returns the verbs of a client, or an error if the node has none.
func (s *Server) checkpoints(c *engine.Client) (core.CheckpointVerbs, error) {
	if s.o.Checkpoints == nil {
		return nil, fmt.Errorf("this node makes no checkpoints: %w", errdefs.ErrNotImplemented)
	}
	return s.o.Checkpoints(c), nil
}

// stored returns a container and the verbs of its checkpoints.
func (s *containerServer) stored(ctx context.Context, name string, force bool) (core.Container, core.CheckpointVerbs, error) {
	c, err := s.srv.container(ctx, name)
	if err != nil {
		return c, nil, err
	}
	client, err := s.srv.changer(c.Meta, force)
	if err != nil {
		return c, nil, err
	}
	v, err := s.srv.checkpoints(client)
	return c, v, err
}

// Checkpoint stores the processes of a container.
func (s *containerServer) Checkpoint(ctx context.Context, req *longshorev1.CheckpointRequest) (*longshorev1.CheckpointResponse, error) {
	tcp, err := core.ParseTCPMode(req.GetTcp())
	if err != nil {
		return nil, invalid.Errorf("%v", err)
	}
	c, v, err := s.stored(ctx, req.GetName(), req.GetForce())
	if err != nil {
		return nil, err
	}
	if !req.GetLeaveRunning() && solo.RecordOf(c).AutoRemove {
		return nil, fmt.Errorf("checkpoint %s: it is removed when it ends, and its checkpoint with it: leave it running: %w", c.Name(), errdefs.ErrFailedPrecondition)
	}
	o := core.CheckpointOptions{End: !req.GetLeaveRunning(), TCP: tcp, FileLocks: req.GetFileLocks(), Timeout: req.GetTimeout().AsDuration()}
	if err := v.Checkpoint(ctx, c.ID, o); err != nil {
		return nil, err
	}
	if c, err = s.srv.all.Container(ctx, c.ID); err != nil {
		return nil, err
	}
	return &longshorev1.CheckpointResponse{Checkpoint: view.Checkpoint(c.LastCheckpoint())}, nil
}

// ExportCheckpoint sends a checkpoint.
func (s *containerServer) ExportCheckpoint(req *longshorev1.ExportCheckpointRequest, stream grpc.ServerStreamingServer[longshorev1.ExportCheckpointResponse]) error {
	ctx := stream.Context()
	c, v, err := s.stored(ctx, req.GetName(), req.GetForce())
	if err != nil {
		return err
	}
	w := toStream(stream.Send, func(data []byte) *longshorev1.ExportCheckpointResponse {
		return &longshorev1.ExportCheckpointResponse{Data: data}
	})
	if err := v.Export(ctx, c.ID, w); err != nil {
		return err
	}
	if err := w.Flush(); err != nil {
		return err
	}
	if req.GetRemove() {
		return v.Forget(ctx, c.ID)
	}
	return nil
}

// Restore continues the processes of a checkpoint.
func (s *containerServer) Restore(stream grpc.ClientStreamingServer[longshorev1.RestoreRequest, longshorev1.RestoreResponse]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	start := first.GetStart()
	if start == nil {
		return invalid.Errorf("the first message does not say what to restore")
	}
	tcp, err := core.ParseTCPMode(start.GetTcp())
	if err != nil {
		return invalid.Errorf("%v", err)
	}
	v, err := s.srv.checkpoints(s.srv.own)
	if err != nil {
		return err
	}
	var c core.Container
	if start.GetArchive() {
		c, err = s.restoreNew(stream, v, start, tcp)
	} else {
		c, err = s.restoreEnded(stream.Context(), start.GetName(), tcp)
	}
	if err != nil {
		return startFailure(err)
	}
	return stream.SendAndClose(&longshorev1.RestoreResponse{Id: string(c.ID), Name: c.Name()})
}

// restoreEnded restores a container that has ended.
func (s *containerServer) restoreEnded(ctx context.Context, name string, tcp core.TCPMode) (core.Container, error) {
	c, err := s.srv.container(ctx, name)
	switch {
	case err != nil:
		return c, err
	case c.Owner != core.OwnerCLI:
		return c, fmt.Errorf("restore %s: it belongs to %s, which starts it: %w", c.ID.Short(), c.Owner, errdefs.ErrPermissionDenied)
	}
	v, err := s.srv.checkpoints(s.srv.own)
	if err != nil {
		return c, err
	}
	return c, solo.Restore(ctx, s.srv.solo, c, solo.Restoring{Verbs: v, TCP: tcp})
}

// restoreNew makes a container of a tar.
func (s *containerServer) restoreNew(stream grpc.ClientStreamingServer[longshorev1.RestoreRequest, longshorev1.RestoreResponse], v core.CheckpointVerbs, start *longshorev1.RestoreStart, tcp core.TCPMode) (core.Container, error) {
	ctx := stream.Context()
	in, err := v.Import(ctx, &fromStream[*longshorev1.RestoreRequest]{recv: stream.Recv})
	if err != nil {
		return core.Container{}, err
	}
	defer func() { _ = in.Close() }()
	req, err := solo.RequestOf(in.Meta())
	if err != nil {
		return core.Container{}, err
	}
	if start.GetName() != "" {
		req.Name = start.GetName()
	}
	req.Pull = start.GetPull()
	made, err := s.srv.solo.Prepare(ctx, req)
	if err != nil {
		return core.Container{}, err
	}
	img, err := s.srv.imageFor(ctx, req, func(*longshorev1.CreateResponse) error { return nil })
	if err != nil {
		return core.Container{}, err
	}
	return made.Restore(ctx, solo.Restoring{Verbs: v, From: in, TCP: tcp}, img)
}

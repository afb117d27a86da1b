package control

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/solo"
)

// Rename gives a container of ours another name.
func (s *containerServer) Rename(ctx context.Context, req *longshorev1.RenameRequest) (*longshorev1.RenameResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if c.Owner != core.OwnerCLI {
		return nil, fmt.Errorf("rename %s: it belongs to %s, which uses this name: %w", c.ID.Short(), c.Owner, errdefs.ErrPermissionDenied)
	}
	return &longshorev1.RenameResponse{}, s.srv.solo.Rename(ctx, c, req.GetNewName())
}

// Update changes the limits of a container of ours, now and for its next starts.
func (s *containerServer) Update(ctx context.Context, req *longshorev1.UpdateRequest) (*longshorev1.UpdateResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if c.Owner != core.OwnerCLI {
		return nil, fmt.Errorf("update %s: it belongs to %s, which sets its limits: %w", c.ID.Short(), c.Owner, errdefs.ErrPermissionDenied)
	}
	return &longshorev1.UpdateResponse{}, s.srv.solo.Update(ctx, c, req)
}

// changesInMessage is the number of changes in one message.
const changesInMessage = 500

// Diff lists a container's changes of its image's files.
func (s *containerServer) Diff(req *longshorev1.DiffRequest, stream grpc.ServerStreamingServer[longshorev1.DiffResponse]) error {
	c, err := s.srv.container(stream.Context(), req.GetName())
	if err != nil {
		return err
	}
	out := &longshorev1.DiffResponse{}
	err = s.srv.solo.Changes(stream.Context(), c, func(f core.FileChange) error {
		// A path may be invalid UTF-8.
		out.Changes = append(out.Changes, &longshorev1.Change{Path: strings.ToValidUTF8(f.Path, "\uFFFD"), Kind: f.Kind})
		if len(out.GetChanges()) < changesInMessage {
			return nil
		}
		err := stream.Send(out)
		out = &longshorev1.DiffResponse{}
		return err
	})
	if err == nil && len(out.GetChanges()) > 0 {
		err = stream.Send(out)
	}
	return err
}

// Commit makes an image of a container of ours. It is paused meanwhile, unless the request says
// otherwise.
func (s *containerServer) Commit(ctx context.Context, req *longshorev1.CommitRequest) (*longshorev1.CommitResponse, error) {
	c, err := s.srv.container(ctx, req.GetName())
	if err != nil {
		return nil, err
	}
	if c.Owner != core.OwnerCLI {
		return nil, fmt.Errorf("make an image of %s: it belongs to %s: %w", c.ID.Short(), c.Owner, errdefs.ErrPermissionDenied)
	}
	img, err := s.srv.solo.Commit(ctx, c, solo.Commit{Image: req.GetImage(), Author: req.GetAuthor(), Message: req.GetMessage(), Running: req.GetRunning(), Changes: req.GetChanges()})
	if err != nil {
		return nil, err
	}
	return &longshorev1.CommitResponse{Id: img.ID.String()}, nil
}

package cri

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	v1 "github.com/longshore/longshore/api/cri/v1"
)

// Checkpoints are not built yet. The answers say so, and whether CRIU, which
// makes them, would work on this node at all.

func (s *server) CheckpointContainer(ctx context.Context, req *v1.CheckpointContainerRequest) (*v1.CheckpointContainerResponse, error) {
	return nil, noCheckpoint(ctx, s.checkpoint, "checkpoint container "+req.GetContainerId())
}

func (s *server) CheckpointPod(ctx context.Context, req *v1.CheckpointPodRequest) (*v1.CheckpointPodResponse, error) {
	return nil, noCheckpoint(ctx, s.checkpoint, "checkpoint sandbox "+req.GetPodSandboxId())
}

func (s *server) RestorePod(ctx context.Context, _ *v1.RestorePodRequest) (*v1.RestorePodResponse, error) {
	return nil, noCheckpoint(ctx, s.checkpoint, "restore sandbox")
}

func noCheckpoint(ctx context.Context, why func(context.Context) error, what string) error {
	if why != nil {
		if err := why(ctx); err != nil {
			return fmt.Errorf("%s: longshore makes no checkpoints yet, and this node could not: %v: %w", what, err, errdefs.ErrNotImplemented) //nolint:errorlint // one class
		}
	}
	return fmt.Errorf("%s: longshore makes no checkpoints yet: %w", what, errdefs.ErrNotImplemented)
}

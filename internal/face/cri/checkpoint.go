package cri

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
)

// CheckpointContainer writes a checkpoint of a container, which continues, as a tar. Its connections are stored, so that a container
// with connections is not refused.
func (s *server) CheckpointContainer(ctx context.Context, req *v1.CheckpointContainerRequest) (*v1.CheckpointContainerResponse, error) {
	what := "checkpoint container " + req.GetContainerId()
	if s.checkpoints == nil {
		return nil, noCheckpoint(ctx, s.checkpoint, what)
	}
	if err := s.checkpoints.Able(ctx); err != nil {
		return nil, fmt.Errorf("%s: this node makes no checkpoints: %v: %w", what, err, errdefs.ErrNotImplemented) //nolint:errorlint // one class
	}
	if !filepath.IsAbs(req.GetLocation()) {
		return nil, fmt.Errorf("%s: location %q is not absolute: %w", what, req.GetLocation(), errdefs.ErrInvalidArgument)
	}
	c, err := storedContainer(s.engine, req.GetContainerId())
	if err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	o := core.CheckpointOptions{TCP: core.TCPKeep, FileLocks: true, Timeout: time.Duration(max(req.GetTimeout(), 0)) * time.Second}
	if err := s.checkpoints.Checkpoint(ctx, c.ID, o); err != nil {
		return nil, err
	}
	err = atomicfile.Fill(req.GetLocation(), 0o600, func(f *os.File) error { return s.checkpoints.Export(ctx, c.ID, f) })
	// The files of the container change, and its checkpoint does not fit them for long.
	if err = errors.Join(err, s.checkpoints.Forget(context.WithoutCancel(ctx), c.ID)); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	return &v1.CheckpointContainerResponse{}, nil
}

// Checkpoints of pods are not built yet. The answers say so, and whether CRIU, which
// makes them, would work on this node at all.

func (s *server) CheckpointPod(ctx context.Context, req *v1.CheckpointPodRequest) (*v1.CheckpointPodResponse, error) {
	return nil, noCheckpoint(ctx, s.checkpoint, "checkpoint sandbox "+req.GetPodSandboxId())
}

func (s *server) RestorePod(ctx context.Context, _ *v1.RestorePodRequest) (*v1.RestorePodResponse, error) {
	return nil, noCheckpoint(ctx, s.checkpoint, "restore sandbox")
}

func noCheckpoint(ctx context.Context, why func(context.Context) error, what string) error {
	if why != nil {
		if err := why(ctx); err != nil {
			return fmt.Errorf("%s: longshore makes no checkpoints of pods yet, and this node could not: %v: %w", what, err, errdefs.ErrNotImplemented) //nolint:errorlint // one class
		}
	}
	return fmt.Errorf("%s: longshore makes no checkpoints of pods yet: %w", what, errdefs.ErrNotImplemented)
}

package cri

import (
	"context"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/podcheckpoint"
)

// CheckpointContainer writes a checkpoint of a container.
func (s *server) CheckpointContainer(ctx context.Context, req *v1.CheckpointContainerRequest) (*v1.CheckpointContainerResponse, error) {
	if err := podcheckpoint.Able(ctx, s.checkpoints, s.checkpoint, "checkpoint container "+req.GetContainerId()); err != nil {
		return nil, err
	}
	return &v1.CheckpointContainerResponse{}, podCalls(s).CheckpointContainer(ctx, req)
}

// podCalls returns the calls for checkpoints.
func podCalls(s *server) *podcheckpoint.Calls {
	return &podcheckpoint.Calls{
		Verbs: s.checkpoints, Engine: s.engine, Request: s.asked("restore: it failed"), Images: s.archives, Why: s.checkpoint,
		Sandbox:   func(id string) (*core.Sandbox, error) { return storedSandbox(s.engine, id) },
		Container: func(id string) (*core.Container, error) { return storedContainer(s.engine, id) },
		Config: func(data []byte) (*v1.ContainerConfig, error) {
			r, err := containerOf(&core.Container{Meta: core.Meta{Data: data}})
			return r.Config, err
		},
		Run: func(ctx context.Context, req *v1.RunPodSandboxRequest) (core.Sandbox, error) {
			sb, _, err := run(ctx, s, req)
			return sb, err
		},
		Create: func(ctx context.Context, req *v1.CreateContainerRequest) (core.Container, bool, error) {
			c, cfg, err := create(ctx, s, req, true)
			return c, sameContainer(err, c, cfg), err
		},
	}
}

// CheckpointPod writes a checkpoint of containers of a pod.
func (s *server) CheckpointPod(ctx context.Context, req *v1.CheckpointPodRequest) (*v1.CheckpointPodResponse, error) {
	return &v1.CheckpointPodResponse{}, podCalls(s).Checkpoint(ctx, req)
}

// RestorePod makes a pod of a checkpoint.
func (s *server) RestorePod(ctx context.Context, req *v1.RestorePodRequest) (*v1.RestorePodResponse, error) {
	return podCalls(s).Restore(ctx, req)
}

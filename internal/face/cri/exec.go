package cri

import (
	"context"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/face/cri/joint"
	"github.com/longshore/longshore/internal/invalid"
)

// runner runs what clients ask for.
func runner(s *server) joint.Runner {
	return joint.Runner{Engine: s.engine, Log: s.log, Background: &s.background}
}

func (s *server) ExecSync(ctx context.Context, req *v1.ExecSyncRequest) (*v1.ExecSyncResponse, error) {
	if len(req.GetCmd()) == 0 {
		return nil, invalid.Errorf("exec in container %s: no command", req.GetContainerId())
	}
	c, err := s.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	r, err := runner(s).Sync(ctx, c, req.GetCmd(), grace(req.GetTimeout()))
	if err != nil {
		return nil, err
	}
	return &v1.ExecSyncResponse{Stdout: r.Stdout, Stderr: r.Stderr, ExitCode: int32(r.Status)}, nil
}

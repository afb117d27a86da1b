package cri

import (
	"context"
	"fmt"
	"runtime"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/core"
)

func (s *server) ContainerStats(ctx context.Context, req *v1.ContainerStatsRequest) (*v1.ContainerStatsResponse, error) {
	c, err := s.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	st, err := s.containerFigures(ctx, c)
	return &v1.ContainerStatsResponse{Stats: st}, err
}

func (s *server) ListContainerStats(ctx context.Context, req *v1.ListContainerStatsRequest) (*v1.ListContainerStatsResponse, error) {
	list, err := s.containerStats(ctx, req.GetFilter())
	return &v1.ListContainerStatsResponse{Stats: list}, err
}

func (s *server) StreamContainerStats(req *v1.StreamContainerStatsRequest, out v1.RuntimeService_StreamContainerStatsServer) error {
	list, err := s.containerStats(out.Context(), req.GetFilter())
	if err != nil {
		return err
	}
	return inChunks(list, func(chunk []*v1.ContainerStats) error {
		return out.Send(&v1.StreamContainerStatsResponse{ContainerStats: chunk})
	})
}

func (s *server) PodSandboxStats(ctx context.Context, req *v1.PodSandboxStatsRequest) (*v1.PodSandboxStatsResponse, error) {
	sb, err := s.sandbox(ctx, req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	st, err := s.podFigures(ctx, sb)
	return &v1.PodSandboxStatsResponse{Stats: st}, err
}

func (s *server) ListPodSandboxStats(ctx context.Context, req *v1.ListPodSandboxStatsRequest) (*v1.ListPodSandboxStatsResponse, error) {
	list, err := s.podStats(ctx, req.GetFilter())
	return &v1.ListPodSandboxStatsResponse{Stats: list}, err
}

func (s *server) StreamPodSandboxStats(req *v1.StreamPodSandboxStatsRequest, out v1.RuntimeService_StreamPodSandboxStatsServer) error {
	list, err := s.podStats(out.Context(), req.GetFilter())
	if err != nil {
		return err
	}
	return inChunks(list, func(chunk []*v1.PodSandboxStats) error {
		return out.Send(&v1.StreamPodSandboxStatsResponse{PodSandboxStats: chunk})
	})
}

func (s *server) containerStats(ctx context.Context, f *v1.ContainerStatsFilter) ([]*v1.ContainerStats, error) {
	all, err := s.engine.Containers(ctx, core.Filter{Labels: f.GetLabelSelector()})
	if err != nil {
		return nil, fmt.Errorf("list container stats: %w", err)
	}
	return each(ctx, all, func(c core.Container) bool { return matchStats(f, c) }, s.containerFigures)
}

func (s *server) podStats(ctx context.Context, f *v1.PodSandboxStatsFilter) ([]*v1.PodSandboxStats, error) {
	all, err := s.engine.Sandboxes(ctx, core.Filter{Labels: f.GetLabelSelector()})
	if err != nil {
		return nil, fmt.Errorf("list sandbox stats: %w", err)
	}
	return each(ctx, all, func(sb core.Sandbox) bool { return matchPodStats(f, sb) }, s.podFigures)
}

// each reads the figures of those that match, a few at a time. What ends
// meanwhile is left out.
func each[O, S any](ctx context.Context, all []O, match func(O) bool, read func(context.Context, O) (*S, error)) ([]*S, error) {
	found := make([]*S, len(all))
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, o := range all {
		if !match(o) {
			continue
		}
		g.Go(func() error {
			st, err := read(ctx, o)
			if err != nil {
				if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
					return nil
				}
				return err
			}
			found[i] = st
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	out := make([]*S, 0, len(all))
	for _, st := range found {
		if st != nil {
			out = append(out, st)
		}
	}
	return out, nil
}

func (s *server) containerFigures(ctx context.Context, c core.Container) (*v1.ContainerStats, error) {
	r, err := containerHead(c)
	if err != nil {
		return nil, err
	}
	st, err := s.engine.Stats(ctx, c.ID, false)
	if err != nil {
		return nil, fmt.Errorf("stats of container %s: %w", c.ID, err)
	}
	return containerStats(c, r, st, s.node.imageRoot), nil
}

func (s *server) podFigures(ctx context.Context, sb core.Sandbox) (*v1.PodSandboxStats, error) {
	r, err := podHead(sb)
	if err != nil {
		return nil, err
	}
	st, err := s.engine.SandboxStats(ctx, sb.ID)
	if err != nil {
		return nil, fmt.Errorf("stats of sandbox %s: %w", sb.ID, err)
	}
	inside, err := s.engine.Containers(ctx, core.Filter{Sandbox: sb.ID})
	if err != nil {
		return nil, err
	}
	containers, err := each(ctx, inside, func(c core.Container) bool { return matchStats(nil, c) }, s.containerFigures)
	if err != nil {
		return nil, err
	}
	return podStats(sb, r, st, containers), nil
}

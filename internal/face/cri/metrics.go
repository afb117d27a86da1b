package cri

import (
	"context"
	"fmt"
	"slices"

	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/listcache"
	"github.com/longshore/longshore/internal/face/cri/metric"
)

// The figures that metrics are made of.
const (
	containerMetrics = core.StatsUsage | core.StatsDetail | core.StatsProcessFiles | core.StatsRootfs | core.StatsLimits
	podMetrics       = core.StatsUsage | core.StatsDetail | core.StatsProcessCount | core.StatsLimits
)

func (s *server) ListMetricDescriptors(context.Context, *v1.ListMetricDescriptorsRequest) (*v1.ListMetricDescriptorsResponse, error) {
	return &v1.ListMetricDescriptorsResponse{Descriptors: s.stats.metrics.Descriptors()}, nil
}

func (s *server) ListPodSandboxMetrics(ctx context.Context, _ *v1.ListPodSandboxMetricsRequest) (*v1.ListPodSandboxMetricsResponse, error) {
	list, err := s.stats.podMetrics(ctx)
	return &v1.ListPodSandboxMetricsResponse{PodMetrics: list}, err
}

func (s *server) StreamPodSandboxMetrics(_ *v1.StreamPodSandboxMetricsRequest, out v1.RuntimeService_StreamPodSandboxMetricsServer) error {
	list, err := s.stats.podMetrics(out.Context())
	if err != nil {
		return err
	}
	return listcache.InChunks(list, listcache.Size, func(chunk []*v1.PodSandboxMetrics) error {
		return out.Send(&v1.StreamPodSandboxMetricsResponse{PodSandboxMetrics: chunk})
	})
}

// podMetrics are those of ready sandboxes and of what runs in them.
func (g *statsReader) podMetrics(ctx context.Context) ([]*v1.PodSandboxMetrics, error) {
	all, err := g.engine.Stored.Sandboxes()
	if err != nil {
		return nil, fmt.Errorf("list metrics: %w", err)
	}
	all = slices.DeleteFunc(all, func(sb *core.Sandbox) bool { return !matchPodStats(nil, sb) })
	net, err := g.engine.Stats.Networks(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list metrics: %w", err)
	}
	return each(ctx, all, nil, func(ctx context.Context, sb *core.Sandbox) (*v1.PodSandboxMetrics, error) {
		return g.metricsOf(ctx, sb, net[sb.ID])
	})
}

func (g *statsReader) metricsOf(ctx context.Context, sb *core.Sandbox, net []core.NetStats) (*v1.PodSandboxMetrics, error) {
	r, err := podHead(sb)
	if err != nil {
		return nil, err
	}
	pod := metric.Object{Pod: r.Config.GetConfig().GetMetadata(), ID: sb.Cgroup.Path, Started: sb.Created}
	if pod.Stats, err = g.engine.Stats.OfSandbox(ctx, sb, podMetrics); err != nil {
		return nil, err
	}
	pod.Stats.Net = net
	out := &v1.PodSandboxMetrics{PodSandboxId: string(sb.ID), Metrics: g.metrics.Of(&pod)}
	inside, err := g.engine.Stored.ContainersOf(sb.ID)
	if err != nil {
		return nil, err
	}
	for _, c := range inside {
		if !matchStats(nil, c) {
			continue
		}
		r, err := containerNames(c)
		if err != nil {
			return nil, err
		}
		o := metric.Object{
			Pod: pod.Pod, Container: r.Config.GetMetadata().GetName(), ID: c.Cgroup.Path, Name: string(c.ID),
			Image: imageName(r), Started: c.Main.Started, Main: c.Main.Pid,
		}
		o.Stats, err = g.engine.Stats.OfContainer(ctx, c, containerMetrics)
		if err == nil {
			out.ContainerMetrics = append(out.ContainerMetrics, &v1.ContainerMetrics{ContainerId: string(c.ID), Metrics: g.metrics.Of(&o)})
		} else if !wentAway(err) {
			return nil, err
		}
	}
	return out, nil
}

// imageName is what the image was called when the container was asked for.
func imageName(r containerRecord) string {
	if name := r.Config.GetImage().GetUserSpecifiedImage(); name != "" {
		return name
	}
	return r.Config.GetImage().GetImage()
}

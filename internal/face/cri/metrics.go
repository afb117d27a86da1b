package cri

import (
	"context"
	"fmt"
	"slices"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/listcache"
	"github.com/longshore/longshore/internal/face/cri/metric"
)

// The figures that metrics are made of.
const (
	containerMetrics = core.StatsUsage | core.StatsCommon | core.StatsProcessFiles | core.StatsRootfs | core.StatsLimits
	podMetrics       = core.StatsUsage | core.StatsCommon | core.StatsProcessCount | core.StatsLimits
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

// podMetrics are those of ready sandboxes and of their running containers.
func (g *statsReader) podMetrics(ctx context.Context) ([]*v1.PodSandboxMetrics, error) {
	pods, err := g.measure(ctx)
	if err != nil {
		return nil, err
	}
	out := make([]*v1.PodSandboxMetrics, 0, len(pods))
	for _, p := range pods {
		m := &v1.PodSandboxMetrics{PodSandboxId: string(p.id), Metrics: g.metrics.Of(&p.pod)}
		for i := range p.containers {
			c := &p.containers[i]
			m.ContainerMetrics = append(m.ContainerMetrics, &v1.ContainerMetrics{ContainerId: c.Name, Metrics: g.metrics.Of(c)})
		}
		out = append(out, m)
	}
	return out, nil
}

// measured holds the stats of a sandbox and of its running containers.
type measured struct {
	id         core.ID
	pod        metric.Object
	containers []metric.Object
}

// measure reads the stats of ready sandboxes and of their running containers.
func (g *statsReader) measure(ctx context.Context) ([]*measured, error) {
	all, err := g.engine.Stored.Sandboxes()
	if err != nil {
		return nil, fmt.Errorf("list metrics: %w", err)
	}
	all = slices.DeleteFunc(all, func(sb *core.Sandbox) bool { return !matchPodStats(nil, sb) })
	net, err := g.engine.Stats.Networks(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list metrics: %w", err)
	}
	return each(ctx, all, nil, func(ctx context.Context, sb *core.Sandbox) (*measured, error) {
		return g.measureOne(ctx, sb, net[sb.ID])
	})
}

func (g *statsReader) measureOne(ctx context.Context, sb *core.Sandbox, net []core.NetStats) (*measured, error) {
	r, err := podHead(sb)
	if err != nil {
		return nil, err
	}
	m := &measured{id: sb.ID, pod: metric.Object{Pod: r.Config.GetConfig().GetMetadata(), ID: sb.Cgroup.Path, Started: sb.Created}}
	if m.pod.Stats, err = g.engine.Stats.OfSandbox(ctx, sb, podMetrics); err != nil {
		return nil, err
	}
	m.pod.Stats.Net = net
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
			Pod: m.pod.Pod, Container: r.Config.GetMetadata().GetName(), ID: c.Cgroup.Path, Name: string(c.ID),
			Image: imageName(r), Started: c.Main.Started, Main: c.Main.Pid,
		}
		o.Stats, err = g.engine.Stats.OfContainer(ctx, c, containerMetrics)
		if err == nil {
			m.containers = append(m.containers, o)
		} else if !wentAway(err) {
			return nil, err
		}
	}
	return m, nil
}

// imageName returns the image's name in the request.
func imageName(r containerRecord) string {
	if name := r.Config.GetImage().GetUserSpecifiedImage(); name != "" {
		return name
	}
	return r.Config.GetImage().GetImage()
}

package cri

import (
	"context"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"sync/atomic"

	"github.com/containerd/errdefs"
	"golang.org/x/sync/errgroup"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/cri/listcache"
	"github.com/longshore/longshore/internal/face/cri/metric"
)

func (s *server) ContainerStats(ctx context.Context, req *v1.ContainerStatsRequest) (*v1.ContainerStatsResponse, error) {
	c, err := storedContainer(s.engine, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	st, err := s.stats.container(ctx, c)
	return &v1.ContainerStatsResponse{Stats: st}, err
}

func (s *server) ListContainerStats(ctx context.Context, req *v1.ListContainerStatsRequest) (*v1.ListContainerStatsResponse, error) {
	list, err := s.stats.containerStats(ctx, req.GetFilter())
	return &v1.ListContainerStatsResponse{Stats: list}, err
}

func (s *server) StreamContainerStats(req *v1.StreamContainerStatsRequest, out v1.RuntimeService_StreamContainerStatsServer) error {
	list, err := s.stats.containerStats(out.Context(), req.GetFilter())
	if err != nil {
		return err
	}
	return listcache.InChunks(list, listcache.Size, func(chunk []*v1.ContainerStats) error {
		return out.Send(&v1.StreamContainerStatsResponse{ContainerStats: chunk})
	})
}

func (s *server) PodSandboxStats(ctx context.Context, req *v1.PodSandboxStatsRequest) (*v1.PodSandboxStatsResponse, error) {
	sb, err := storedSandbox(s.engine, req.GetPodSandboxId())
	if err == nil {
		err = made(sb)
	}
	if err != nil {
		return nil, err
	}
	net, err := s.engine.Stats.Networks(ctx, []*core.Sandbox{sb})
	if err != nil {
		return nil, fmt.Errorf("stats of sandbox %s: %w", sb.ID, err)
	}
	st, err := s.stats.pod(ctx, sb, net[sb.ID])
	return &v1.PodSandboxStatsResponse{Stats: st}, err
}

func (s *server) ListPodSandboxStats(ctx context.Context, req *v1.ListPodSandboxStatsRequest) (*v1.ListPodSandboxStatsResponse, error) {
	list, err := s.stats.podStats(ctx, req.GetFilter())
	return &v1.ListPodSandboxStatsResponse{Stats: list}, err
}

func (s *server) StreamPodSandboxStats(req *v1.StreamPodSandboxStatsRequest, out v1.RuntimeService_StreamPodSandboxStatsServer) error {
	list, err := s.stats.podStats(out.Context(), req.GetFilter())
	if err != nil {
		return err
	}
	return listcache.InChunks(list, listcache.Size, func(chunk []*v1.PodSandboxStats) error {
		return out.Send(&v1.StreamPodSandboxStatsResponse{PodSandboxStats: chunk})
	})
}

// statsReader reads stats and translates them to the API's messages. It keeps CPU times, because
// use is reported between two reads.
type statsReader struct {
	engine           *engine.Client
	imageRoot        string
	metrics          *metric.Set
	containers, pods rates
}

// The figures that these calls tell.
const (
	containerWants = core.StatsUsage | core.StatsRootfs
	podWants       = core.StatsUsage | core.StatsProcessCount
)

func (g *statsReader) containerStats(ctx context.Context, f *v1.ContainerStatsFilter) ([]*v1.ContainerStats, error) {
	all, err := g.engine.Stored.Containers()
	if err != nil {
		return nil, fmt.Errorf("list container stats: %w", err)
	}
	g.containers.keep(len(all), ids(all, (*core.Container).Base))
	return each(ctx, all, func(c *core.Container) bool { return matchStats(f, c) }, g.container)
}

func (g *statsReader) podStats(ctx context.Context, f *v1.PodSandboxStatsFilter) ([]*v1.PodSandboxStats, error) {
	all, err := g.engine.Stored.Sandboxes()
	if err != nil {
		return nil, fmt.Errorf("list sandbox stats: %w", err)
	}
	g.pods.keep(len(all), ids(all, (*core.Sandbox).Base))
	all = slices.DeleteFunc(all, func(sb *core.Sandbox) bool { return !matchPodStats(f, sb) })
	net, err := g.engine.Stats.Networks(ctx, all)
	if err != nil {
		return nil, fmt.Errorf("list sandbox stats: %w", err)
	}
	return each(ctx, all, nil, func(ctx context.Context, sb *core.Sandbox) (*v1.PodSandboxStats, error) {
		return g.pod(ctx, sb, net[sb.ID])
	})
}

func ids[O any](all []*O, base func(*O) *core.Meta) iter.Seq[core.ID] {
	return func(yield func(core.ID) bool) {
		for _, o := range all {
			if !yield(base(o).ID) {
				return
			}
		}
	}
}

// each reads the figures of those that match, a few at a time. It leaves out objects that end
// meanwhile.
func each[O, S any](ctx context.Context, all []*O, match func(*O) bool, read func(context.Context, *O) (*S, error)) ([]*S, error) {
	found := make([]*S, len(all))
	var next atomic.Int64
	g, ctx := errgroup.WithContext(ctx)
	for range min(runtime.GOMAXPROCS(0), len(all)) {
		g.Go(func() error {
			for {
				i := int(next.Add(1)) - 1
				if i >= len(all) {
					return nil
				}
				if match != nil && !match(all[i]) {
					continue
				}
				st, err := read(ctx, all[i])
				if err != nil && !wentAway(err) {
					return err
				}
				found[i] = st
			}
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(found, func(st *S) bool { return st == nil }), nil
}

// wentAway reports whether an error means that its object has just been removed.
func wentAway(err error) bool { return errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) }

func (g *statsReader) container(ctx context.Context, c *core.Container) (*v1.ContainerStats, error) {
	r, err := containerNames(c)
	if err != nil {
		return nil, err
	}
	st, err := g.engine.Stats.OfContainer(ctx, c, containerWants)
	if err != nil {
		return nil, err
	}
	out := containerStats(c, r, st, g.imageRoot)
	out.Cpu.UsageNanoCores = value(g.containers.of(c.ID, st))
	return out, nil
}

func (g *statsReader) pod(ctx context.Context, sb *core.Sandbox, net []core.NetStats) (*v1.PodSandboxStats, error) {
	r, err := podHead(sb)
	if err != nil {
		return nil, err
	}
	st, err := g.engine.Stats.OfSandbox(ctx, sb, podWants)
	if err != nil {
		return nil, err
	}
	st.Net = net
	inside, err := g.engine.Stored.ContainersOf(sb.ID)
	if err != nil {
		return nil, err
	}
	var containers []*v1.ContainerStats
	for _, c := range inside {
		if !matchStats(nil, c) {
			continue
		}
		st, err := g.container(ctx, c)
		switch {
		case err == nil:
			containers = append(containers, st)
		case !wentAway(err):
			return nil, err
		}
	}
	out := podStats(sb, r, st, containers)
	out.Linux.Cpu.UsageNanoCores = value(g.pods.of(sb.ID, st))
	return out, nil
}

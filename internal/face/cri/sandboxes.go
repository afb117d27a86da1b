package cri

import (
	"context"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/cri/convert"
	"github.com/longshore/longshore/internal/face/cri/listcache"
	"github.com/longshore/longshore/internal/invalid"
)

func (s *server) RunPodSandbox(ctx context.Context, req *v1.RunPodSandboxRequest) (*v1.RunPodSandboxResponse, error) {
	sb, cfg, err := run(ctx, s, req)
	if err != nil && !sameSandbox(err, sb, cfg) {
		return nil, err
	}
	return &v1.RunPodSandboxResponse{PodSandboxId: string(sb.ID)}, nil
}

func run(ctx context.Context, s *server, req *v1.RunPodSandboxRequest) (sb core.Sandbox, cfg core.SandboxConfig, err error) {
	if cfg, err = sandboxConfig(s.cfg, req); err != nil {
		return sb, cfg, err
	}
	if _, err := s.pulledProfile(req.GetConfig().GetLinux().GetSecurityContext().GetSeccomp()); err != nil {
		return sb, cfg, fmt.Errorf("run sandbox %s: %w", req.GetConfig().GetMetadata().GetName(), err)
	}
	askLabels(&cfg, s.cfg.SELinux, req.GetConfig().GetLinux().GetSecurityContext())
	if d := req.GetConfig().GetLogDirectory(); d != "" && s.as.paths == nil {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return sb, cfg, invalid.Errorf("log directory: %v", err)
		}
	}
	if sb, err = s.engine.CreateSandbox(ctx, cfg); err != nil {
		err = fmt.Errorf("run sandbox %s: %w", req.GetConfig().GetMetadata().GetName(), err)
	}
	return sb, cfg, err
}

// sameSandbox reports whether err means that an earlier call of the very same request made this
// sandbox, and that it is still as that call left it: then the client repeats a call after losing
// its answer.
func sameSandbox(err error, sb core.Sandbox, cfg core.SandboxConfig) bool {
	return errdefs.IsAlreadyExists(err) && sb.State == core.SandboxReady && sameSum(sb.Data, cfg.Data)
}

// sameContainer is the same for containers, which must not have been started.
func sameContainer(err error, c core.Container, cfg core.ContainerConfig) bool {
	return errdefs.IsAlreadyExists(err) && c.State == core.ContainerCreated && sameSum(c.Data, cfg.Data)
}

func (s *server) StopPodSandbox(ctx context.Context, req *v1.StopPodSandboxRequest) (*v1.StopPodSandboxResponse, error) {
	sb, err := storedSandbox(s.engine, req.GetPodSandboxId())
	if err == nil {
		// "Forcibly terminated": kubelet has stopped them kindly before.
		err = s.engine.StopSandbox(ctx, sb.ID, engine.StopOptions{Grace: noGrace(), Request: s.asked("StopPodSandbox")})
	}
	if gone(err) != nil {
		return nil, fmt.Errorf("stop sandbox %s: %w", req.GetPodSandboxId(), err)
	}
	return &v1.StopPodSandboxResponse{}, nil
}

func (s *server) RemovePodSandbox(ctx context.Context, req *v1.RemovePodSandboxRequest) (*v1.RemovePodSandboxResponse, error) {
	sb, err := storedSandbox(s.engine, req.GetPodSandboxId())
	if err == nil {
		err = s.engine.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true, Request: s.asked("RemovePodSandbox")})
	}
	if gone(err) != nil {
		return nil, fmt.Errorf("remove sandbox %s: %w", req.GetPodSandboxId(), err)
	}
	return &v1.RemovePodSandboxResponse{}, nil
}

// noGrace kills at once.
func noGrace() *time.Duration { return new(time.Duration) }

func (s *server) PodSandboxStatus(_ context.Context, req *v1.PodSandboxStatusRequest) (*v1.PodSandboxStatusResponse, error) {
	now := time.Now() // all later reads are newer than this
	sb, err := storedSandbox(s.engine, req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	resp := &v1.PodSandboxStatusResponse{Timestamp: nanos(now)}
	if resp.Status, err = podStatusOf(sb); err != nil {
		return nil, err
	}
	if resp.ContainersStatuses, err = statuses(s.engine, sb.ID); err != nil || !req.GetVerbose() {
		return resp, err
	}
	resp.Info, err = s.sandboxInfo(sb)
	return resp, err
}

// podStatusOf is the status of a sandbox as it is stored.
func podStatusOf(sb *core.Sandbox) (*v1.PodSandboxStatus, error) {
	r, err := podHead(sb)
	if err != nil {
		return nil, err
	}
	return sandboxStatus(sb, r), nil
}

// statusOf is the same of a container.
func statusOf(c *core.Container) (*v1.ContainerStatus, error) {
	r, err := containerHead(c)
	if err != nil {
		return nil, err
	}
	return containerStatus(c, r), nil
}

// statuses are those of all containers of a sandbox, newest first: kubelet takes
// the first of a name for the last try, and numbers the next one after it.
func statuses(e *engine.Client, sandbox core.ID) ([]*v1.ContainerStatus, error) {
	all, err := e.Stored.ContainersOf(sandbox)
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(all, func(a, b *core.Container) int { return b.Created.Compare(a.Created) })
	var out []*v1.ContainerStatus
	for _, c := range all {
		if !shownContainer(c) {
			continue
		}
		s, err := statusOf(c)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
	}
	return out, nil
}

// UpdatePodSandboxResources stores kubelet's figures of a pod's resources, for the verbose status.
// It sets no limits: kubelet has set them in its pod cgroup, which is above ours. The sums in the
// request are of the containers with a limit, and would bind the others too.
func (s *server) UpdatePodSandboxResources(ctx context.Context, req *v1.UpdatePodSandboxResourcesRequest) (*v1.UpdatePodSandboxResourcesResponse, error) {
	sb, err := s.sandbox(ctx, req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	var limits [2]*specs.LinuxResources
	for i, r := range []*v1.LinuxContainerResources{req.GetOverhead(), req.GetResources()} {
		if limits[i], err = convert.Resources(r); err != nil {
			return nil, fmt.Errorf("update sandbox %s: %s: %w", sb.ID, []string{"overhead", "resources"}[i], err)
		}
	}
	if sb.State != core.SandboxReady {
		return nil, fmt.Errorf("update sandbox %s: it is %s: %w", sb.ID, sb.State, errdefs.ErrFailedPrecondition)
	}
	err = s.nri.UpdatePod(ctx, sb, limits[0], limits[1], func() (core.Sandbox, error) { return s.keepPodResources(ctx, sb, req) })
	if err != nil {
		return nil, fmt.Errorf("update sandbox %s: %w", sb.ID, err)
	}
	return &v1.UpdatePodSandboxResourcesResponse{}, nil
}

// keepPodResources stores a pod's resources and returns the new record.
func (s *server) keepPodResources(ctx context.Context, sb core.Sandbox, req *v1.UpdatePodSandboxResourcesRequest) (core.Sandbox, error) {
	r, err := podOf(&sb)
	if err != nil {
		return sb, err
	}
	cfg := r.Config.GetConfig()
	cfg.Labels = nil
	if cfg.GetLinux() == nil {
		cfg.Linux = &v1.LinuxPodSandboxConfig{}
	}
	if o := req.GetOverhead(); o != nil {
		cfg.Linux.Overhead = o
	}
	if o := req.GetResources(); o != nil {
		cfg.Linux.Resources = o
	}
	if sb.Data, err = r.encode(); err != nil {
		return sb, err
	}
	return sb, s.engine.SetSandboxData(ctx, sb.ID, sb.Data)
}

func (s *server) ListPodSandbox(_ context.Context, req *v1.ListPodSandboxRequest) (*v1.ListPodSandboxResponse, error) {
	items, err := s.sandboxes(req.GetFilter())
	return listcache.Answer(&v1.ListPodSandboxResponse{}, items), err
}

func (s *server) StreamPodSandboxes(req *v1.StreamPodSandboxesRequest, out v1.RuntimeService_StreamPodSandboxesServer) error {
	items, err := s.sandboxes(req.GetFilter())
	if err != nil {
		return err
	}
	return listcache.InChunks(items, listcache.Length, func(chunk [][]byte) error {
		return out.Send(listcache.Answer(&v1.StreamPodSandboxesResponse{}, chunk))
	})
}

// sandboxes are the entries of a list's answer.
func (s *server) sandboxes(f *v1.PodSandboxFilter) ([][]byte, error) {
	all, err := s.engine.Stored.Sandboxes()
	if err != nil {
		return nil, fmt.Errorf("list sandboxes: %w", err)
	}
	return s.listed.sandboxes.Of(all, func(sb *core.Sandbox) bool { return matchSandbox(f, sb) && !s.nri.Asking(sb.ID) }, func(sb *core.Sandbox) ([]byte, error) {
		r, err := podHead(sb)
		if err != nil {
			return nil, err
		}
		return listcache.Entry(listedSandbox(sb, r))
	})
}

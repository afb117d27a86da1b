package cri

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/cri/convert"
	"github.com/longshore/longshore/internal/face/cri/listcache"
	"github.com/longshore/longshore/internal/invalid"
)

func (s *server) CreateContainer(ctx context.Context, req *v1.CreateContainerRequest) (*v1.CreateContainerResponse, error) {
	if resp, err := podCalls(s).Continue(ctx, req); resp != nil || err != nil {
		return resp, err
	}
	c, cfg, err := create(ctx, s, req, false)
	if err != nil && !sameContainer(err, c, cfg) {
		return nil, err
	}
	return &v1.CreateContainerResponse{ContainerId: string(c.ID)}, nil
}

// create creates a container, or one that continues a checkpoint.
func create(ctx context.Context, s *server, req *v1.CreateContainerRequest, restore bool) (c core.Container, cfg core.ContainerConfig, err error) {
	if err := checkContainer(req); err != nil {
		return c, cfg, err
	}
	sb, err := storedSandbox(s.engine, req.GetPodSandboxId())
	if err == nil {
		err = made(sb)
	}
	if err != nil {
		return c, cfg, err
	}
	if cfg, err = s.containerConfig(ctx, req, sb); err != nil {
		return c, cfg, fmt.Errorf("create container %s: %w", req.GetConfig().GetMetadata().GetName(), err)
	}
	cfg.Restore = restore
	if len(cfg.IO.Sinks) > 0 {
		if err := s.makeLogDir(cfg.IO.Sinks[0]); err != nil {
			return c, cfg, invalid.Errorf("log directory: %v", err)
		}
	}
	unlogged := newLogs(cfg.IO.Sinks)
	if c, err = s.engine.CreateContainer(ctx, cfg); err != nil {
		removeEmpty(unlogged)
	}
	return c, cfg, err
}

// makeLogDir makes the directory of a container's log, which may be some levels
// below the pod's.
func (s *server) makeLogDir(log core.Sink) error {
	if s.as.paths != nil {
		return nil // the start reports a missing directory
	}
	if err := os.MkdirAll(log.Below, 0o755); err != nil {
		return err
	}
	rel, ok := beneath.Rel(log.Below, path.Dir(log.Path))
	if !ok {
		return fmt.Errorf("log path %s is not below %s: %w", log.Path, log.Below, errdefs.ErrInvalidArgument)
	}
	dir, err := beneath.MkdirAll(log.Below, rel, 0o755)
	if err != nil {
		return err
	}
	return dir.Close()
}

// containerConfig looks up the objects in a container's config (image, target container of the pid
// namespace, sources of mounts) and translates the rest.
func (s *server) containerConfig(ctx context.Context, req *v1.CreateContainerRequest, sb *core.Sandbox) (core.ContainerConfig, error) {
	cfg := req.GetConfig()
	image, program, err := s.image(ctx, cfg.GetImage().GetImage())
	if err != nil {
		return core.ContainerConfig{}, fmt.Errorf("image %s: %w", cfg.GetImage().GetImage(), err)
	}
	pod, err := podOf(sb)
	if err != nil {
		return core.ContainerConfig{}, err
	}
	ask := containerAsk{face: s.cfg, req: req, sandbox: sb, pod: pod.Config, image: image, as: s.as, program: program, writable: s.writable()}
	if ask.node, err = os.Hostname(); err != nil {
		return core.ContainerConfig{}, err
	}
	if err := fitRights(cfg.GetLinux().GetSecurityContext(), ask.pod); err != nil {
		return core.ContainerConfig{}, err
	}
	if o := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions(); o.GetPid() == v1.NamespaceMode_TARGET {
		target, err := s.container(ctx, o.GetTargetId())
		if err != nil {
			return core.ContainerConfig{}, fmt.Errorf("pid namespace of %s: %w", o.GetTargetId(), err)
		}
		ask.target = target.ID
	}
	if ask.runtime, err = features(ctx, s.engine, sb.Config.Runtime); err != nil {
		return core.ContainerConfig{}, err
	}
	if ask.volumes, err = s.imageVolumes(ctx, cfg.GetMounts()); err != nil {
		return core.ContainerConfig{}, err
	}
	if s.as.paths == nil {
		if err := mountSources(s.cfg, cfg.GetMounts()); err != nil {
			return core.ContainerConfig{}, err
		}
	}
	if err := ask.relabel(); err != nil {
		return core.ContainerConfig{}, err
	}
	if ask.seccomp, err = readSeccomp(cfg.GetLinux().GetSecurityContext()); err != nil {
		return core.ContainerConfig{}, err
	}
	if sc := cfg.GetLinux().GetSecurityContext(); !sc.GetPrivileged() {
		if ask.pulled, err = s.pulledProfile(sc.GetSeccomp()); err != nil {
			return core.ContainerConfig{}, err
		}
	}
	if ask.devices, ask.rules, err = readDevices(cfg, slices.Contains(s.cfg.PrivilegedWithoutHostDevices, ask.pod.GetRuntimeHandler())); err != nil {
		return core.ContainerConfig{}, err
	}
	return ask.config()
}

// features returns the features of the sandbox's runtime.
func features(ctx context.Context, e *engine.Client, name string) (core.RuntimeFeatures, error) {
	runtimes, err := e.Runtimes(ctx)
	if err != nil {
		return core.RuntimeFeatures{}, err
	}
	for _, r := range runtimes {
		if r.Name == name || name == "" && r.Default {
			return r.Features, nil
		}
	}
	return core.RuntimeFeatures{}, fmt.Errorf("runtime %q: %w", name, errdefs.ErrNotFound)
}

// mountSources checks that the sources of mounts exist, and makes missing directories if the config
// says so.
func mountSources(face Config, mounts []*v1.Mount) error {
	for _, m := range mounts {
		if m.GetHostPath() == "" || !path.IsAbs(m.GetHostPath()) {
			continue // said by the translation
		}
		_, err := os.Stat(m.GetHostPath())
		if errors.Is(err, fs.ErrNotExist) && face.CreateMountSources {
			err = os.MkdirAll(m.GetHostPath(), 0o755)
		}
		if err != nil {
			return invalid.Errorf("mount %s: host path: %v", m.GetContainerPath(), err)
		}
	}
	return nil
}

func (s *server) StartContainer(ctx context.Context, req *v1.StartContainerRequest) (*v1.StartContainerResponse, error) {
	c, err := storedContainer(s.engine, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if c.Config.Restore && s.checkpoints != nil {
		err = s.checkpoints.Restore(ctx, c.ID, core.RestoreOptions{})
	} else {
		err = s.engine.StartContainer(ctx, c.ID)
	}
	if err != nil {
		return nil, err
	}
	return &v1.StartContainerResponse{}, nil
}

func (s *server) StopContainer(ctx context.Context, req *v1.StopContainerRequest) (*v1.StopContainerResponse, error) {
	c, err := storedContainer(s.engine, req.GetContainerId())
	if err == nil {
		wait := grace(req.GetTimeout())
		err = s.engine.StopContainer(ctx, c.ID, engine.StopOptions{Grace: &wait, Request: s.asked("StopContainer")})
	}
	if gone(err) != nil {
		return nil, fmt.Errorf("stop container %s: %w", req.GetContainerId(), err)
	}
	return &v1.StopContainerResponse{}, nil
}

func (s *server) RemoveContainer(ctx context.Context, req *v1.RemoveContainerRequest) (*v1.RemoveContainerResponse, error) {
	c, err := storedContainer(s.engine, req.GetContainerId())
	if err == nil {
		err = s.engine.RemoveContainer(ctx, c.ID, engine.RemoveOptions{Force: true, Request: s.asked("RemoveContainer")})
	}
	if gone(err) != nil {
		return nil, fmt.Errorf("remove container %s: %w", req.GetContainerId(), err)
	}
	return &v1.RemoveContainerResponse{}, nil
}

func (s *server) ListContainers(_ context.Context, req *v1.ListContainersRequest) (*v1.ListContainersResponse, error) {
	list, err := s.containers(req.GetFilter())
	return listcache.Answer(&v1.ListContainersResponse{}, list), err
}

func (s *server) StreamContainers(req *v1.StreamContainersRequest, out v1.RuntimeService_StreamContainersServer) error {
	list, err := s.containers(req.GetFilter())
	if err != nil {
		return err
	}
	return listcache.InChunks(list, listcache.Length, func(chunk [][]byte) error {
		return out.Send(listcache.Answer(&v1.StreamContainersResponse{}, chunk))
	})
}

// containers are the entries of a list's answer.
func (s *server) containers(f *v1.ContainerFilter) ([][]byte, error) {
	all, err := s.engine.Stored.Containers()
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	return s.listed.containers.Of(all, func(c *core.Container) bool { return matchContainer(f, c) }, func(c *core.Container) ([]byte, error) {
		r, err := containerHead(c)
		if err != nil {
			return nil, err
		}
		return listcache.Entry(listedContainer(c, r))
	})
}

func (s *server) ContainerStatus(_ context.Context, req *v1.ContainerStatusRequest) (*v1.ContainerStatusResponse, error) {
	c, err := storedContainer(s.engine, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	resp := &v1.ContainerStatusResponse{}
	if resp.Status, err = statusOf(c); err != nil || !req.GetVerbose() {
		return resp, err
	}
	sb, err := s.engine.Stored.Sandbox(c.Sandbox)
	if err != nil {
		return nil, err
	}
	r, err := containerOf(c)
	resp.Info = containerInfo(sb, c, r)
	return resp, err
}

func (s *server) UpdateContainerResources(ctx context.Context, req *v1.UpdateContainerResourcesRequest) (*v1.UpdateContainerResourcesResponse, error) {
	c, err := storedContainer(s.engine, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if req.GetLinux() == nil {
		return &v1.UpdateContainerResourcesResponse{}, nil
	}
	res, err := convert.Resources(req.GetLinux())
	if err != nil {
		return nil, fmt.Errorf("update container %s: %w", c.ID, err)
	}
	enforced, err := s.engine.UpdateContainer(ctx, c.ID, res)
	if err != nil {
		return nil, err
	}
	return &v1.UpdateContainerResourcesResponse{}, s.keepResources(ctx, c.ID, req.GetLinux(), enforced)
}

// keepResources stores a container's present limits.
func (s *server) keepResources(ctx context.Context, id core.ID, asked *v1.LinuxContainerResources, enforced *specs.LinuxResources) error {
	c, err := s.engine.Container(ctx, id)
	if err != nil {
		return err
	}
	r, err := containerOf(&c)
	if err != nil {
		return err
	}
	r.Found.Resources = convert.UpdatedResources(r.Found.GetResources(), asked, enforced)
	r.Config.Labels = nil
	data, err := r.encode()
	if err != nil {
		return err
	}
	return s.engine.SetContainerData(ctx, id, data)
}

func (s *server) ReopenContainerLog(ctx context.Context, req *v1.ReopenContainerLogRequest) (*v1.ReopenContainerLogResponse, error) {
	c, err := s.container(ctx, req.GetContainerId())
	if err != nil {
		return nil, err
	}
	if !c.State.Live() {
		return nil, fmt.Errorf("reopen log of container %s: it is %s: %w", c.ID, c.State, errdefs.ErrFailedPrecondition)
	}
	if err := s.engine.ReopenSinks(ctx, core.Ref{Container: c.ID}); err != nil {
		return nil, fmt.Errorf("reopen log of container %s: %w", c.ID, err)
	}
	return &v1.ReopenContainerLogResponse{}, nil
}

package alpha

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	v1 "github.com/longshore/longshore/api/cri/v1"
	cri "github.com/longshore/longshore/api/cri1alpha"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/programs"
)

// CreateContainer returns the id of a container that has these names already, even if the rest of
// the request differs.
func (s *Server) CreateContainer(ctx context.Context, req *cri.CreateContainerRequest) (*cri.CreateContainerResponse, error) {
	if err := checkContainerNames(req.GetConfig().GetMetadata()); err != nil {
		return nil, err
	}
	sb, err := s.sandbox(req.GetPodSandboxId())
	if err == nil {
		err = terminated(sb)
	}
	if err != nil {
		return nil, err
	}
	cfg, err := s.containerConfig(req.GetConfig())
	if err != nil {
		return nil, err
	}
	id := containerID(idOf(sb), cfg.GetMetadata())
	unlock, err := s.names.Lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := s.container(id); err == nil || !errdefs.IsNotFound(err) {
		return &cri.CreateContainerResponse{ContainerId: id}, err
	}
	pod := podConfig(req.GetSandboxConfig())
	if pod.GetLogDirectory() != "" && cfg.GetLogPath() != "" {
		s.o.Paths.makeLogDirectory(pod.GetLogDirectory(), cfg.GetLogPath())
	}
	_, err = s.o.Runtime.CreateContainer(ctx, &v1.CreateContainerRequest{PodSandboxId: string(sb.ID), Config: cfg, SandboxConfig: pod})
	if err != nil {
		return nil, err
	}
	return &cri.CreateContainerResponse{ContainerId: id}, nil
}

// containerConfig is a container's config in v1. With argdata its program holds that grant's
// descriptors and nothing else, so the other fields are ignored.
func (s *Server) containerConfig(in *cri.ContainerConfig) (*v1.ContainerConfig, error) {
	out := as[*v1.ContainerConfig](in)
	if _, ok := out.GetAnnotations()[core.GrantAnnotation]; ok {
		return nil, invalid.Errorf("container %s: annotation %s: here a program's argdata has its grants", in.GetMetadata().GetName(), core.GrantAnnotation)
	}
	if sc := in.GetLinux().GetSecurityContext(); sc != nil {
		to := out.Linux.SecurityContext
		if o := sc.GetNamespaceOptions(); o != nil {
			to.NamespaceOptions = modes(o)
		}
		// This API has no words for these; v1 takes none for none at all.
		to.MaskedPaths, to.ReadonlyPaths = ocispec.MaskedPaths(), ocispec.ReadonlyPaths()
	}
	if in.GetArgdata() == "" {
		if ref := in.GetImage().GetImage(); programs.IsName(ref) && s.o.Programs.Has(ref) {
			return nil, invalid.Errorf("container %s: %s is a program, and it needs argdata; write null to give it nothing", in.GetMetadata().GetName(), ref)
		}
		return out, nil
	}
	if out.Annotations == nil {
		out.Annotations = map[string]string{}
	}
	out.Annotations[core.GrantAnnotation] = in.GetArgdata()
	out.Envs, out.WorkingDir, out.Devices = nil, "", nil
	return out, nil
}

// StartContainer starts a container with a new log. It is success for one that was started before.
func (s *Server) StartContainer(ctx context.Context, req *cri.StartContainerRequest) (*cri.StartContainerResponse, error) {
	id := req.GetContainerId()
	unlock, err := s.names.Lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	c, err := s.container(id)
	if err != nil {
		return nil, err
	}
	sb, err := s.o.Engine.Stored.Sandbox(c.Sandbox)
	if err == nil {
		err = terminated(sb)
	}
	if err != nil || c.State != core.ContainerCreated {
		return &cri.StartContainerResponse{}, err
	}
	if err := s.verify(ctx, c); err != nil {
		return nil, err
	}
	if err := s.logs.begin(c); err != nil {
		return nil, fmt.Errorf("start container %s: %w: %w", id, err, errdefs.ErrFailedPrecondition)
	}
	_, err = s.o.Runtime.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: string(c.ID)})
	return &cri.StartContainerResponse{}, err
}

// verify compares a container's program with its name once more. One that was removed meanwhile is
// held since it was compared.
func (s *Server) verify(ctx context.Context, c *core.Container) error {
	if c.Config.Root.Dir == "" {
		return nil
	}
	r, err := s.o.Runtime.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: string(c.ID)})
	if err != nil {
		return err
	}
	return gone(s.o.Programs.Verify(ctx, r.GetStatus().GetImageId()))
}

// StopContainer implements the service. A timeout of 0 kills at once.
func (s *Server) StopContainer(ctx context.Context, req *cri.StopContainerRequest) (*cri.StopContainerResponse, error) {
	c, err := s.container(req.GetContainerId())
	if err == nil {
		_, err = s.o.Runtime.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: string(c.ID), Timeout: req.GetTimeout()})
	}
	return &cri.StopContainerResponse{}, gone(err)
}

// RemoveContainer implements the service.
func (s *Server) RemoveContainer(ctx context.Context, req *cri.RemoveContainerRequest) (*cri.RemoveContainerResponse, error) {
	c, err := s.container(req.GetContainerId())
	if err == nil {
		_, err = s.o.Runtime.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: string(c.ID)})
	}
	if err == nil {
		// End the log while its path is on record.
		if c, err = s.o.Engine.Stored.Container(c.ID); err == nil {
			s.logs.end(c)
			_, err = s.o.Runtime.RemoveContainer(ctx, &v1.RemoveContainerRequest{ContainerId: string(c.ID)})
		}
	}
	return &cri.RemoveContainerResponse{}, gone(err)
}

// ContainerStatus implements the service.
func (s *Server) ContainerStatus(ctx context.Context, req *cri.ContainerStatusRequest) (*cri.ContainerStatusResponse, error) {
	c, err := s.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	st, err := s.status(ctx, c)
	return &cri.ContainerStatusResponse{Status: st}, err
}

func (s *Server) status(ctx context.Context, c *core.Container) (*cri.ContainerStatus, error) {
	if c.State == core.ContainerExited {
		s.logs.end(c) // a caller that sees the end finds the log ended
	}
	sb, err := s.o.Engine.Stored.Sandbox(c.Sandbox)
	if err != nil {
		return nil, err
	}
	r, err := s.o.Runtime.ContainerStatus(ctx, &v1.ContainerStatusRequest{ContainerId: string(c.ID)})
	if err != nil {
		return nil, err
	}
	out := as[*cri.ContainerStatus](r.GetStatus())
	out.Id = containerID(idOf(sb), r.GetStatus().GetMetadata())
	out.LogPath = s.o.Paths.named(out.GetLogPath())
	out.Annotations = annotations(out.GetAnnotations())
	if a := c.Main.Autopsy; a != nil && a.Start == "" && a.Exit.Signal != 0 {
		out.ExitCode = int32(a.Exit.Signal)
	}
	return out, nil
}

// annotations are those that the client sent.
func annotations(all map[string]string) map[string]string {
	delete(all, core.GrantAnnotation)
	if len(all) == 0 {
		return nil
	}
	return all
}

// ListContainers implements the service.
func (s *Server) ListContainers(ctx context.Context, req *cri.ListContainersRequest) (*cri.ListContainersResponse, error) {
	f, out := req.GetFilter(), &cri.ListContainersResponse{}
	err := s.each(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector(), func(c *core.Container, pod string) error {
		st, err := s.status(ctx, c)
		if err != nil {
			return err
		}
		if f.GetState() != nil && f.GetState().GetState() != st.GetState() {
			return nil
		}
		out.Containers = append(out.Containers, &cri.Container{
			Id: st.GetId(), PodSandboxId: pod, Metadata: st.GetMetadata(), Image: st.GetImage(), ImageRef: st.GetImageRef(), State: st.GetState(),
			CreatedAt: st.GetCreatedAt(), Labels: st.GetLabels(), Annotations: st.GetAnnotations(),
		})
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list containers: %w", err)
	}
	return out, nil
}

// each calls fn with the containers that have an id, a pod and labels, "" and nil being all of them,
// and with the pod's id. One that is removed meanwhile is left out.
func (s *Server) each(id, pod string, selector map[string]string, fn func(c *core.Container, pod string) error) error {
	sandboxes, err := s.o.Engine.Stored.Sandboxes()
	if err != nil {
		return err
	}
	pods := map[core.ID]string{}
	for _, sb := range sandboxes {
		pods[sb.ID] = idOf(sb)
	}
	all, err := s.o.Engine.Stored.Containers()
	if err != nil {
		return err
	}
	var only *core.Container
	if id != "" {
		if only, err = s.container(id); err != nil {
			return gone(err)
		}
	}
	for _, c := range all {
		of, ok := pods[c.Sandbox]
		if !ok || c.State == core.ContainerCreating || only != nil && c.ID != only.ID || pod != "" && pod != of || !labelled(c.Labels, selector) {
			continue
		}
		if err := gone(fn(c, of)); err != nil {
			return err
		}
	}
	return nil
}

// UpdateContainerResources implements the service.
func (s *Server) UpdateContainerResources(ctx context.Context, req *cri.UpdateContainerResourcesRequest) (*cri.UpdateContainerResourcesResponse, error) {
	c, err := s.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	r := &v1.UpdateContainerResourcesRequest{ContainerId: string(c.ID)}
	if req.GetLinux() != nil {
		r.Linux = as[*v1.LinuxContainerResources](req.GetLinux())
	}
	_, err = s.o.Runtime.UpdateContainerResources(ctx, r)
	return &cri.UpdateContainerResourcesResponse{}, err
}

// ExecSync implements the service.
func (s *Server) ExecSync(ctx context.Context, req *cri.ExecSyncRequest) (*cri.ExecSyncResponse, error) {
	c, err := s.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	r, err := s.o.Runtime.ExecSync(ctx, &v1.ExecSyncRequest{ContainerId: string(c.ID), Cmd: req.GetCmd(), Timeout: req.GetTimeout()})
	return as[*cri.ExecSyncResponse](r), err
}

// streams returns the output streams for a client that may not name them: both, and on a terminal
// stdout.
func streams(stdout, stderr, tty bool) (bool, bool) {
	if !stdout && !stderr {
		return true, !tty
	}
	return stdout, stderr
}

// Exec implements the service.
func (s *Server) Exec(ctx context.Context, req *cri.ExecRequest) (*cri.ExecResponse, error) {
	c, err := s.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	to := &v1.ExecRequest{ContainerId: string(c.ID), Cmd: req.GetCmd(), Tty: req.GetTty(), Stdin: req.GetStdin()}
	to.Stdout, to.Stderr = streams(req.GetStdout(), req.GetStderr(), req.GetTty())
	r, err := s.o.Runtime.Exec(ctx, to)
	return as[*cri.ExecResponse](r), err
}

// Attach implements the service.
func (s *Server) Attach(ctx context.Context, req *cri.AttachRequest) (*cri.AttachResponse, error) {
	c, err := s.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	to := &v1.AttachRequest{ContainerId: string(c.ID), Tty: req.GetTty(), Stdin: req.GetStdin()}
	to.Stdout, to.Stderr = streams(req.GetStdout(), req.GetStderr(), req.GetTty())
	r, err := s.o.Runtime.Attach(ctx, to)
	return as[*cri.AttachResponse](r), err
}

// ContainerStats implements the service.
func (s *Server) ContainerStats(ctx context.Context, req *cri.ContainerStatsRequest) (*cri.ContainerStatsResponse, error) {
	c, err := s.container(req.GetContainerId())
	if err != nil {
		return nil, err
	}
	st, err := s.stats(ctx, c, req.GetContainerId())
	return &cri.ContainerStatsResponse{Stats: st}, err
}

func (s *Server) stats(ctx context.Context, c *core.Container, id string) (*cri.ContainerStats, error) {
	r, err := s.o.Runtime.ContainerStats(ctx, &v1.ContainerStatsRequest{ContainerId: string(c.ID)})
	if err != nil {
		return nil, err
	}
	out := as[*cri.ContainerStats](r.GetStats())
	out.Attributes.Id, out.Attributes.Annotations = id, annotations(out.GetAttributes().GetAnnotations())
	if w := out.GetWritableLayer(); w != nil {
		w.StorageId = storage(r.GetStats().GetWritableLayer().GetFsId().GetMountpoint())
	}
	return out, nil
}

// ListContainerStats lists those that run.
func (s *Server) ListContainerStats(ctx context.Context, req *cri.ListContainerStatsRequest) (*cri.ListContainerStatsResponse, error) {
	f, out := req.GetFilter(), &cri.ListContainerStatsResponse{}
	err := s.each(f.GetId(), f.GetPodSandboxId(), f.GetLabelSelector(), func(c *core.Container, pod string) error {
		if !c.State.Live() {
			return nil
		}
		st, err := s.stats(ctx, c, "")
		if errdefs.IsFailedPrecondition(err) {
			return nil // it has ended meanwhile
		}
		if err != nil {
			return err
		}
		st.Attributes.Id = containerID(pod, as[*v1.ContainerMetadata](st.GetAttributes().GetMetadata()))
		out.Stats = append(out.Stats, st)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list container stats: %w", err)
	}
	return out, nil
}

package alpha

import (
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"

	v1 "github.com/longshore/longshore/api/cri/v1"
	cri "github.com/longshore/longshore/api/cri1alpha"
	"github.com/longshore/longshore/internal/core"
)

// RunPodSandbox returns the id of a pod that has these names already, even if the rest of the
// request differs.
func (s *Server) RunPodSandbox(ctx context.Context, req *cri.RunPodSandboxRequest) (*cri.RunPodSandboxResponse, error) {
	if err := checkSandboxNames(req.GetConfig().GetMetadata()); err != nil {
		return nil, err
	}
	cfg := podConfig(req.GetConfig())
	id := sandboxID(cfg.GetMetadata())
	unlock, err := s.names.Lock(ctx, id)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if sb, err := s.sandbox(id); err == nil && sb.State != core.SandboxCreating || err != nil && !errdefs.IsNotFound(err) {
		return &cri.RunPodSandboxResponse{PodSandboxId: id}, err
	}
	if _, err := s.o.Runtime.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: cfg}); err != nil {
		return nil, addresses(err)
	}
	return &cri.RunPodSandboxResponse{PodSandboxId: id}, nil
}

// podConfig is a pod's config in v1.
func podConfig(cfg *cri.PodSandboxConfig) *v1.PodSandboxConfig {
	out := as[*v1.PodSandboxConfig](cfg)
	o := cfg.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if o != nil {
		out.Linux.SecurityContext.NamespaceOptions = modes(o)
	}
	if o.GetHostNetwork() {
		out.Hostname = "" // clients of this API tell the node's own here
	}
	return out
}

// addresses gives the network's errors the texts that clients of this API know.
func addresses(err error) error {
	switch text := err.Error(); {
	case errdefs.IsResourceExhausted(err) && strings.Contains(text, "address range exhausted"):
		return fmt.Errorf("No unused IP addresses available: %w", err) //nolint:staticcheck // clients know this text
	case errdefs.IsFailedPrecondition(err) && strings.Contains(text, "no address range configured"):
		return fmt.Errorf("No IP address range configured: %w", err) //nolint:staticcheck // clients know this text
	}
	return err
}

// StopPodSandbox kills all containers at once.
func (s *Server) StopPodSandbox(ctx context.Context, req *cri.StopPodSandboxRequest) (*cri.StopPodSandboxResponse, error) {
	sb, err := s.sandbox(req.GetPodSandboxId())
	if err == nil {
		err = s.stop(ctx, sb)
	}
	return &cri.StopPodSandboxResponse{}, gone(err)
}

func (s *Server) stop(ctx context.Context, sb *core.Sandbox) error {
	_, err := s.o.Runtime.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: string(sb.ID)})
	if err != nil {
		return err
	}
	all, err := s.o.Engine.Stored.ContainersOf(sb.ID)
	for _, c := range all {
		s.logs.end(c)
	}
	return err
}

// RemovePodSandbox implements the service.
func (s *Server) RemovePodSandbox(ctx context.Context, req *cri.RemovePodSandboxRequest) (*cri.RemovePodSandboxResponse, error) {
	sb, err := s.sandbox(req.GetPodSandboxId())
	if err == nil {
		// End the logs while their paths are on record.
		err = s.stop(ctx, sb)
	}
	if err == nil {
		_, err = s.o.Runtime.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{PodSandboxId: string(sb.ID)})
	}
	return &cri.RemovePodSandboxResponse{}, gone(err)
}

// gone returns nil for NotFound.
func gone(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

// PodSandboxStatus implements the service.
func (s *Server) PodSandboxStatus(ctx context.Context, req *cri.PodSandboxStatusRequest) (*cri.PodSandboxStatusResponse, error) {
	sb, err := s.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	st, err := s.podStatus(ctx, sb)
	return &cri.PodSandboxStatusResponse{Status: st}, err
}

func (s *Server) podStatus(ctx context.Context, sb *core.Sandbox) (*cri.PodSandboxStatus, error) {
	r, err := s.o.Runtime.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: string(sb.ID)})
	if err != nil {
		return nil, err
	}
	out := as[*cri.PodSandboxStatus](r.GetStatus())
	out.Id = idOf(sb)
	out.Linux = &cri.LinuxPodSandboxStatus{Namespaces: &cri.Namespace{Options: booleans(r.GetStatus().GetLinux().GetNamespaces().GetOptions())}}
	return out, nil
}

// ListPodSandbox implements the service.
func (s *Server) ListPodSandbox(ctx context.Context, req *cri.ListPodSandboxRequest) (*cri.ListPodSandboxResponse, error) {
	all, err := s.o.Engine.Stored.Sandboxes()
	if err != nil {
		return nil, fmt.Errorf("list pod sandboxes: %w", err)
	}
	f, out := req.GetFilter(), &cri.ListPodSandboxResponse{}
	for _, sb := range all {
		if f.GetId() != "" && f.GetId() != idOf(sb) || !labelled(sb.Labels, f.GetLabelSelector()) {
			continue
		}
		st, err := s.podStatus(ctx, sb)
		if errdefs.IsNotFound(err) {
			continue // it was removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		if f.GetState() != nil && f.GetState().GetState() != st.GetState() {
			continue
		}
		out.Items = append(out.Items, &cri.PodSandbox{
			Id: st.GetId(), Metadata: st.GetMetadata(), State: st.GetState(), CreatedAt: st.GetCreatedAt(), Labels: st.GetLabels(), Annotations: st.GetAnnotations(),
		})
	}
	return out, nil
}

func labelled(labels, selector map[string]string) bool {
	return core.Filter{Labels: selector}.MatchLabels(labels)
}

// terminated refuses a call for a stopped sandbox.
func terminated(sb *core.Sandbox) error {
	if sb.State == core.SandboxReady {
		return nil
	}
	return fmt.Errorf("%s has already been terminated: %w", idOf(sb), errdefs.ErrFailedPrecondition)
}

// PortForward implements the service.
func (s *Server) PortForward(ctx context.Context, req *cri.PortForwardRequest) (*cri.PortForwardResponse, error) {
	sb, err := s.sandbox(req.GetPodSandboxId())
	if err != nil {
		return nil, err
	}
	r, err := s.o.Runtime.PortForward(ctx, &v1.PortForwardRequest{PodSandboxId: string(sb.ID), Port: req.GetPort()})
	return as[*cri.PortForwardResponse](r), err
}

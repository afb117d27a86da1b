package nomad

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
)

// netKey is the key of the sandbox that holds an allocation's network namespace.
// No task's id looks like it.
func netKey(alloc string) core.Key { return core.Key("network/" + alloc) }

// hostnameLabel is the label with a network's host name, which Nomad passes to each task of the
// group.
const hostnameLabel = "docker_sandbox_hostname"

// CreateNetwork implements the service: a namespace with loopback; Nomad then adds its interfaces.
// Nomad calls it on drivers with MustCreateNetwork, which we report if the plugin's configuration
// asks for it.
func (s *server) CreateNetwork(ctx context.Context, req *nomaddriver.CreateNetworkRequest) (*nomaddriver.CreateNetworkResponse, error) {
	if req.GetAllocId() == "" || strings.ContainsAny(req.GetAllocId(), "/\x00") {
		return nil, invalid.Errorf("create network: allocation %q", req.GetAllocId())
	}
	cfg := core.SandboxConfig{Key: netKey(req.GetAllocId())}
	if h := req.GetHostname(); h != "" { // which each task has in a namespace of its own
		cfg.Labels = map[string]string{hostnameLabel: h}
	}
	cfg.Namespaces.Net.Mode, cfg.Network.Name = core.Shared, core.NetworkNone
	sb, err := s.engine.CreateSandbox(ctx, cfg)
	made := err == nil
	if errdefs.IsAlreadyExists(err) && sb.State == core.SandboxReady {
		err = nil
	}
	if err != nil {
		return nil, err
	}
	spec := &nomaddriver.NetworkIsolationSpec{
		Mode: nomaddriver.NetworkIsolationSpec_GROUP, Path: sb.Config.Namespaces.Net.Path, Labels: map[string]string{"longshore_sandbox": string(sb.ID)},
	}
	if h := sb.Labels[hostnameLabel]; h != "" {
		spec.Labels[hostnameLabel] = h
	}
	return &nomaddriver.CreateNetworkResponse{IsolationSpec: spec, Created: made}, nil
}

// DestroyNetwork implements the service; it succeeds when there is none.
func (s *server) DestroyNetwork(ctx context.Context, req *nomaddriver.DestroyNetworkRequest) (*nomaddriver.DestroyNetworkResponse, error) {
	sb, err := s.engine.SandboxByKey(ctx, netKey(req.GetAllocId()))
	if err == nil {
		err = s.engine.RemoveSandbox(ctx, sb.ID, engine.RemoveOptions{Force: true, Request: asked("DestroyNetwork")})
	}
	if errdefs.IsNotFound(err) {
		err = nil
	}
	return &nomaddriver.DestroyNetworkResponse{}, err
}

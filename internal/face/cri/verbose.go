package cri

import (
	"encoding/json"
	"runtime"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/cri/inspect"
	"github.com/longshore/longshore/internal/ocispec"
)

// containerInfo returns the verbose part of a container's status; sb is its sandbox.
func containerInfo(sb *core.Sandbox, c *core.Container, r containerRecord) map[string]string {
	spec, err := ocispec.BundleSpec(c.Bundle)
	if err != nil {
		spec = nil // the container is being removed, or its creation has not finished
	}
	i := inspect.Container{Record: c, Config: r.Config, Resources: r.Found.GetResources().GetLinux(), Hostname: sb.Config.Hostname, Spec: spec}
	return i.Info()
}

// sandboxInfo returns the verbose part of a sandbox's status.
func (s *server) sandboxInfo(sb *core.Sandbox) (map[string]string, error) {
	r, err := podOf(sb)
	if err != nil {
		return nil, err
	}
	inside, err := s.engine.Stored.ContainersOf(sb.ID)
	if err != nil {
		return nil, err
	}
	return inspect.Sandbox{Record: sb, Request: r.Config, Containers: inside}.Info(), nil
}

// statusInfo returns the additional output of crictl info. The runtimes are below
// config.containerd, where containerd has them.
func statusInfo(cfg Config, n node, runtimes []engine.RuntimeInfo, network core.NetworkInfo) map[string]string {
	type options struct{ SystemdCgroup bool }
	type handler struct {
		RuntimeType string  `json:"runtimeType"`
		Options     options `json:"options"`
	}
	byHandler, first := map[string]handler{}, ""
	for _, r := range runtimes {
		byHandler[r.Name] = handler{r.Name, options{cfg.CgroupDriver == "systemd"}}
		if r.Default {
			first = r.Name
		}
	}
	for name, of := range cfg.Handlers {
		if h, ok := byHandler[of]; ok {
			byHandler[name] = h
		}
	}
	out := map[string]string{"lastCNILoadStatus": "OK"} // not JSON, as with containerd
	if !network.Ready {
		out["lastCNILoadStatus"] = network.Reason
	}
	for key, v := range map[string]any{
		"config": map[string]any{
			"version": n.semver(), "stateDir": n.stateDir, "imageRoot": n.imageRoot, "socket": cfg.Socket, "imageSocket": cfg.ImageSocket,
			"handlers": cfg.Handlers, "cgroupDriver": cfg.CgroupDriver, "sandboxCgroup": cfg.SandboxCgroup,
			"containerd": map[string]any{"defaultRuntimeName": first, "runtimes": byHandler, "snapshotter": inspect.Snapshotter},
		},
		"runtimes": runtimes,
		"network":  network,
		"golang":   runtime.Version(),
	} {
		if b, err := json.Marshal(v); err == nil {
			out[key] = string(b)
		}
	}
	return out
}

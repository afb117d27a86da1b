package cri

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/cri/listcache"
	"github.com/longshore/longshore/internal/face/cri/nri"
	"github.com/longshore/longshore/internal/face/cri/podcheckpoint"
	"github.com/longshore/longshore/internal/face/cri/secprofile"
	"github.com/longshore/longshore/internal/face/cri/stream"
	"github.com/longshore/longshore/internal/invalid"
)

// server implements both services. Each call is: find, translate, one or two verbs of the engine,
// encode. Other calls return Unimplemented.
type server struct {
	v1.UnimplementedRuntimeServiceServer
	v1.UnimplementedImageServiceServer

	engine *engine.Client
	as     variant
	nri    *nri.Host // may be nil
	cfg    Config
	log    *slog.Logger
	node   node
	stats  *statsReader
	listed struct { // the list entries of each
		sandboxes  listcache.Cache[core.Sandbox, []byte]
		containers listcache.Cache[core.Container, []byte]
	}

	background sync.WaitGroup // work that continues after an answer
	urls       urls
	// checkpoint says why this node could make no checkpoints. nil: unknown.
	checkpoint func(context.Context) error
	// checkpoints are the verbs of checkpoints. nil: the node has none.
	checkpoints core.CheckpointVerbs
	archives    podcheckpoint.Images
	// writable says why no container here can have writable cgroups. It returns nil if one can.
	writable func() error
	profiles *secprofile.Store // nil without
}

// urls hands out the addresses at which clients have their streams.
type urls interface {
	URL(req stream.Request) (string, error)
}

// node has the facts that never change while the agent runs.
type node struct{ version, imageRoot, stateDir string }

// The names this runtime answers to Version. kubeletAPI is the one version of
// kubelet's own runtime API there has ever been.
const (
	kubeletAPI  = "0.1.0"
	runtimeName = "longshore"
	runtimeAPI  = "v1"
	// develVersion stands for a build without a version: clients parse it.
	develVersion = "0.0.0-devel"
)

func (s *server) Version(context.Context, *v1.VersionRequest) (*v1.VersionResponse, error) {
	return &v1.VersionResponse{
		Version: kubeletAPI, RuntimeName: runtimeName, RuntimeVersion: s.node.semver(), RuntimeApiVersion: runtimeAPI,
	}, nil
}

// semver is the agent's version if kubelet could parse it.
func (n node) semver() string {
	v := strings.TrimPrefix(n.version, "v")
	if v == "" || v[0] < '0' || v[0] > '9' {
		return develVersion
	}
	return v
}

func (s *server) Status(ctx context.Context, req *v1.StatusRequest) (*v1.StatusResponse, error) {
	runtimes, err := s.engine.Runtimes(ctx)
	if err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	network, netErr := s.engine.Network.Info(ctx)
	problem := "no runtime is configured"
	for _, r := range runtimes {
		if r.Default {
			problem = r.Problem
		}
	}
	resp := &v1.StatusResponse{
		Status:          &v1.RuntimeStatus{Conditions: conditions(problem, network, netErr)},
		RuntimeHandlers: handlers(s.cfg, runtimes),
		Features: &v1.RuntimeFeatures{
			SupplementalGroupsPolicy: true, MountOptions: true, CgroupMountMode: s.writable() == nil, SeccompProfileOci: s.profiles != nil,
		},
	}
	for _, r := range runtimes {
		if r.Default {
			resp.Features.UserNamespacesHostNetwork = mapsUsers(r)
		}
	}
	if req.GetVerbose() {
		if netErr != nil {
			network.Ready, network.Reason = false, netErr.Error()
		}
		resp.Info = statusInfo(s.cfg, s.node, runtimes, network)
	}
	return resp, nil
}

func (s *server) RuntimeConfig(context.Context, *v1.RuntimeConfigRequest) (*v1.RuntimeConfigResponse, error) {
	driver := v1.CgroupDriver_CGROUPFS
	if s.cfg.CgroupDriver == "systemd" {
		driver = v1.CgroupDriver_SYSTEMD
	}
	return &v1.RuntimeConfigResponse{Linux: &v1.LinuxRuntimeConfiguration{CgroupDriver: driver}}, nil
}

func (s *server) UpdateRuntimeConfig(ctx context.Context, req *v1.UpdateRuntimeConfigRequest) (*v1.UpdateRuntimeConfigResponse, error) {
	cidr := req.GetRuntimeConfig().GetNetworkConfig().GetPodCidr()
	if cidr == "" {
		return &v1.UpdateRuntimeConfigResponse{}, nil
	}
	cidrs := strings.Split(cidr, ",")
	for i, c := range cidrs {
		cidrs[i] = strings.TrimSpace(c)
		if _, err := netip.ParsePrefix(cidrs[i]); err != nil {
			return nil, invalid.Errorf("pod cidr %q: %v", cidr, err)
		}
	}
	if err := s.engine.Network.SetRanges(ctx, cidrs); err != nil {
		return nil, fmt.Errorf("pod cidr %q: %w", cidr, err)
	}
	return &v1.UpdateRuntimeConfigResponse{}, nil
}

// sandbox finds a sandbox by its ID or a prefix that only it has.
func (s *server) sandbox(ctx context.Context, id string) (core.Sandbox, error) {
	sb, err := storedSandbox(s.engine, id)
	if err != nil {
		return core.Sandbox{}, err
	}
	return s.engine.Sandbox(ctx, sb.ID)
}

// container finds a container by its ID or a prefix that only it has.
func (s *server) container(ctx context.Context, id string) (core.Container, error) {
	c, err := storedContainer(s.engine, id)
	if err != nil {
		return core.Container{}, err
	}
	return s.engine.Container(ctx, c.ID)
}

// storedSandbox and storedContainer are the same for reading: callers must not change the results.
func storedSandbox(e *engine.Client, id string) (*core.Sandbox, error) {
	return stored("sandbox", id, e.Stored.Sandbox, e.Stored.Sandboxes, func(sb *core.Sandbox) core.ID { return sb.ID }, func(*core.Sandbox) bool { return true })
}

// made returns FailedPrecondition for a sandbox that is being created: it is listed, and can be
// stopped and removed.
func made(sb *core.Sandbox) error {
	if sb.State == core.SandboxCreating {
		return fmt.Errorf("sandbox %s is being created: %w", sb.ID, errdefs.ErrFailedPrecondition)
	}
	return nil
}

func storedContainer(e *engine.Client, id string) (*core.Container, error) {
	return stored("container", id, e.Stored.Container, e.Stored.Containers, func(c *core.Container) core.ID { return c.ID }, shownContainer)
}

func (s *server) asked(call string) core.StopRequest {
	return core.StopRequest{Owner: s.as.owner, Call: call, At: time.Now()}
}

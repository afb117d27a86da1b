// Package alpha serves the CRI of 2017, package runtime, for clients of those years and Scuba's:
// its ids, idempotence, log and images, and programs that get their descriptors by argdata.
//
// It translates each call into one of CRI v1 and passes it to the server of that API, with an owner
// of its own; it must not duplicate that server's work. Start reading at server.go, then names.go
// and recode.go; containers.go handles argdata.
package alpha

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"

	v1 "github.com/longshore/longshore/api/cri/v1"
	cri "github.com/longshore/longshore/api/cri1alpha"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/keylock"
	"github.com/longshore/longshore/internal/programs"
)

// apiVersion is the answer of Version; no client has ever seen another one.
const apiVersion = "v1alpha1"

// Options are the parameters of New; all are required.
type Options struct {
	Engine *engine.Client // of the owner of this API
	// Runtime and Images answer as CRI v1 for the same owner.
	Runtime  v1.RuntimeServiceServer
	Images   v1.ImageServiceServer
	Paths    *Paths
	Programs *programs.Store
	Logger   *slog.Logger
}

// Server implements both services.
type Server struct {
	cri.UnimplementedRuntimeServiceServer
	cri.UnimplementedImageServiceServer

	o     Options
	names keylock.Map[string] // of objects in creation, so that each is made once
	logs  logs
}

// New returns a server.
func New(o Options) *Server {
	return &Server{o: o, logs: logs{log: o.Logger, ended: map[core.ID]bool{}}}
}

// Register adds both services to a gRPC server.
func (s *Server) Register(to grpc.ServiceRegistrar) {
	cri.RegisterRuntimeServiceServer(to, s)
	cri.RegisterImageServiceServer(to, s)
}

// Version implements the service.
func (s *Server) Version(ctx context.Context, req *cri.VersionRequest) (*cri.VersionResponse, error) {
	r, err := s.o.Runtime.Version(ctx, as[*v1.VersionRequest](req))
	if err != nil {
		return nil, err
	}
	out := as[*cri.VersionResponse](r)
	out.RuntimeApiVersion = apiVersion
	return out, nil
}

// Status implements the service.
func (s *Server) Status(ctx context.Context, _ *cri.StatusRequest) (*cri.StatusResponse, error) {
	r, err := s.o.Runtime.Status(ctx, &v1.StatusRequest{})
	return as[*cri.StatusResponse](r), err
}

// UpdateRuntimeConfig sets the range of addresses of the node's network, which all of its pods share.
func (s *Server) UpdateRuntimeConfig(ctx context.Context, req *cri.UpdateRuntimeConfigRequest) (*cri.UpdateRuntimeConfigResponse, error) {
	n := req.GetRuntimeConfig().GetNetworkConfig()
	if n == nil {
		return &cri.UpdateRuntimeConfigResponse{}, nil
	}
	p, err := netip.ParsePrefix(n.GetPodCidr())
	if err != nil || !p.Addr().Is4() {
		return nil, invalid.Errorf("Failed to parse IP range %q", n.GetPodCidr())
	}
	_, err = s.o.Runtime.UpdateRuntimeConfig(ctx, as[*v1.UpdateRuntimeConfigRequest](req))
	if errdefs.IsInvalidArgument(err) {
		err = fmt.Errorf("Failed to parse IP range: %w", err) //nolint:staticcheck // clients know this text
	}
	return &cri.UpdateRuntimeConfigResponse{}, err
}

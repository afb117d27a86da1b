package kata

import (
	"context"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

// wireVersion is the reference's version of its protocol.
const wireVersion = "0.0.1"

type health struct{ version string }

// Check implements katav1.HealthService.
func (health) Check(context.Context, *katav1.CheckRequest) (*katav1.HealthCheckResponse, error) {
	return &katav1.HealthCheckResponse{Status: katav1.HealthCheckResponse_SERVING}, nil
}

// Version implements katav1.HealthService.
func (h health) Version(context.Context, *katav1.CheckRequest) (*katav1.VersionCheckResponse, error) {
	return &katav1.VersionCheckResponse{GrpcVersion: wireVersion, AgentVersion: h.version}, nil
}

package cri

import (
	"context"
	"fmt"
	"log/slog"
	"net"

	"github.com/containerd/errdefs"
	"k8s.io/klog/v2"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/asleep"
	"github.com/longshore/longshore/internal/face/cri/stream"
)

// BridgeKlog sends the log of Kubernetes' libraries to log.
func BridgeKlog(log *slog.Logger) { klog.SetSlogLogger(log.With(slog.String("face", Name))) }

func (s *server) Exec(ctx context.Context, req *v1.ExecRequest) (*v1.ExecResponse, error) {
	r, err := execRequest(req)
	if err != nil {
		return nil, err
	}
	if r.ID, err = joinable(ctx, s, r); err != nil {
		return nil, err
	}
	url, err := s.urls.URL(r)
	return &v1.ExecResponse{Url: url}, err
}

func (s *server) Attach(ctx context.Context, req *v1.AttachRequest) (*v1.AttachResponse, error) {
	r, err := attachRequest(req)
	if err != nil {
		return nil, err
	}
	if r.ID, err = joinable(ctx, s, r); err != nil {
		return nil, err
	}
	url, err := s.urls.URL(r)
	return &v1.AttachResponse{Url: url}, err
}

func (s *server) PortForward(ctx context.Context, req *v1.PortForwardRequest) (*v1.PortForwardResponse, error) {
	r, err := forwardRequest(req)
	if err != nil {
		return nil, err
	}
	sb, err := s.sandbox(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	if sb.State != core.SandboxReady {
		return nil, fmt.Errorf("port forward to sandbox %s: it is %s: %w", sb.ID, sb.State, errdefs.ErrFailedPrecondition)
	}
	r.ID = string(sb.ID)
	url, err := s.urls.URL(r)
	return &v1.PortForwardResponse{Url: url}, err
}

// joinable returns the ID of the container that a request means, which must run.
func joinable(ctx context.Context, s *server, r stream.Request) (string, error) {
	c, err := s.container(ctx, r.ID)
	if err != nil {
		return "", err
	}
	return string(c.ID), running(c, r.Kind)
}

func running(c core.Container, kind stream.Kind) error {
	if !c.State.Runs() && (c.State != core.ContainerPaused || kind == stream.KindExec) {
		return fmt.Errorf("%s: container %s is %s: %w", kind, c.ID, c.State, errdefs.ErrFailedPrecondition)
	}
	return nil
}

// backend is the server as that of the streams.
type backend struct{ s *server }

// Dial connects to a port of a sandbox's loopback.
func (b backend) Dial(ctx context.Context, sandbox string, port uint16) (net.Conn, error) {
	sb, err := b.s.sandbox(ctx, sandbox)
	if err != nil {
		return nil, err
	}
	ns := sb.Config.Namespaces.Net
	if sb.State != core.SandboxReady || ns.Mode != core.Host && ns.Path == "" {
		return nil, fmt.Errorf("sandbox %s is %s: %w", sb.ID, sb.State, errdefs.ErrFailedPrecondition)
	}
	if err := b.s.engine.Rests.WakeSandbox(ctx, sb.ID, asleep.ByForward); err != nil {
		return nil, err
	}
	var conn net.Conn
	op := core.Operation{Verb: core.VerbForward, Sandbox: &sb, Detail: fmt.Sprintf("port %d", port)}
	err = engine.Around(ctx, b.s.engine, op, func() error {
		conn, err = dialLoopback(ctx, ns.Path, port)
		return err
	})
	return conn, err
}

package cri

import (
	"context"
	"log/slog"

	"github.com/opencontainers/runtime-spec/specs-go"
	v1 "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/cri/nri"
)

// NewNRI makes the host of this face's NRI plugins, which is the cri owner's
// adjuster too; nil when the config has no socket for it. cdi adds devices to a
// spec.
func NewNRI(cfg Config, log *slog.Logger, version string, cdi func(*specs.Spec, []string) error) (*nri.Host, error) {
	if cfg.NRISocket == "" {
		return nil, nil //nolint:nilnil // a nil host has no plugins
	}
	return nri.New(nri.Options{
		Socket: cfg.NRISocket, Logger: log.With(slog.String("face", Name)), Version: version, CDI: cdi,
		Pod: func(sb core.Sandbox) (*v1.RunPodSandboxRequest, error) {
			r, err := podOf(sb)
			return r.Config, err
		},
		Container: func(c core.Container) (*v1.ContainerConfig, error) {
			r, err := containerOf(c)
			return r.Config, err
		},
	})
}

// stopFirst ends what runs in a sandbox, or one container, and has the plugins
// told, before what they were told of goes. Without plugins the verb that
// follows does it all.
func (s *server) stopFirst(ctx context.Context, call string, containers ...core.Container) error {
	if !s.nri.Listening() {
		return nil
	}
	for _, c := range containers {
		if c.State == core.ContainerRunning || c.State == core.ContainerPaused {
			if err := s.engine.StopContainer(ctx, c.ID, engine.StopOptions{Grace: noGrace(), Asked: asked(call)}); gone(err) != nil {
				return err
			}
		}
		s.tellStopped(ctx, c.ID)
	}
	return nil
}

// tellStopped tells the plugins of an end that is on record.
func (s *server) tellStopped(ctx context.Context, id core.ID) {
	if !s.nri.Listening() {
		return
	}
	if c, err := s.engine.Container(ctx, id); err == nil {
		s.nri.Stopped(ctx, c)
	}
}

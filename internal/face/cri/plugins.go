package cri

import (
	"log/slog"

	"github.com/opencontainers/runtime-spec/specs-go"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/nri"
)

// NewNRI makes the host of this face's NRI plugins, which is the cri owner's
// policy; nil when the config has no socket for it. cdi adds devices to a spec.
func NewNRI(cfg Config, log *slog.Logger, version string, cdi func(*specs.Spec, []string) error) (*nri.Host, error) {
	if cfg.NRISocket == "" {
		return nil, nil //nolint:nilnil // a nil host has no plugins
	}
	return nri.New(nri.Options{
		Socket: cfg.NRISocket, Logger: log.With(slog.String("face", Name)), Version: version, CDI: cdi,
		Pod: func(sb core.Sandbox) (*v1.RunPodSandboxRequest, error) {
			r, err := podOf(&sb)
			return r.Config, err
		},
		Container: func(c core.Container) (*v1.ContainerConfig, error) {
			r, err := containerOf(&c)
			return r.Config, err
		},
	})
}

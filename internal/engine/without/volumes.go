package without

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Volumes implements core.Volumes on a machine without named volumes. Containers there mount
// directories.
type Volumes struct{}

var _ core.Volumes = Volumes{}

// Create returns NotImplemented.
func (Volumes) Create(_ context.Context, _ core.Owner, cfg core.VolumeConfig) (core.Volume, error) {
	return core.Volume{}, fmt.Errorf("create volume %s: this node has no named volumes: give the container a directory to mount: %w", cfg.Name, errdefs.ErrNotImplemented)
}

// Get returns NotFound.
func (Volumes) Get(_ context.Context, _ core.Owner, name string) (core.Volume, error) {
	return core.Volume{}, noVolume(name)
}

// List returns none.
func (Volumes) List(context.Context, core.Owner) ([]core.Volume, error) { return nil, nil }

// Remove returns NotFound.
func (Volumes) Remove(_ context.Context, _ core.Owner, name string) error { return noVolume(name) }

// Filled returns NotFound.
func (Volumes) Filled(_ context.Context, _ core.Owner, name string) error { return noVolume(name) }

// Source returns NotFound.
func (Volumes) Source(_ context.Context, _ core.Owner, name string) (core.Mount, error) {
	return core.Mount{}, noVolume(name)
}

func noVolume(name string) error {
	return fmt.Errorf("volume %s: this node has no named volumes: %w", name, errdefs.ErrNotFound)
}

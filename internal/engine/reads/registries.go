package reads

import (
	"context"

	"github.com/longshore/longshore/internal/core"
)

// Registries sends an owner's images to registries. It changes nothing here.
type Registries struct {
	Images core.Images
	Owner  core.Owner
}

// Push stores an image in a registry.
func (r Registries) Push(ctx context.Context, ref string, opts core.PushOptions) error {
	return r.Images.Push(ctx, r.Owner, ref, opts)
}

// Login asks a registry whether it takes credentials. Nothing is stored.
func (r Registries) Login(ctx context.Context, host string, opts core.PushOptions) error {
	return r.Images.Login(ctx, host, opts)
}

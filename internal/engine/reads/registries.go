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

// Roots compares containers' roots with the images that they were made of.
type Roots struct {
	Images core.Images
}

// Changes is core.Images.Changes.
func (r Roots) Changes(ctx context.Context, container core.ID, use core.RootUse, fn func(core.FileChange) error) error {
	return r.Images.Changes(ctx, container, use, fn)
}

// Push stores an image in a registry.
func (r Registries) Push(ctx context.Context, ref string, opts core.PushOptions) error {
	return r.Images.Push(ctx, r.Owner, ref, opts)
}

// Login asks a registry whether it takes credentials. Nothing is stored.
func (r Registries) Login(ctx context.Context, host string, opts core.PushOptions) error {
	return r.Images.Login(ctx, host, opts)
}

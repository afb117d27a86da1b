package reads

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Registries sends an owner's images to registries. It changes nothing here.
type Registries struct {
	Images core.Images
	Owner  core.Owner
}

// Roots compares containers' roots with the images that they were made of, and makes images of both.
type Roots struct {
	Images core.Images
	Owner  core.Owner // "" makes no image
	// Tell appends an event to the log.
	Tell func(core.Event) error
}

// Commit makes an image of a container's root.
func (r Roots) Commit(ctx context.Context, req core.CommitRequest) (core.Image, error) {
	if r.Owner == "" {
		return core.Image{}, fmt.Errorf("make image: the unscoped view has no owner: %w", errdefs.ErrInvalidArgument)
	}
	img, err := r.Images.Commit(ctx, r.Owner, req)
	if err != nil {
		return core.Image{}, err
	}
	return img, r.Tell(core.Event{Kind: core.EventImagePulled, Owner: r.Owner, Key: core.Key(img.ID), Note: string(img.ID)})
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

package reads

import (
	"context"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
)

// Registries sends an owner's images to registries. It changes nothing here.
type Registries struct {
	Images core.Images
	Scope  scope.Scope
}

// Roots compares containers' roots with the images that they were made of, and makes images of both.
type Roots struct {
	Images core.Images
	Scope  scope.Scope
}

// Commit makes an image of a container's root.
func (r Roots) Commit(ctx context.Context, req core.CommitRequest) (core.Image, error) {
	owner, err := r.Scope.Creates("make image")
	if err != nil {
		return core.Image{}, err
	}
	img, err := r.Images.Commit(ctx, owner, req)
	if err != nil {
		return core.Image{}, err
	}
	return img, r.Scope.Tell(core.Event{Kind: core.EventImagePulled, Owner: owner, Key: core.Key(img.ID), Note: string(img.ID)})
}

// Changes is core.Images.Changes.
func (r Roots) Changes(ctx context.Context, container core.ID, use core.RootUse, fn func(core.FileChange) error) error {
	return r.Images.Changes(ctx, container, use, fn)
}

// Push stores an image in a registry.
func (r Registries) Push(ctx context.Context, ref string, opts core.PushOptions) error {
	return r.Images.Push(ctx, r.Scope.Owner, ref, opts)
}

// Login asks a registry whether it takes credentials. Nothing is stored.
func (r Registries) Login(ctx context.Context, host string, opts core.PushOptions) error {
	return r.Images.Login(ctx, host, opts)
}

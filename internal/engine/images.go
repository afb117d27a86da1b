package engine

import (
	"context"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/lease"
)

// Images are the images with a name of the owner. The unscoped view lists all owners' images and
// changes none.
type Images struct{ by view }

// Pull fetches an image. An image that is in the store is fetched only with opts.Always.
func (i Images) Pull(ctx context.Context, ref string, opts core.PullOptions) (core.Image, error) {
	owner, err := i.by.Creates("pull image")
	if err != nil {
		return core.Image{}, err
	}
	pl := i.by.e.pipeline(ctx, owner, "pull")
	if err := pl.Pass("begin"); err != nil {
		return core.Image{}, err
	}
	pull := i.by.e.pulls.Watch(owner, ref, &opts)
	defer pull.Leave()
	img, err := i.by.e.o.Images.Pull(ctx, owner, ref, opts)
	if err != nil {
		return core.Image{}, err
	}
	pull.End(img.ID)
	if err := pl.Pass("pulled"); err != nil {
		return core.Image{}, err
	}
	if err := i.by.e.records.Tell(core.Event{Kind: core.EventImagePulled, Owner: owner, Key: core.Key(ref), Note: string(img.ID)}); err != nil {
		return core.Image{}, err
	}
	return img, pl.Pass("recorded")
}

// Underway returns the pulls that have not ended, and a channel that is closed when a pull begins or ends after that.
func (i Images) Underway() ([]core.PullUnderway, <-chan struct{}) {
	return i.by.e.pulls.Underway(i.by.Owner)
}

// Get returns one image; core.Images.Get describes the forms of ref.
func (i Images) Get(ctx context.Context, ref string) (core.Image, error) {
	return i.by.e.o.Images.Get(ctx, i.by.Owner, ref)
}

// List returns the owner's images; the unscoped view's are all owners'.
func (i Images) List(ctx context.Context) ([]core.Image, error) {
	return i.by.e.o.Images.List(ctx, i.by.Owner)
}

// Tag gives an image a further name, or without a target keeps it when its names go.
func (i Images) Tag(ctx context.Context, source, target string) error {
	owner, err := i.by.Creates("tag image")
	if err != nil {
		return err
	}
	return i.by.e.o.Images.Tag(ctx, owner, source, target)
}

// Remove removes a name, or all of this owner's names when ref is an ID. It succeeds when there
// is none.
func (i Images) Remove(ctx context.Context, ref string) error {
	owner, err := i.by.Creates("remove image")
	if err != nil {
		return err
	}
	if err := i.by.e.o.Images.Remove(ctx, owner, ref); err != nil {
		if errdefs.IsNotFound(err) {
			return nil
		}
		return err
	}
	return i.by.e.records.Tell(core.Event{Kind: core.EventImageRemoved, Owner: owner, Key: core.Key(ref)})
}

// Added records that the owner got images by an import or a commit.
func (i Images) Added(imgs ...core.Image) error {
	owner, err := i.by.Creates("add images")
	if err != nil {
		return err
	}
	for _, img := range imgs {
		ev := core.Event{Kind: core.EventImagePulled, Owner: owner, Key: core.Key(img.ID), Note: string(img.ID)}
		if len(img.Names) > 0 {
			ev.Key = core.Key(img.Names[0])
		}
		if err := i.by.e.records.Tell(ev); err != nil {
			return err
		}
	}
	return nil
}

// Prune removes the owner's images if keep returns false for them, then collects garbage. Images of
// containers and images held by a lease are always kept.
func (i Images) Prune(ctx context.Context, keep func(core.Image) bool) (uint64, error) {
	owner, err := i.by.Creates("prune images")
	if err != nil {
		return 0, err
	}
	return i.by.e.leases.Prune(owner, func(holds func(digest.Digest) bool) (uint64, error) {
		return i.prune(ctx, owner, func(img core.Image) bool { return holds(img.ID) || keep != nil && keep(img) })
	})
}

// Lease returns a lease: an image that is found through it is not pruned until the lease is
// released. A caller that creates containers takes one before it looks up the images, and
// releases it when the containers exist.
func (i Images) Lease() *lease.Lease {
	return i.by.e.leases.Open(i.by.Owner, lease.Ports{Image: i.Get, Pull: i.Pull})
}

// Leased reports whether the owner has leases that have not been released.
func (i Images) Leased() bool { return i.by.e.leases.Leased(i.by.Owner) }

// prune implements Prune, while no lease can get another image.
func (i Images) prune(ctx context.Context, owner core.Owner, keep func(core.Image) bool) (uint64, error) {
	used := map[string]bool{}
	err := i.by.e.o.Store.View(func(tx core.Tx) error {
		for c, err := range tx.Containers().All(owner) {
			if err != nil {
				return err
			}
			used[string(c.Image)] = true
			for _, m := range c.Config.Images {
				used[string(m.Image)] = true
			}
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return i.by.e.o.Images.Prune(ctx, owner, func(img core.Image) bool { return used[string(img.ID)] || keep(img) })
}

// Usage returns the disk usage of the image store.
func (i Images) Usage(ctx context.Context) (core.ImageUsage, error) {
	return i.by.e.o.Images.Usage(ctx)
}

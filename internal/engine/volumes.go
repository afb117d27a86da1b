package engine

import (
	"context"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/volumes"
)

// Volumes are the named volumes of the engine's owner.
type Volumes struct{ by view }

// Create creates a volume; AlreadyExists when the name is in use, FailedPrecondition when the
// volume of that name has other options.
func (v Volumes) Create(ctx context.Context, cfg core.VolumeConfig) (core.Volume, error) {
	owner, err := v.by.Creates("create volume")
	if err != nil {
		return core.Volume{}, err
	}
	vol, err := v.by.e.o.Volumes.Create(ctx, owner, cfg)
	return v.by.e.volumes.Shown(vol), err
}

// List returns the owner's volumes.
func (v Volumes) List(ctx context.Context) ([]core.Volume, error) {
	list, err := v.by.e.o.Volumes.List(ctx, v.by.Owner)
	for i := range list {
		list[i] = v.by.e.volumes.Shown(list[i])
	}
	return list, err
}

// Remove removes a volume that no container uses. It succeeds when the volume is gone.
func (v Volumes) Remove(ctx context.Context, name string) error {
	owner, err := v.by.Creates("remove volume")
	if err != nil {
		return err
	}
	return v.by.e.volumes.Remove(ctx, volumes.Name{Owner: owner, Name: name})
}

// Unused returns the anonymous volumes that no container has.
func (v Volumes) Unused(ctx context.Context) ([]core.Volume, error) {
	return v.by.e.volumes.Unused(ctx, v.by.Owner)
}

// Prune removes the volumes that no container uses, of those that fit, and returns them.
func (v Volumes) Prune(ctx context.Context, fits func(core.Volume) bool) ([]core.Volume, error) {
	owner, err := v.by.Creates("prune volumes")
	if err != nil {
		return nil, err
	}
	all, err := v.by.e.o.Volumes.List(ctx, owner)
	if err != nil {
		return nil, err
	}
	used, err := v.by.e.records.volumesInUse(owner)
	if err != nil {
		return nil, err
	}
	var gone []core.Volume
	for _, vol := range all {
		if used[vol.Name] || vol.Damaged != "" || !fits(vol) { // a damaged one may still be brought back
			continue
		}
		err := v.by.e.volumes.Remove(ctx, volumes.Name{Owner: owner, Name: vol.Name})
		switch {
		case err == nil:
			gone = append(gone, v.by.e.volumes.Shown(vol))
		case !errdefs.IsFailedPrecondition(err): // a container has come to use it
			return gone, err
		}
	}
	return gone, nil
}

// volumesInUse returns the owner's volumes that containers name.
func (r records) volumesInUse(owner core.Owner) (map[string]bool, error) {
	used := map[string]bool{}
	err := r.Store.View(func(tx core.Tx) error {
		for c, err := range tx.Containers().All(owner) {
			if err != nil {
				return err
			}
			for _, v := range c.Config.Volumes {
				used[v.Name] = true
			}
		}
		return nil
	})
	return used, err
}

// imageVolumes returns the ports that image volumes use.
func (e *Engine) imageVolumes() volumes.Images {
	return volumes.Images{Images: e.o.Images, Roots: e.o.Roots}
}

// mountImages mounts the images that the container asks for.
func (b *build) mountImages(ctx context.Context) (err error) {
	if len(b.cfg.Images) == 0 {
		return nil
	}
	b.pipeline.Undo.Add("images", func(ctx context.Context) error { return b.e.imageVolumes().Release(ctx, &b.c) })
	b.images, err = b.e.imageVolumes().Mount(ctx, &b.c, ranges(b.sb.Config.UIDs), ranges(b.sb.Config.GIDs))
	return err
}

// takeVolumes creates the volumes that are missing, fills or mounts them, and collects the mounts.
func (b *build) takeVolumes(ctx context.Context) error {
	for _, v := range b.cfg.Volumes {
		m, err := b.e.volumes.Take(ctx, volumes.Use{Owner: b.c.Owner, Mount: v, From: b.fs, UIDs: b.sb.Config.UIDs, GIDs: b.sb.Config.GIDs})
		if err != nil {
			return err
		}
		b.volumes = append(b.volumes, m)
	}
	return nil
}

// withoutOptions returns the uses as they are stored with a container: the options of volumes may
// have passwords, and are stored with the volumes alone.
func withoutOptions(uses []core.VolumeMount) []core.VolumeMount {
	uses = slices.Clone(uses)
	for i := range uses {
		uses[i].Options = nil
	}
	return uses
}

package engine

import (
	"context"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
)

// Volumes are the named volumes of the engine's owner.
type Volumes struct{ view }

// Create makes a volume; AlreadyExists when there is one of the name.
func (v Volumes) Create(ctx context.Context, name string, labels map[string]string) (core.Volume, error) {
	owner, err := v.owns("create volume")
	if err != nil {
		return core.Volume{}, err
	}
	return v.e.o.Volumes.Create(ctx, owner, name, labels)
}

// List lists the owner's volumes.
func (v Volumes) List(ctx context.Context) ([]core.Volume, error) {
	return v.e.o.Volumes.List(ctx, v.owner)
}

// Remove removes a volume that no container uses; success when it is gone.
func (v Volumes) Remove(ctx context.Context, name string) error {
	owner, err := v.owns("remove volume")
	if err != nil {
		return err
	}
	used, err := v.e.records.volumesInUse(owner)
	if err != nil {
		return err
	}
	if used[name] {
		return fmt.Errorf("remove volume %s: a container uses it: %w", name, errdefs.ErrFailedPrecondition)
	}
	if err := v.e.o.Volumes.Remove(ctx, owner, name); err != nil && !errdefs.IsNotFound(err) {
		return err
	}
	return nil
}

// Prune removes the volumes that no container uses and returns them.
func (v Volumes) Prune(ctx context.Context) ([]core.Volume, error) {
	owner, err := v.owns("prune volumes")
	if err != nil {
		return nil, err
	}
	all, err := v.e.o.Volumes.List(ctx, owner)
	if err != nil {
		return nil, err
	}
	used, err := v.e.records.volumesInUse(owner)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(vol core.Volume) bool { return used[vol.Name] })
	for i, vol := range all {
		if err := v.e.o.Volumes.Remove(ctx, owner, vol.Name); err != nil && !errdefs.IsNotFound(err) {
			return all[:i], err
		}
	}
	return all, nil
}

func (r records) volumesInUse(owner core.Owner) (map[string]bool, error) {
	used := map[string]bool{}
	err := r.store.View(func(tx core.Tx) error {
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

// imageVolumes are the ports of image volumes.
func (e *Engine) imageVolumes() imageVolumes {
	return imageVolumes{images: e.o.Images, roots: e.o.Roots}
}

// mountImages shows the container the images it asked to see.
func (b *build) mountImages(ctx context.Context) (err error) {
	if len(b.cfg.Images) == 0 {
		return nil
	}
	b.pipeline.undo.add("images", func(ctx context.Context) error { return b.e.imageVolumes().release(ctx, &b.c) })
	b.images, err = b.e.imageVolumes().mount(ctx, &b.c, ranges(b.sb.Config.UIDs), ranges(b.sb.Config.GIDs))
	return err
}

// fillVolumes makes the volumes that are missing, fills new ones from the
// image's content, and notes the mounts.
func (b *build) fillVolumes(ctx context.Context) error {
	for _, v := range b.cfg.Volumes {
		vol, err := b.e.o.Volumes.Get(ctx, b.c.Owner, v.Name)
		if errdefs.IsNotFound(err) {
			vol, err = b.e.o.Volumes.Create(ctx, b.c.Owner, v.Name, nil)
			if errdefs.IsAlreadyExists(err) {
				vol, err = b.e.o.Volumes.Get(ctx, b.c.Owner, v.Name)
			}
		}
		if err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
		if !vol.Filled && !v.NoCopy {
			if err := fillDir(b.fs, v.Target, vol.Path, fillOwners{UIDs: b.sb.Config.UIDs, GIDs: b.sb.Config.GIDs}); err != nil {
				return fmt.Errorf("fill volume %s: %w", v.Name, err)
			}
			if err := b.e.o.Volumes.Filled(ctx, b.c.Owner, v.Name); err != nil {
				return fmt.Errorf("volume %s: %w", v.Name, err)
			}
		}
		mode := "rw"
		if v.ReadOnly {
			mode = "ro"
		}
		b.volumes = append(b.volumes, specs.Mount{
			Destination: v.Target, Type: "bind", Source: vol.Path, Options: []string{"rbind", "rprivate", mode}, UIDMappings: b.sb.Config.UIDs, GIDMappings: b.sb.Config.GIDs,
		})
	}
	return nil
}

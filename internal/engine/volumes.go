package engine

import (
	"context"
	"path/filepath"
	"slices"
	"strings"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/volumes"
)

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
	b.images, err = b.e.imageVolumes().Mount(ctx, &b.c, owned.Ranges(b.sb.Config.UIDs), owned.Ranges(b.sb.Config.GIDs))
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
		b.relabel = append(b.relabel, core.Relabel{Path: strings.TrimSuffix(m.Source, filepath.Join("/", v.SubPath)), Private: v.Private})
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

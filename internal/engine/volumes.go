package engine

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/engine/fill"
	"github.com/longshore/longshore/internal/engine/imagevol"
)

// imageVolumes are the ports of image volumes.
func (e *Engine) imageVolumes() imagevol.Ports {
	return imagevol.Ports{Images: e.o.Images, Roots: e.o.Roots}
}

// mountImages shows the container the images it asked to see.
func (b *build) mountImages(ctx context.Context) (err error) {
	if len(b.cfg.Images) == 0 {
		return nil
	}
	b.line.undo.Add("images", func(ctx context.Context) error { return b.e.imageVolumes().Release(ctx, &b.c) })
	b.images, err = b.e.imageVolumes().Mount(ctx, &b.c, ranges(b.sb.Config.UIDs), ranges(b.sb.Config.GIDs))
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
			if err := fill.Dir(b.fs, v.Target, vol.Path, fill.Owners{UIDs: b.sb.Config.UIDs, GIDs: b.sb.Config.GIDs}); err != nil {
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

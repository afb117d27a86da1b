package pull

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/lease"
	"github.com/longshore/longshore/internal/face/nomad/translate"
	"github.com/longshore/longshore/internal/invalid"
)

// loads is how often an image is loaded that is removed before it is held.
const loads = 3

// load imports the image from an archive in the task's directory local, the place of artifacts. The
// archive is the job's: it is opened through no link, read by the confined worker, and the image is
// for this task alone, without the archive's names.
func (im *Images) load(ctx context.Context, from *lease.Lease, t translate.Task) (img core.Image, err error) {
	ctx, cancel, _ := bounded(ctx, t)
	defer cancel()
	im.events.Tell(t.Session.Name, t.Nomad, "Loading image", map[string]string{"image": t.Conf.Image, "archive": t.Conf.Load})
	for range loads {
		if img, err = im.read(ctx, t); err != nil {
			break
		}
		if _, err = from.Image(ctx, string(img.ID)); !errdefs.IsNotFound(err) {
			break
		}
	}
	if err != nil && ctx.Err() != nil {
		return img, fmt.Errorf("%w: %w", context.Cause(ctx), errdefs.ErrUnavailable)
	}
	return img, err
}

func (im *Images) read(ctx context.Context, t translate.Task) (core.Image, error) {
	// One that is no file must neither keep us waiting nor be read for ever.
	f, err := beneath.Open(t.Nomad.GetAllocDir(), filepath.Join(t.Nomad.GetName(), "local", t.Conf.Load), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return core.Image{}, invalid.Errorf("%v", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return core.Image{}, err
	}
	if !info.Mode().IsRegular() {
		return core.Image{}, invalid.Errorf("it is not a file")
	}
	imgs, err := im.archives.Import(ctx, core.OwnerNomad, io.LimitReader(f, info.Size()), core.ImportOptions{Only: t.Conf.Image})
	if err == nil {
		err = im.engine.Images.Added(imgs...)
	}
	if err != nil {
		return core.Image{}, err
	}
	return imgs[0], nil
}

package swarm

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/lease"
	"github.com/longshore/longshore/internal/face/swarm/translate"
	"github.com/longshore/longshore/internal/face/sweep"
)

// images finds the images of tasks, and removes unused ones.
type images struct {
	engine *engine.Client
	tasks  func() []*swarmv1.Task // the node's
	unused *sweep.Images
	delay  time.Duration // from the end of an image's last task to its removal
}

func newImages(e *engine.Client, log *slog.Logger, delay time.Duration, tasks func() []*swarmv1.Task) *images {
	im := &images{engine: e, tasks: tasks, delay: delay}
	im.unused = sweep.New(sweep.Options{Engine: e, Logger: log, Keep: im.named})
	return im
}

// run removes the images that no task uses any more, until ctx ends; first those that an
// earlier agent has left.
func (im *images) run(ctx context.Context) error {
	im.unused.All(ctx, im.delay)
	return im.unused.Run(ctx)
}

// get returns the image for a task's next run, held by a lease. A digest names one image only; a
// tag is resolved each time.
func (im *images) get(ctx context.Context, from *lease.Lease, t translate.Task) (img core.Image, err error) {
	name, opts, err := t.Image()
	if err != nil {
		return img, err
	}
	exact := strings.Contains(name, "@")
	if exact {
		if img, err = from.Image(ctx, name); err == nil {
			return img, nil
		}
	}
	opts.Always = true
	img, pulled := from.Pull(ctx, name, opts)
	if pulled == nil {
		return img, nil
	}
	if img, err = from.Image(ctx, name); err != nil {
		return img, fmt.Errorf("image %s: %w", name, pulled)
	}
	return img, nil
}

// again returns the image of a task's last container, or, if that is gone, the stored one of
// the task's name. A missing one is pulled if the assignments have brought its registry's
// credentials; else the error is errWaits.
func (im *images) again(ctx context.Context, from *lease.Lease, t translate.Task, last core.Container, credentials bool) (core.Image, error) {
	if last.Image != "" {
		if img, err := from.Image(ctx, string(last.Image)); err == nil {
			return img, nil
		}
	}
	name, opts, err := t.Image()
	if err != nil {
		return core.Image{}, err
	}
	img, err := from.Image(ctx, name)
	if !errdefs.IsNotFound(err) {
		return img, err
	}
	if !credentials {
		return img, errWaits
	}
	return from.Pull(ctx, name, opts)
}

// released says that a task is gone, with its container, if it had one. name is the image
// that the task named, "" when that is not known.
func (im *images) released(ctx context.Context, c core.Container, name string) {
	im.unused.Released(c, im.delay)
	// The stored image of that name, if the pull failed or was not needed.
	if id, err := im.find(ctx, name); err == nil {
		im.unused.Unused(id, im.delay)
	}
}

// named keeps the images that tasks of the node name, also those without a container: they may be
// started again.
func (im *images) named(ctx context.Context) (func(core.Image) bool, error) {
	names := map[string]bool{}
	for _, t := range im.tasks() {
		names[t.GetSpec().GetContainer().GetImage()] = true
	}
	keep := map[digest.Digest]bool{}
	for name := range names {
		id, err := im.find(ctx, name)
		if err != nil {
			return nil, err
		}
		keep[id] = true
	}
	return func(img core.Image) bool { return keep[img.ID] }, nil
}

// find is the image here of a name; "" when there is none, or when nothing can have the name.
func (im *images) find(ctx context.Context, name string) (digest.Digest, error) {
	if name == "" {
		return "", nil
	}
	img, err := im.engine.Images.Get(ctx, name)
	if errdefs.IsNotFound(err) || errdefs.IsInvalidArgument(err) {
		return "", nil
	}
	return img.ID, err
}

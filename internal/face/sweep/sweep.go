// Package sweep removes the images of an owner that no container has used for a while.
//
// A face says when a container has let go of its images, and Run removes them when their
// time has come, unless something uses them again. It must not know how images are
// stored, nor any protocol. Start at Images.
package sweep

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
)

// Options are what New needs. Engine and Logger are required.
type Options struct {
	Engine *engine.Client // its owner's images are swept
	Logger *slog.Logger
	// Keep returns what else keeps images, each time when some are about to be removed;
	// nil is nothing. Images of containers and those that a lease holds are always kept.
	// An image that Keep has kept is removed after it was said to be unused again.
	Keep func(ctx context.Context) (func(core.Image) bool, error)
}

// Images are those of one owner that nothing uses.
type Images struct {
	o    Options
	wake chan struct{}

	mu  sync.Mutex                  // guards due
	due map[digest.Digest]time.Time // when those that nothing uses are removed
}

// New returns what knows of no images yet; Run removes them.
func New(o Options) *Images {
	return &Images{o: o, due: map[digest.Digest]time.Time{}, wake: make(chan struct{}, 1)}
}

// All says of all images of the owner that nothing may use them: an earlier agent may have
// left some. Those that are in use stay.
func (im *Images) All(ctx context.Context, delay time.Duration) {
	if delay < 0 {
		return
	}
	all, err := im.o.Engine.Images.List(ctx)
	if err != nil {
		im.o.Logger.WarnContext(ctx, "could not list unused images", "error", err)
		return
	}
	for _, img := range all {
		im.Unused(img.ID, delay)
	}
}

// Released says that a container has let go of its images.
func (im *Images) Released(c core.Container, delay time.Duration) {
	im.Unused(c.Image, delay)
	for _, m := range c.Config.Images {
		im.Unused(m.Image, delay)
	}
}

// Unused says that something has let go of an image: it is removed after the delay, unless
// something else uses it then. A negative delay is for ever.
func (im *Images) Unused(id digest.Digest, delay time.Duration) {
	if id == "" || delay < 0 {
		return
	}
	im.mu.Lock()
	im.due[id] = time.Now().Add(delay)
	im.mu.Unlock()
	select {
	case im.wake <- struct{}{}:
	default:
	}
}

// idle is how long Run sleeps when nothing is due.
const idle = time.Hour

// Run removes images when their time has come, until ctx ends.
func (im *Images) Run(ctx context.Context) error {
	for {
		wait := idle
		if next, ok := im.next(); ok { // one in the past is at once
			wait = time.Until(next)
		}
		timer := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-im.wake:
			timer.Stop()
		case <-timer.C:
			if err := im.prune(ctx); err != nil && ctx.Err() == nil {
				im.o.Logger.WarnContext(ctx, "could not remove unused images", "error", err)
			}
		}
	}
}

// next is when the first of the images is due; false when none is.
func (im *Images) next() (first time.Time, ok bool) {
	im.mu.Lock()
	defer im.mu.Unlock()
	for _, at := range im.due {
		if !ok || at.Before(first) {
			first, ok = at, true
		}
	}
	return first, ok
}

// prune removes what is due. The engine keeps what a container uses, or the start of one
// that is under way.
func (im *Images) prune(ctx context.Context) error {
	due := im.take(time.Now())
	if len(due) == 0 {
		return nil
	}
	keep := func(core.Image) bool { return false }
	if im.o.Keep != nil {
		var err error
		if keep, err = im.o.Keep(ctx); err != nil {
			return err
		}
	}
	_, err := im.o.Engine.Images.Prune(ctx, func(img core.Image) bool { return !due[img.ID] || keep(img) })
	return err
}

// take returns the images that are due, and forgets them.
func (im *Images) take(now time.Time) map[digest.Digest]bool {
	im.mu.Lock()
	defer im.mu.Unlock()
	due := map[digest.Digest]bool{}
	for id, at := range im.due {
		if !at.After(now) {
			delete(im.due, id)
			due[id] = true
		}
	}
	return due
}

// Package pull gets the images of tasks, and lets go of those that no task uses
// any more.
//
// It must not know how they are stored. Start at Images.
package pull

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/lease"
	"github.com/longshore/longshore/internal/face/nomad/events"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/face/nomad/translate"
	"github.com/longshore/longshore/internal/face/sweep"
)

// Images are those of Nomad's tasks.
type Images struct {
	engine   *engine.Client
	archives Archives
	events   *events.Feed
	log      *slog.Logger

	registry string // see Options
	helpers  helpers
	unused   *sweep.Images
	swept    sync.Once
}

// Archives reads archives of images into the store: the part of core.ImageTransfers that tasks need.
type Archives interface {
	Import(ctx context.Context, owner core.Owner, archive io.Reader, opts core.ImportOptions) ([]core.Image, error)
}

// Options are the settings of the agent's configuration, and the store's reader of archives.
type Options struct {
	Archives Archives
	// Registry is the default registry of image names; "" is docker.io.
	Registry string
	// Helpers are the allowed programs for credentials: see HelperName.
	Helpers []string
}

// New returns empty Images; Run releases unused ones.
func New(e *engine.Client, feed *events.Feed, log *slog.Logger, o Options) *Images {
	return &Images{
		engine: e, archives: o.Archives, events: feed, log: log, registry: cmp.Or(o.Registry, dockerHub), helpers: newHelpers(o.Helpers, log),
		unused: sweep.New(sweep.Options{Engine: e, Logger: log}),
	}
}

// For returns the images that a task asks for, which it pulls as the task says.
// They stay at least until release, when the task's container holds them.
func (im *Images) For(ctx context.Context, t translate.Task) (found translate.Images, release func(), err error) {
	from := im.engine.Images.Lease()
	get := func(name, policy string) (core.Image, error) {
		img, err := im.get(ctx, from, t, name, policy)
		if err != nil {
			return img, fmt.Errorf("image %s: %w", name, err)
		}
		return img, nil
	}
	switch {
	case t.Conf.Load != "":
		if found.Root, err = im.load(ctx, from, t); err != nil {
			err = fmt.Errorf("config.load %s: %w", t.Conf.Load, err)
		}
	case t.Conf.Image != "":
		found.Root, err = get(t.Conf.Image, t.Conf.Pull)
	}
	for _, m := range t.Conf.Mounts {
		if err != nil || m.Type != "image" {
			continue
		}
		var img core.Image
		if img, err = get(m.Source, m.Pull); err == nil {
			found.Mounts = append(found.Mounts, img)
		}
	}
	if err != nil {
		from.Release()
		return found, nil, err
	}
	return found, from.Release, nil
}

func (im *Images) get(ctx context.Context, from *lease.Lease, t translate.Task, name, policy string) (img core.Image, err error) {
	if policy == "always" {
		return im.pull(ctx, from, t, name, true)
	}
	img, err = from.Image(ctx, name)
	if errdefs.IsNotFound(err) && policy != "never" {
		return im.pull(ctx, from, t, name, false)
	}
	return img, err
}

const dockerHub = "docker.io"

// registryOf is where an image of that name lies.
func (im *Images) registryOf(name string) string {
	host, _, ok := strings.Cut(name, "/")
	if ok && (strings.ContainsAny(host, ".:") || host == "localhost") {
		return host
	}
	return im.registry
}

// tellEvery is how often a long pull tells how far it is.
const tellEvery = 20 * time.Second

func (im *Images) pull(ctx context.Context, from *lease.Lease, t translate.Task, name string, always bool) (core.Image, error) {
	ctx, cancel, limit := bounded(ctx, t)
	defer cancel()
	im.events.Tell(t.Session.Name, t.Nomad, "Downloading image", map[string]string{"image": name})
	p := &progress{last: time.Now(), tell: func(done, total int64) {
		im.events.Tell(t.Session.Name, t.Nomad, "Downloading image", map[string]string{"image": name, "progress": fmt.Sprintf("%d of %d MiB", done>>20, total>>20)})
	}, blobs: map[digest.Digest]core.PullProgress{}}
	opts := core.PullOptions{Always: always, Progress: p.step}
	if im.registryOf(name) == im.registryOf(t.Conf.Image) { // nobody else is to see the task's password
		opts.Username, opts.Password = t.Conf.Auth.Username, t.Conf.Auth.Password
	}
	if helper := t.Session.AuthHelper; opts.Username == "" && helper != "" {
		c, err := im.helpers.ask(ctx, helper, im.registryOf(name))
		switch {
		case err == nil:
			opts.Username, opts.Password, opts.Token = c.username, c.password, c.token
		case t.Conf.AuthSoft:
			im.log.WarnContext(ctx, "an image is pulled without credentials", "image", name, "error", err)
		default:
			return core.Image{}, err
		}
	}
	img, err := from.Pull(ctx, name, opts)
	if t.Conf.AuthSoft && opts.Username+opts.Token != "" && errdefs.IsUnauthorized(err) {
		opts.Username, opts.Password, opts.Token = "", "", ""
		img, err = from.Pull(ctx, name, opts)
	}
	if err != nil && errors.Is(context.Cause(ctx), errTimeout) {
		err = fmt.Errorf("%w after %s: %w", errTimeout, limit, errdefs.ErrUnavailable)
	}
	return img, err
}

// bounded is ctx for as long as getting one image may take.
func bounded(ctx context.Context, t translate.Task) (context.Context, context.CancelFunc, time.Duration) {
	limit := t.Conf.PullTimeout
	if limit == 0 {
		limit = t.Session.PullTimeout
	}
	if limit <= 0 {
		return ctx, func() {}, 0
	}
	ctx, cancel := context.WithTimeoutCause(ctx, limit, errTimeout)
	return ctx, cancel, limit
}

var errTimeout = errors.New("the pull was given up") //nolint:gochecknoglobals // an error value

// progress sums up the progress of the blobs of one pull.
type progress struct {
	mu    sync.Mutex // guards last, blobs; serializes the calls of tell
	last  time.Time
	tell  func(done, total int64)
	blobs map[digest.Digest]core.PullProgress
}

func (p *progress) step(s core.PullProgress) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.Status == "downloading" {
		p.blobs[s.Blob] = s
	}
	if time.Since(p.last) < tellEvery {
		return
	}
	p.last = time.Now()
	var done, total int64
	for _, b := range p.blobs {
		done, total = done+b.Done, total+b.Total
	}
	p.tell(done, total)
}

// Sweep looks once for images that no task uses, which an earlier agent may have
// left.
func (im *Images) Sweep(ctx context.Context, s plugin.Session) {
	im.swept.Do(func() { im.unused.All(ctx, s.ImageDelay) })
}

// Released says that a task's container no longer uses its images.
func (im *Images) Released(c core.Container, s plugin.Session) { im.unused.Released(c, s.ImageDelay) }

// Run lets go of images when their time has come, until ctx ends.
func (im *Images) Run(ctx context.Context) error { return im.unused.Run(ctx) }

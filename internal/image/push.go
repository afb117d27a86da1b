package image

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/registry"
	"github.com/longshore/longshore/internal/image/worker"
)

// Push implements core.ImageTransfers: it sends the blobs that the registry lacks, then the manifest. Of an
// image for several platforms it sends only the stored one.
func (s *Store) Push(ctx context.Context, owner core.Owner, ref string, opts core.PushOptions) error {
	s.mu.RLock()
	f, err := s.rec.find(owner, ref)
	rec := s.rec.images[f.first]
	s.mu.RUnlock()
	if err == nil && rec == nil {
		err = errdefs.ErrNotFound
	}
	if err != nil {
		return fmt.Errorf("push %s: %w", ref, err)
	}
	target := opts.Target
	if target == "" {
		if target = f.name; target == "" {
			return fmt.Errorf("push %s: name the image by its registry's name for it: %w", ref, errdefs.ErrInvalidArgument)
		}
	}
	named, err := normalize(target, s.cfg.DefaultRegistry)
	if err != nil {
		return fmt.Errorf("push: %w", err)
	}
	if _, ok := named.(reference.Digested); ok {
		return fmt.Errorf("push %s: a tag is needed, not a digest: %w", named, errdefs.ErrInvalidArgument)
	}
	known, err := auths(s)
	if err != nil {
		return fmt.Errorf("push %s: %w", named, err)
	}
	l := s.newLease(opts.Progress)
	defer l.release()
	if _, err := l.Lease(ctx, rec.all(), nil); err != nil {
		return fmt.Errorf("push %s: %w", named, err)
	}
	job := worker.PushJob{Ref: named.String(), Manifest: rec.Manifest, Auths: known}
	if opts.Host == "" || registry.SameHost(opts.Host, reference.Domain(named)) {
		job.Credentials = registry.Credentials{Username: opts.Username, Password: opts.Password, Token: opts.Token, Bearer: opts.Bearer}
	}
	return s.runner.Push(ctx, l, job)
}

// Login implements core.ImageTransfers.
func (s *Store) Login(ctx context.Context, host string, opts core.PushOptions) error {
	l := s.newLease(nil)
	defer l.release()
	return s.runner.Push(ctx, l, worker.PushJob{
		Login: host, Credentials: registry.Credentials{Username: opts.Username, Password: opts.Password, Token: opts.Token},
	})
}

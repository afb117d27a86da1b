package image

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

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
	if err := s.runner.Push(ctx, l, job); err != nil {
		return err
	}
	return namePushed(s, owner, named, rec.Manifest.Digest)
}

// namePushed adds the digest under which the registry has an image now to its names, as a pull from there does. A target without a name
// in the store gets none.
func namePushed(s *Store, owner core.Owner, named reference.Named, manifest digest.Digest) error {
	s.write.Lock()
	defer s.write.Unlock()
	var c change
	s.mu.RLock()
	o := s.rec.owner0(owner)
	byDigest := repository(named.String()) + "@" + manifest.String()
	if _, known := o.names[byDigest]; !known && o.names[named.String()].Manifest == manifest {
		c.putName(owner, byDigest, nameRecord{Manifest: manifest, Target: manifest, At: s.now()})
	}
	s.mu.RUnlock()
	if err := s.commit(&c); err != nil {
		return fmt.Errorf("push %s: it is in the registry, and its digest could not be recorded: %w", named, err)
	}
	return nil
}

// Login implements core.ImageTransfers.
func (s *Store) Login(ctx context.Context, host string, opts core.PushOptions) error {
	l := s.newLease(nil)
	defer l.release()
	return s.runner.Push(ctx, l, worker.PushJob{
		Login: host, Credentials: registry.Credentials{Username: opts.Username, Password: opts.Password, Token: opts.Token},
	})
}

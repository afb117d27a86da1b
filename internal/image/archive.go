package image

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/worker"
)

// Import implements core.ImageTransfers: an OCI layout or a docker-save archive, plain
// or compressed by gzip or zstd, with any number of images.
func (s *Store) Import(ctx context.Context, owner core.Owner, r io.Reader, opts core.ImportOptions) ([]core.Image, error) {
	if opts.Only != "" && s.gate.Judges() {
		return nil, fmt.Errorf("import %s: the policy of this node judges images by their registries, which an archive does not prove: %w: %w",
			opts.Only, core.ErrImageRefused, errdefs.ErrFailedPrecondition)
	}
	s.mu.Lock()
	s.imports++
	s.mu.Unlock()
	l := s.newLease(nil)
	end := sync.OnceFunc(func() {
		s.mu.Lock()
		s.imports--
		s.mu.Unlock()
		l.release()
	})
	defer end()
	found, err := s.runner.Import(ctx, l, r)
	if err == nil && opts.Only != "" {
		found, err = only(found, opts.Only, s.cfg.DefaultRegistry)
	}
	if err != nil {
		end() // nothing of it is in use any more
		if cerr := dropImports(context.WithoutCancel(ctx), s); cerr != nil {
			s.log.WarnContext(ctx, "could not delete what an import has left that failed", "error", cerr)
		}
		if ctx.Err() != nil {
			// The worker's error about the archive's sudden end says less.
			return nil, fmt.Errorf("import: %w", context.Cause(ctx))
		}
		return nil, err
	}
	var list []core.Image
	for _, img := range found {
		if err := s.keep(img); err != nil {
			return list, fmt.Errorf("import: %w", err)
		}
		s.modules.warm(s, owner, img)
		rec := nameRecord{Manifest: img.Manifest.Digest, Target: img.Target.Digest, At: s.now()}
		s.write.Lock()
		s.mu.RLock()
		var c change
		var names []string
		for _, name := range img.Names {
			named, nerr := normalize(name, s.cfg.DefaultRegistry)
			if nerr != nil {
				err = nerr
				break
			}
			rec.Asked = !isTagged(named)
			if isTagged(named) {
				names = append(names, named.String())
			}
			s.rec.setName(&c, owner, named.String(), rec)
		}
		if len(img.Names) == 0 && len(s.rec.owner0(owner).namesOf(map[digest.Digest]bool{rec.Manifest: true})) == 0 {
			rec.Asked = true
			s.rec.setName(&c, owner, "@"+rec.Manifest.String(), rec)
		}
		s.mu.RUnlock()
		if err == nil {
			err = s.commit(&c)
		}
		s.write.Unlock()
		if err != nil {
			return list, fmt.Errorf("import: %w", err)
		}
		described, err := s.describe(owner, rec.Manifest)
		if err != nil {
			return list, fmt.Errorf("import: %w", err)
		}
		if len(names) > 0 {
			described.Names = names // those that it has besides, the archive did not bring
		}
		list = append(list, described)
	}
	return list, nil
}

// only picks the image of that name, and removes its names. The rest of the archive is garbage.
func only(found []worker.Image, name, registry string) ([]worker.Image, error) {
	want, err := normalize(name, registry)
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	var others []string
	for _, img := range found {
		for _, n := range img.Names {
			if named, err := normalize(n, registry); err == nil && named.String() == want.String() {
				img.Names = nil
				return []worker.Image{img}, nil
			}
		}
		others = append(others, img.Names...)
	}
	if len(found) == 1 && len(others) == 0 {
		return found, nil
	}
	const most = 8 // of names of somebody else's, in a message
	return nil, fmt.Errorf("import: the archive has no image %s; it has %s: %w", name, strings.Join(others[:min(len(others), most)], ", "), errdefs.ErrNotFound)
}

func isTagged(named reference.Named) bool {
	_, ok := named.(reference.Tagged)
	return ok
}

// Export implements core.ImageTransfers: one OCI layout that docker load can read as well. An image given
// by tag keeps that name, one given by ID all its tags.
func (s *Store) Export(ctx context.Context, owner core.Owner, refs []string, w io.Writer) error {
	l := s.newLease(nil)
	defer l.release()
	var opts []archive.ExportOpt
	for _, ref := range refs {
		s.mu.RLock()
		f, err := s.rec.find(owner, ref)
		rec := s.rec.images[f.first]
		var names []string
		if err == nil && rec != nil {
			for name := range s.rec.owner0(owner).namesOf(f.manifests) {
				if !isDigestName(name) && (f.name == "" || name == f.name) {
					names = append(names, name)
				}
			}
		}
		s.mu.RUnlock()
		if err != nil {
			return fmt.Errorf("export: %w", err)
		}
		if rec == nil {
			return fmt.Errorf("export %s: %w", ref, errdefs.ErrNotFound)
		}
		if _, err := l.Lease(ctx, rec.all(), nil); err != nil {
			return fmt.Errorf("export %s: %w", ref, err)
		}
		opts = append(opts, archive.WithManifest(rec.Manifest, names...))
		if rec.Artifact != "" {
			opts = append(opts, archive.WithSkipDockerManifest()) // docker's form has no artifacts
		}
	}
	if err := archive.Export(ctx, s.content, w, opts...); err != nil {
		return fmt.Errorf("export: %w", err)
	}
	return nil
}

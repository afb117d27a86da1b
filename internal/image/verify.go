package image

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/image/layer"
	"github.com/longshore/longshore/internal/image/worker"
)

// Damage is content of an image that has changed since the pull.
type Damage struct {
	Image  string // a name of an image that has it
	Object string // the layer or blob
	Detail string
	// Unknown means that it could not be checked: there are no sums of the unpacked files.
	Unknown bool
}

// Verify reads all blobs and unpacked layers and returns the damaged ones. A pull of the image
// fetches and unpacks these again: a damaged layer beside the old one, which running containers
// keep until their next start.
func (s *Store) Verify(ctx context.Context) ([]Damage, error) {
	var all []Damage
	s.mu.RLock()
	named := s.rec.namedContent()
	layers := make(map[digest.Digest]layerRecord, len(s.rec.layers))
	for chain, l := range s.rec.layers {
		layers[chain] = l
	}
	s.mu.RUnlock()
	for d, name := range named.blobs {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		detail, err := s.verifyBlob(ctx, d)
		if err != nil {
			return nil, err
		}
		if detail != "" {
			all = append(all, Damage{Image: name, Object: "blob " + d.String(), Detail: detail})
		}
	}
	for chain, l := range layers {
		if err := ctx.Err(); err != nil {
			return nil, context.Cause(ctx)
		}
		d := Damage{Image: named.chains[chain], Object: "layer " + l.DiffID.String()}
		faults, err := verifyLayer(s, chain, l)
		switch {
		case errdefs.IsNotFound(err):
			d.Detail, d.Unknown = err.Error(), true
		case err != nil:
			return nil, fmt.Errorf("verify layer %s: %w", l.DiffID, err)
		case len(faults) > 0 || l.Damaged:
			d.Detail = fmt.Sprint(faults)
			if err := s.layerIsDamaged(chain, l.Dir); err != nil {
				return nil, err
			}
		default:
			continue
		}
		all = append(all, d)
	}
	slices.SortFunc(all, func(a, b Damage) int {
		if a.Image != b.Image {
			return compare(a.Image, b.Image)
		}
		return compare(a.Object, b.Object)
	})
	return all, nil
}

func compare(a, b string) int {
	if a < b {
		return -1
	}
	return 1
}

// namedContent has the blobs and layers of images, each with the name of one of them.
type namedContent struct{ blobs, chains map[digest.Digest]string }

// namedContent returns the content of the named images. Preconditions: s.mu is held.
func (r *records) namedContent() namedContent {
	c := namedContent{map[digest.Digest]string{}, map[digest.Digest]string{}}
	for _, o := range r.owners {
		for name, n := range o.names {
			img := r.images[n.Manifest]
			if img == nil {
				continue
			}
			for _, b := range img.all() {
				c.blobs[b] = max(c.blobs[b], name)
			}
			for _, chain := range img.Chains {
				c.chains[chain] = max(c.chains[chain], name)
			}
		}
	}
	return c
}

// verifyBlob returns a blob's damage, or "". A damaged one is removed, so that the next pull
// fetches it.
func (s *Store) verifyBlob(ctx context.Context, d digest.Digest) (string, error) {
	f, err := os.Open(s.content.path(d))
	if errors.Is(err, os.ErrNotExist) {
		return "it is missing", nil
	}
	if err != nil {
		return "", fmt.Errorf("verify blob %s: %w", d, err)
	}
	h := sha256.New()
	_, err = io.Copy(h, readerOf(ctx, f))
	_ = f.Close() // it was only read
	if cause := context.Cause(ctx); cause != nil {
		return "", cause
	}
	if err == nil && digest.NewDigest(digest.SHA256, h) == d {
		return "", nil
	}
	detail := "its content has another digest"
	if err != nil {
		detail = "it cannot be read: " + err.Error()
	}
	s.write.Lock() // no pull is about to record an image with it
	defer s.write.Unlock()
	if err := s.trash.add(s.content.path(d)); err != nil {
		return "", fmt.Errorf("remove the damaged blob %s: %w", d, err)
	}
	s.trash.empty()
	return detail, nil
}

// readerOf reads r until ctx ends.
func readerOf(ctx context.Context, r io.Reader) io.Reader { return endingReader{ctx, r} }

type endingReader struct {
	ctx context.Context //nolint:containedctx // of the one call that reads
	r   io.Reader
}

func (r endingReader) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

// verifyLayer returns the damage of an unpacked layer. NotFound if it cannot be checked.
func verifyLayer(s *Store, chain digest.Digest, l layerRecord) ([]string, error) {
	if l.Links {
		return verifyArtifact(s, chain, l)
	}
	return layer.Verify(s.rec.layerPath(l.Dir), s.rec.sumsPath(l.Dir))
}

// layerIsDamaged records that the layer unpacked in dir must be unpacked again.
func (s *Store) layerIsDamaged(chain digest.Digest, dir string) error {
	s.write.Lock()
	defer s.write.Unlock()
	s.mu.RLock()
	rec, ok := s.rec.layers[chain]
	s.mu.RUnlock()
	if !ok || rec.Dir != dir || rec.Damaged {
		return nil
	}
	rec.Damaged = true
	var c change
	c.putLayer(chain, rec)
	return s.commit(&c)
}

func (r *records) sumsPath(dir string) string { return filepath.Join(r.root, worker.SumsDir, dir) }

// blobsThere reports whether all blobs of an image are on disk, with their sizes. Preconditions:
// s.mu is held.
func (s *Store) blobsThere(manifest digest.Digest) bool {
	rec := s.rec.images[manifest]
	if rec == nil {
		return false
	}
	for _, b := range append(slices.Clone(rec.Blobs), rec.Manifest, rec.Config) {
		if fi, err := os.Stat(s.content.path(b.Digest)); err != nil || fi.Size() != b.Size {
			return false
		}
	}
	return true
}

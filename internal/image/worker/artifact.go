package worker

import (
	"context"
	"fmt"
	"os"
	"path"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/artifact"
	"github.com/longshore/longshore/internal/image/layer"
)

// An artifact is kept as one layer, a directory with links to its blobs: so it is listed, pinned,
// mounted and collected like every image.

// artifact returns the type of an artifact's manifest, "" for an image's.
func (d manifestDoc) artifact() string { return artifact.Type(d.ArtifactType, d.Config, d.Layers) }

// tree is the directory of an artifact that is being made.
type tree struct {
	place  Place
	files  []core.ArtifactFile
	chain  digest.Digest
	result Layer // set when the flight has ended without an error
}

// artifact fetches the config and the missing blobs of img, and makes its directory. The record needs
// no annotations of layers: the manifest has them.
func (s *source) artifact(ctx context.Context, img *Image) ([]Layer, error) {
	files, err := artifact.Files(img.Blobs)
	if err != nil {
		return nil, err
	}
	if _, err := s.small(ctx, img.Config, maxConfig, func() ([]byte, error) { return s.fetchConfig(ctx, img.Config) }); err != nil {
		return nil, fmt.Errorf("read the artifact's config: %w", err)
	}
	img.Config.Data = nil
	all := []digest.Digest{img.Target.Digest, img.Manifest.Digest, img.Config.Digest}
	var blobs []ocispec.Descriptor
	seen := map[digest.Digest]bool{}
	for i, b := range img.Blobs {
		img.Blobs[i] = ocispec.Descriptor{MediaType: b.MediaType, Digest: b.Digest, Size: b.Size}
		if !seen[b.Digest] {
			seen[b.Digest] = true
			blobs, all = append(blobs, img.Blobs[i]), append(all, b.Digest)
		}
	}
	chain := artifact.Chain(img.Manifest.Digest)
	places, err := s.agent.Lease(ctx, all, []digest.Digest{chain})
	if err != nil {
		return nil, err
	}
	place, ok := places[chain]
	if !ok {
		return nil, fmt.Errorf("no place for artifact %s: %w", img.Manifest.Digest, errdefs.ErrInternal)
	}
	if err := s.blobs(ctx, blobs); err != nil {
		return nil, err
	}
	f := s.w.trees.Join(ctx, place.Dir, func() *tree { return &tree{place: place, files: files, chain: chain} }, s.w.runTree)
	defer f.Leave()
	defer s.watch.hold()()
	if err := f.Wait(ctx); err != nil {
		return nil, err
	}
	return []Layer{f.State.result}, nil
}

// blobs fetches those of an artifact's blobs that are missing, several at a time.
func (s *source) blobs(ctx context.Context, all []ocispec.Descriptor) error {
	m := newMeter(s.agent, all)
	m.begin(all)
	var missing []ocispec.Descriptor
	var size int64
	for _, b := range all {
		if s.w.hasBlob(ctx, b) {
			m.note(b.Digest, "exists", b.Size)
			continue
		}
		if s.repo == nil {
			return fmt.Errorf("layer %s is not in the archive: %w", b.Digest, errdefs.ErrInvalidArgument)
		}
		missing = append(missing, b)
		size += b.Size
	}
	if len(missing) == 0 {
		m.finish()
		return nil
	}
	s.wrote = true
	if s.w.settings.MinFree > 0 {
		if err := layer.CheckFree(s.w.root, s.w.settings.MinFree+size); err != nil {
			return fmt.Errorf("fetch the artifact's %d bytes: %w", size, err)
		}
	}
	defer s.w.offer(s.repo, missing)()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	queue := make(chan ocispec.Descriptor)
	var fetching sync.WaitGroup
	for range min(s.w.settings.Concurrency, len(missing)) {
		fetching.Go(func() {
			for b := range queue {
				if err := s.blob(ctx, b, m); err != nil {
					cancel(err) // the first error ends the others
				}
			}
		})
	}
	for _, b := range missing {
		queue <- b
	}
	close(queue)
	fetching.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	m.finish()
	return nil
}

// blob fetches one blob. It begins again if the part that an earlier process has fetched is damaged.
func (s *source) blob(ctx context.Context, desc ocispec.Descriptor, m *meter) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	u := &unpacking{repo: s.repo, blob: desc, note: m.note}
	s.watch.follow(u)
	resumed, err := s.w.fetchShared(ctx, u)
	if errdefs.IsDataLoss(err) && resumed {
		_, err = s.w.fetchShared(ctx, u)
	}
	if err == nil {
		m.note(desc.Digest, "done", desc.Size)
	}
	return u.elsewhere(err)
}

// fetchShared fetches a blob together with the other jobs that need it.
func (w *Worker) fetchShared(ctx context.Context, u *unpacking) (resumed bool, err error) {
	f := w.startDownload(ctx, u, u.repo)
	defer f.Leave()
	err = f.Wait(ctx)
	f.State.mu.Lock()
	defer f.State.mu.Unlock()
	return f.State.resumed, err
}

// Artifacts has the blobs and directories of artifacts in the image directory root.
func Artifacts(root string) artifact.Store {
	return artifact.Store{Root: root, Blob: func(d digest.Digest) string {
		return path.Join(ContentDir, "blobs", d.Algorithm().String(), d.Encoded())
	}}
}

// runTree makes the directory of an artifact, or completes the one there is.
func (w *Worker) runTree(_ context.Context, t *tree) error {
	blobs := Artifacts(w.root)
	dir := path.Join(LayerDir, t.place.Dir)
	w.mu.Lock()
	have, done := w.done[t.place.Dir]
	w.mu.Unlock()
	switch {
	case done:
		t.result = have
		return blobs.Relink(dir, t.files)
	case t.place.Ready:
		t.result = Layer{Chain: t.chain, DiffID: t.chain, Dir: t.place.Dir, Links: true, Known: true}
		return blobs.Relink(dir, t.files)
	}
	if err := os.RemoveAll(w.layerDir(t.place.Dir)); err != nil {
		return err
	}
	dirs, err := blobs.Link(dir, t.files)
	if err != nil {
		_ = os.RemoveAll(w.layerDir(t.place.Dir)) // otherwise the next start does
		return classifyDisk(err)
	}
	t.result = Layer{Chain: t.chain, DiffID: t.chain, Dir: t.place.Dir, Inodes: dirs, Links: true}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done[t.place.Dir] = t.result
	return nil
}

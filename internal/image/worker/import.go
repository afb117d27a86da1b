package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/containerd/v2/core/images/archive"
	"github.com/containerd/errdefs"
	"github.com/containerd/platforms"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/decompress"
	"github.com/longshore/longshore/internal/image/layer"
)

// Import reads an archive of one or more images for this node's platform.
func (w *Worker) Import(ctx context.Context, agent Agent, r io.Reader) ([]Image, error) {
	plain, err := decompressed(r)
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	defer func() { _ = plain.Close() }()
	index, err := archive.ImportIndex(ctx, w.store, &guarded{ctx: ctx, r: plain, w: w})
	if err != nil {
		return nil, fmt.Errorf("import: %w", classifyArchive(ctx, err))
	}
	list, err := w.named(ctx, index)
	if err != nil {
		return nil, fmt.Errorf("import: %w", err)
	}
	s := &source{w: w, agent: agent, wrote: true}
	var found []Image
	at := map[string]int{}
	for _, m := range list {
		name := archiveName(m)
		img, err := s.image(ctx, ocispec.Descriptor{MediaType: m.MediaType, Digest: m.Digest, Size: m.Size, Platform: m.Platform}, platforms.Default(), nil)
		if err != nil {
			return nil, fmt.Errorf("import %s: %w", strings.TrimSpace(name+" "+m.Digest.String()), err)
		}
		i, ok := at[img.Manifest.Digest.String()]
		if !ok {
			i = len(found)
			at[img.Manifest.Digest.String()] = i
			found = append(found, img)
		}
		if name != "" {
			found[i].Names = append(found[i].Names, name)
		}
	}
	return found, nil
}

// decompressed opens an archive. Whole archives are compressed with bzip2 and xz, too, which layers must not be.
func decompressed(r io.Reader) (io.ReadCloser, error) {
	buf := bufio.NewReader(r)
	head, _ := buf.Peek(len(decompress.Xz)) // the reader returns the error again
	if magic := string(head); strings.HasPrefix(magic, decompress.Bzip2) || magic == decompress.Xz {
		plain, err := decompress.Reader(buf)
		if err != nil {
			return nil, fmt.Errorf("decompress: %w: %w", errdefs.ErrInvalidArgument, err)
		}
		return plain, nil
	}
	return layer.Decompress(buf)
}

// named returns the entries of an archive's index. An entry without a name, with an index of
// several platforms, is one image.
func (w *Worker) named(ctx context.Context, desc ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	body, err := content.ReadBlob(ctx, w.store, desc)
	if err != nil {
		return nil, err
	}
	var index ocispec.Index
	if err := json.Unmarshal(body, &index); err != nil {
		return nil, fmt.Errorf("read index: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	var list []ocispec.Descriptor
	only := artifactsOnly(index.Manifests)
	for _, m := range index.Manifests {
		about := isAttestation(&m) && !only && m.Annotations[ocispec.AnnotationRefName] == "" && archiveName(m) == "" // about an image
		if about || isBuildAttestation(&m) || m.Platform != nil && !platforms.Default().Match(*m.Platform) && !isWasm(m.Platform) {
			continue
		}
		list = append(list, m)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("the archive has no image for this platform: %w", errdefs.ErrNotFound)
	}
	return list, nil
}

// archiveName returns the full name that an archive gives to an image. A bare tag, which some
// tools write into the OCI annotation, is not a name.
func archiveName(m ocispec.Descriptor) string {
	if name := m.Annotations[images.AnnotationImageName]; name != "" {
		return name
	}
	if name := m.Annotations[ocispec.AnnotationRefName]; strings.ContainsAny(name, "/:@") {
		return name
	}
	return ""
}

// guarded is a reader that ends an archive which would fill the disk.
type guarded struct {
	ctx  context.Context //nolint:containedctx // a reader has no other way
	r    io.Reader
	w    *Worker
	left int64
}

// Read implements io.Reader.
func (g *guarded) Read(p []byte) (int, error) {
	if g.ctx.Err() != nil {
		return 0, context.Cause(g.ctx)
	}
	n, err := g.r.Read(p)
	if g.left -= int64(n); g.left < 0 && g.w.settings.MinFree > 0 {
		g.left = 32 << 20
		if ferr := layer.CheckFree(g.w.root, g.w.settings.MinFree); ferr != nil {
			return 0, ferr
		}
	}
	return n, err
}

func classifyArchive(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case errdefs.IsResourceExhausted(err), errors.Is(err, context.Canceled):
		return err
	}
	if c := classifyDisk(err); errdefs.IsResourceExhausted(c) {
		return c
	}
	return fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
}

package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/registry"
)

// resolve asks a registry for the descriptor and the platforms of an image, and stores nothing.
func (w *Worker) resolve(ctx context.Context, named reference.Named, job PullJob) (Image, error) {
	repo, err := registry.Open(ctx, named, w.registryOptions(job))
	if err != nil {
		return Image{}, err
	}
	desc, body, err := repo.Resolve(ctx, selector(named))
	if err != nil {
		return Image{}, err
	}
	if body == nil {
		if body, err = repo.Manifest(ctx, desc); err != nil {
			return Image{}, err
		}
	}
	desc.Size = int64(len(body))
	var doc manifestDoc
	if err := json.Unmarshal(body, &doc); err != nil {
		return Image{}, fmt.Errorf("read manifest %s: %w: %w", desc.Digest, errdefs.ErrInvalidArgument, err)
	}
	if desc.MediaType == "" || doc.MediaType != "" {
		desc.MediaType = doc.MediaType
	}
	img := Image{Target: desc}
	if len(doc.Manifests) > 0 || images.IsIndexType(desc.MediaType) {
		for _, m := range doc.Manifests {
			if m.Platform != nil {
				img.Platforms = append(img.Platforms, *m.Platform)
			}
		}
		return img, nil
	}
	if doc.Config.Digest == "" {
		return Image{}, fmt.Errorf("manifest %s (%s) is not an image: %w", desc.Digest, desc.MediaType, errdefs.ErrInvalidArgument)
	}
	if doc.artifact() != "" {
		return img, nil // its config says nothing about platforms
	}
	p, err := remotePlatform(ctx, repo, doc.Config)
	if err != nil {
		return Image{}, err
	}
	img.Platforms = []ocispec.Platform{p}
	return img, nil
}

// remotePlatform reads the platform in an image's config at a registry.
func remotePlatform(ctx context.Context, repo *registry.Repository, config ocispec.Descriptor) (p ocispec.Platform, err error) {
	if config.Size < 0 || config.Size > maxConfig {
		return p, fmt.Errorf("the image config has %d bytes, at most %d are read: %w", config.Size, maxConfig, errdefs.ErrInvalidArgument)
	}
	if err := config.Digest.Validate(); err != nil {
		return p, fmt.Errorf("image config %q: %w: %w", config.Digest, errdefs.ErrInvalidArgument, err)
	}
	blob, err := repo.Blob(ctx, config, 0)
	if err != nil {
		return p, err
	}
	defer func() { _ = blob.Close() }()
	body, err := io.ReadAll(io.LimitReader(blob, config.Size+1))
	if err != nil {
		return p, fmt.Errorf("read image config %s: %w: %w", config.Digest, errdefs.ErrUnavailable, err)
	}
	if config.Digest.Algorithm().FromBytes(body) != config.Digest {
		return p, fmt.Errorf("read image config %s: it has other content: %w", config.Digest, errdefs.ErrDataLoss)
	}
	if err := json.Unmarshal(body, &p); err != nil {
		return p, fmt.Errorf("read image config %s: %w: %w", config.Digest, errdefs.ErrInvalidArgument, err)
	}
	return p, nil
}

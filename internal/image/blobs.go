package image

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/plugins/content/local"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// blobs reads the content store, which only the worker writes.
type blobs struct{ dir string }

var _ content.InfoReaderProvider = blobs{}

func (b blobs) path(d digest.Digest) string {
	return filepath.Join(b.dir, d.Algorithm().String(), d.Encoded())
}

// ReaderAt implements content.Provider.
func (b blobs) ReaderAt(_ context.Context, desc ocispec.Descriptor) (content.ReaderAt, error) {
	if err := desc.Digest.Validate(); err != nil {
		return nil, fmt.Errorf("blob %q: %w", desc.Digest, errdefs.ErrInvalidArgument)
	}
	return local.OpenReader(b.path(desc.Digest))
}

// Info implements content.InfoProvider.
func (b blobs) Info(_ context.Context, d digest.Digest) (content.Info, error) {
	if err := d.Validate(); err != nil {
		return content.Info{}, fmt.Errorf("blob %q: %w", d, errdefs.ErrInvalidArgument)
	}
	fi, err := os.Stat(b.path(d))
	if os.IsNotExist(err) {
		return content.Info{}, fmt.Errorf("blob %s: %w", d, errdefs.ErrNotFound)
	}
	if err != nil {
		return content.Info{}, err
	}
	return content.Info{Digest: d, Size: fi.Size(), CreatedAt: fi.ModTime(), UpdatedAt: fi.ModTime()}, nil
}

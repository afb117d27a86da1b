package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/images"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/fromroot"
	"github.com/longshore/longshore/internal/image/layer"
	"github.com/longshore/longshore/internal/image/worker"
)

// upperOf returns a container's own layer.
func upperOf(s *Store, container core.ID, own core.RootUse) (layer.Upper, *imageRecord, error) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	co := s.checkouts[container]
	switch {
	case co == nil:
		return layer.Upper{}, nil, fmt.Errorf("its root is of no image: %w", errdefs.ErrFailedPrecondition)
	case co.ReadOnly:
		return layer.Upper{}, nil, fmt.Errorf("its root is read-only, and has no changes: %w", errdefs.ErrFailedPrecondition)
	}
	rec := s.rec.images[co.Manifest]
	if rec == nil {
		return layer.Upper{}, nil, fmt.Errorf("its image is not known any more: %w", errdefs.ErrDataLoss)
	}
	u := layer.Upper{Dir: filepath.Join(s.rec.checkoutPath(container), "upper"), Mounts: map[string]bool{}}
	for i := len(co.Dirs) - 1; i >= 0; i-- {
		u.Lower = append(u.Lower, s.rec.layerPath(co.Dirs[i]))
	}
	if len(own.UIDs)+len(own.GIDs) > 0 {
		u.Inside = func(uid, gid int) (int, int) { return insideID(own.UIDs, uid), insideID(own.GIDs, gid) }
	}
	for _, m := range own.Mounts {
		u.Mounts[strings.Trim(filepath.Clean(m), "/")] = true
	}
	return u, rec, nil
}

// Changes implements core.ImageTransfers.
func (s *Store) Changes(ctx context.Context, container core.ID, use core.RootUse, fn func(core.FileChange) error) error {
	u, _, err := upperOf(s, container, use)
	if err == nil {
		err = u.Changes(ctx, func(c layer.Change) error { return fn(core.FileChange{Path: "/" + c.Path, Kind: string(c.Kind)}) })
	}
	if err != nil {
		return fmt.Errorf("compare root of %s with its image: %w", container.Short(), err)
	}
	return nil
}

// Commit implements core.ImageTransfers. The new layer is read into a file without a name, and the image is
// then imported like any other: an error or a crash leaves nothing of it.
func (s *Store) Commit(ctx context.Context, owner core.Owner, req core.CommitRequest) (core.Image, error) {
	img, err := commitImage(ctx, s, owner, req)
	if err != nil {
		return core.Image{}, fmt.Errorf("make an image of %s: %w", req.Container.Short(), err)
	}
	return img, nil
}

func commitImage(ctx context.Context, s *Store, owner core.Owner, req core.CommitRequest) (core.Image, error) {
	u, rec, err := upperOf(s, req.Container, req.Use)
	if err != nil {
		return core.Image{}, err
	}
	name := ""
	if req.Name != "" {
		named, err := normalize(req.Name, s.cfg.DefaultRegistry)
		if err != nil {
			return core.Image{}, err
		}
		if _, ok := named.(reference.Digested); ok {
			return core.Image{}, fmt.Errorf("image name %q: a new image has no digest yet: %w", req.Name, errdefs.ErrInvalidArgument)
		}
		name = named.String()
	}
	l := s.newLease(nil)
	defer l.release()
	if _, err := l.Lease(ctx, rec.all(), nil); err != nil {
		return core.Image{}, err
	}
	for _, b := range rec.Blobs {
		if _, err := s.content.Info(ctx, b.Digest); err != nil {
			return core.Image{}, fmt.Errorf("the layer %s of its image: pull that again: %w", b.Digest, err)
		}
	}
	var manifest ocispec.Manifest
	if err := readJSON(ctx, s.content, rec.Manifest, &manifest); err != nil {
		return core.Image{}, err
	}
	config, err := content.ReadBlob(ctx, s.content, manifest.Config)
	if err != nil {
		return core.Image{}, err
	}
	file, err := unnamed(filepath.Join(s.root, worker.ContentDir, "ingest"))
	if err != nil {
		return core.Image{}, err
	}
	defer func() { _ = file.Close() }()
	desc, diff, err := packed(ctx, s, file, u)
	if err != nil {
		return core.Image{}, err
	}
	if config, err = req.Config(config, diff); err != nil {
		return core.Image{}, err
	}
	desc.MediaType = ocispec.MediaTypeImageLayerGzip
	if manifest.MediaType == images.MediaTypeDockerSchema2Manifest {
		desc.MediaType = images.MediaTypeDockerSchema2LayerGzip
	}
	if manifest.MediaType == "" {
		manifest.MediaType = ocispec.MediaTypeImageManifest
	}
	manifest.Layers = append(manifest.Layers, desc)
	manifest.Config.Digest, manifest.Config.Size = digest.FromBytes(config), int64(len(config))
	manifest.Annotations = nil // they tell of the other image
	pr, pw := io.Pipe()
	go func() {
		_ = pw.CloseWithError(fromroot.Layout(pw, manifest, config, fromroot.Blob{Descriptor: desc, Content: file}, name))
	}()
	list, err := s.Import(ctx, owner, pr, core.ImportOptions{})
	_ = pr.Close()
	if err != nil {
		return core.Image{}, err
	}
	if len(list) != 1 {
		return core.Image{}, fmt.Errorf("the import made %d images: %w", len(list), errdefs.ErrInternal)
	}
	return list[0], nil
}

func readJSON(ctx context.Context, from content.Provider, desc ocispec.Descriptor, to any) error {
	body, err := content.ReadBlob(ctx, from, desc)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, to); err != nil {
		return fmt.Errorf("read %s: %w: %w", desc.Digest, errdefs.ErrDataLoss, err)
	}
	return nil
}

// unnamed makes a file in dir that disappears when it is closed, also by the end of the agent.
func unnamed(dir string) (*os.File, error) {
	f, err := os.CreateTemp(dir, "commit-")
	if err != nil {
		return nil, err
	}
	if err := os.Remove(f.Name()); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// packed writes a container's layer, compressed, and returns its descriptor and diff ID.
func packed(ctx context.Context, s *Store, file *os.File, u layer.Upper) (desc ocispec.Descriptor, diff digest.Digest, err error) {
	o := layer.PackOptions{MaxBytes: s.cfg.MaxLayerBytes}
	blob, plain := digest.Canonical.Digester(), digest.Canonical.Digester()
	out := &counted{w: io.MultiWriter(file, blob.Hash()), dir: s.root, minFree: s.cfg.MinFreeBytes}
	zip, err := gzip.NewWriterLevel(out, gzip.BestSpeed)
	if err != nil {
		return desc, "", err
	}
	if err = u.Pack(ctx, io.MultiWriter(zip, plain.Hash()), o); err == nil {
		err = zip.Close()
	}
	if err != nil {
		return desc, "", fullDisk(err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return desc, "", err
	}
	return ocispec.Descriptor{Digest: blob.Digest(), Size: out.n}, plain.Digest(), nil
}

// fullDisk gives an error its class if it is that of a full disk.
func fullDisk(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", errdefs.ErrResourceExhausted, err)
	}
	return err
}

// counted counts the written bytes, and fails before the disk is full.
type counted struct {
	w       io.Writer
	dir     string
	minFree int64
	n, left int64
}

// checkFreeEvery is the number of bytes between two checks of the free space.
const checkFreeEvery = 16 << 20

func (c *counted) Write(p []byte) (int, error) {
	if c.left -= int64(len(p)); c.left < 0 && c.minFree > 0 {
		c.left = checkFreeEvery
		if err := layer.CheckFree(c.dir, c.minFree); err != nil {
			return 0, err
		}
	}
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// noID is the owner of files that belong to none of the container's users.
const noID = 65534

// insideID returns the id inside of a user namespace of one on the host.
func insideID(ranges []core.IDRange, id int) int {
	for _, r := range ranges {
		if uint64(id) >= uint64(r.Host) && uint64(id) < uint64(r.Host)+uint64(r.Size) {
			return id - int(r.Host) + int(r.Container)
		}
	}
	return noID
}

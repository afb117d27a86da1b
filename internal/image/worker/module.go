package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/layer"
	"github.com/longshore/longshore/internal/image/wasm"
)

// A WebAssembly module is kept like a layer, as a directory with the module as its only file: so it has its size, is listed,
// pinned, mounted and collected like every other root.

// isModule reports whether a manifest's content is a module and no archives.
func isModule(doc manifestDoc) bool {
	for _, l := range doc.Layers {
		if wasm.IsLayer(l.MediaType) {
			return true
		}
	}
	return false
}

// isWasm reports whether a platform is that of a module.
func isWasm(p *ocispec.Platform) bool {
	return p != nil && (p.Architecture == "wasm" || p.Architecture == "wasm32")
}

// moduleDiffs returns the diff ID of a module's layer. It is derived from the blob's digest and not equal to it, so that the same bytes
// as an archive are another layer.
func moduleDiffs(config []byte, m manifestDoc) ([]digest.Digest, error) {
	blob := m.Layers[0].Digest
	var names struct {
		LayerDigests []digest.Digest `json:"layerDigests"`
		RootFS       struct {
			DiffIDs []digest.Digest `json:"diff_ids"`
		} `json:"rootfs"`
		Config ocispec.ImageConfig `json:"config"`
	}
	if err := json.Unmarshal(config, &names); err != nil {
		return nil, fmt.Errorf("read image config: %w: %w", errdefs.ErrInvalidArgument, err)
	}
	if err := CheckVolumes(names.Config); err != nil {
		return nil, fmt.Errorf("read image config: %w", err)
	}
	for _, list := range [][]digest.Digest{names.LayerDigests, names.RootFS.DiffIDs} {
		if len(list) > 0 && (len(list) != 1 || list[0] != blob) {
			return nil, fmt.Errorf("read image config: it names the layers %v, and the manifest %s: %w", list[:min(len(list), 4)], blob, errdefs.ErrInvalidArgument)
		}
	}
	return []digest.Digest{moduleDiff(blob)}, nil
}

func moduleDiff(blob digest.Digest) digest.Digest {
	return digest.FromString("wasm module " + blob.String())
}

// applyModule writes a module into its directory, and refuses one that cannot run here.
func applyModule(ctx context.Context, dir string, r io.Reader, blob ocispec.Descriptor, opts layer.Options) (layer.Result, error) {
	if opts.MaxBytes > 0 && blob.Size > opts.MaxBytes {
		return layer.Result{}, fmt.Errorf("the module has %d bytes, more than %d: %w", blob.Size, opts.MaxBytes, errdefs.ErrResourceExhausted)
	}
	if opts.MinFree > 0 {
		if err := layer.CheckFree(dir, opts.MinFree+blob.Size); err != nil {
			return layer.Result{}, err
		}
	}
	f, err := os.OpenFile(filepath.Join(dir, wasm.File), os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o444)
	if err != nil {
		return layer.Result{}, classifyDisk(err)
	}
	defer func() { _ = f.Close() }()
	sum := digest.Canonical.Digester()
	n, err := io.Copy(io.MultiWriter(f, sum.Hash()), io.LimitReader(reading{ctx, r}, blob.Size+1))
	switch {
	case err != nil:
		return layer.Result{}, classifyDisk(err)
	case n != blob.Size || sum.Digest() != blob.Digest:
		return layer.Result{}, fmt.Errorf("%d bytes with the digest %s: %w", n, sum.Digest(), errdefs.ErrDataLoss)
	}
	if err := f.Chmod(0o444); err != nil { // independent of the umask
		return layer.Result{}, classifyDisk(err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return layer.Result{}, err
	}
	m, err := wasm.Read(f)
	if err == nil {
		err = m.Refusal()
	}
	if err != nil {
		return layer.Result{}, err
	}
	const block = 4096
	return layer.Result{DiffID: moduleDiff(blob.Digest), Bytes: (n + block - 1) / block * block, Inodes: 1}, nil
}

// reading ends when its context does.
type reading struct {
	ctx context.Context //nolint:containedctx // a reader has no other way
	r   io.Reader
}

// Read implements io.Reader.
func (r reading) Read(p []byte) (int, error) {
	if r.ctx.Err() != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(p)
}

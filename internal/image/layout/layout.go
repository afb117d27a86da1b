// Package layout reads OCI layouts, directories that somebody else may have filled, as archives.
//
// It reads only content that index.json refers to for this node's platform, by names made of
// digests, and never from outside of the directory. The importer of the archive checks digests.
// Start at Archive.
package layout

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	maxVersion  = 4 << 10  // bytes of the file oci-layout
	maxManifest = 4 << 20  // bytes of an index or a manifest, as of those from registries
	maxBlobs    = 10 << 10 // of all images together
	maxDepth    = 4        // of indexes
)

// Archive returns the OCI layout in dir as an archive. An error of reading the directory is the
// reader's. The caller must close it.
func Archive(dir string) io.ReadCloser {
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(pack(dir, w)) }() // it never fails
	return r
}

func pack(dir string, w io.Writer) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	p := packer{root: root, tar: tar.NewWriter(w), done: map[digest.Digest]bool{}}
	if err := p.all(); err != nil {
		return fmt.Errorf("OCI layout %s: %w", dir, err)
	}
	return p.tar.Close()
}

// packer writes one layout.
type packer struct {
	root *os.Root
	tar  *tar.Writer
	done map[digest.Digest]bool
}

func (p *packer) all() error {
	version, err := p.small(ocispec.ImageLayoutFile, maxVersion)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("the directory has no file %s: %w", ocispec.ImageLayoutFile, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		return err
	}
	var l ocispec.ImageLayout
	if err := json.Unmarshal(version, &l); err != nil || !strings.HasPrefix(l.Version, "1.") {
		return fmt.Errorf("%s says version %.20q, only 1 is known: %w", ocispec.ImageLayoutFile, l.Version, errdefs.ErrNotImplemented)
	}
	index, err := p.small(ocispec.ImageIndexFile, maxManifest)
	if err != nil {
		return err
	}
	var doc document
	if err := json.Unmarshal(index, &doc); err != nil {
		return fmt.Errorf("%s: %w: %w", ocispec.ImageIndexFile, errdefs.ErrInvalidArgument, err)
	}
	if err := p.put(ocispec.ImageLayoutFile, version); err != nil {
		return err
	}
	for _, d := range doc.Manifests {
		if !here(d.Platform) {
			continue
		}
		if err := p.image(d, 0); err != nil {
			return err
		}
	}
	return p.put(ocispec.ImageIndexFile, index)
}

// document is an index or a manifest.
type document struct {
	Config    ocispec.Descriptor   `json:"config"`
	Layers    []ocispec.Descriptor `json:"layers"`
	Manifests []ocispec.Descriptor `json:"manifests"`
}

// here reports whether an image of that platform may be for this node. Images for others need not
// be sent: the importer takes this node's.
func here(p *ocispec.Platform) bool {
	if p == nil || p.Architecture == "" || strings.HasPrefix(p.Architecture, "wasm") {
		return true
	}
	archs := map[string][]string{"amd64": {"386"}, "arm64": {"arm"}}[runtime.GOARCH]
	return p.OS == runtime.GOOS && (p.Architecture == runtime.GOARCH || slices.Contains(archs, p.Architecture))
}

// image writes the content of an index's entry, and the entry's own blob last.
func (p *packer) image(d ocispec.Descriptor, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%s: the indexes are nested too deep: %w", d.Digest, errdefs.ErrInvalidArgument)
	}
	path, err := blobPath(d.Digest)
	if err != nil || p.done[d.Digest] {
		return err
	}
	body, err := p.small(path, maxManifest)
	if err != nil {
		return err
	}
	var doc document
	if err := json.Unmarshal(body, &doc); err != nil {
		return fmt.Errorf("manifest %s: %w: %w", d.Digest, errdefs.ErrInvalidArgument, err)
	}
	if err := p.mark(d.Digest); err != nil {
		return err
	}
	for _, m := range doc.Manifests {
		if !here(m.Platform) {
			continue
		}
		// An entry for another platform, or of no image, may be missing: other tools do not copy
		// it.
		if err := p.image(m, depth+1); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for i, b := range append(doc.Layers, doc.Config) {
		if i == len(doc.Layers) && b.Digest == "" {
			continue // an index has none
		}
		if err := p.blob(b); err != nil && !errors.Is(err, fs.ErrNotExist) { // the importer says which image lacks it
			return err
		}
	}
	return p.put(path, body)
}

// mark counts a blob.
func (p *packer) mark(d digest.Digest) error {
	if p.done[d] = true; len(p.done) > maxBlobs {
		return fmt.Errorf("it has more than %d blobs: %w", maxBlobs, errdefs.ErrResourceExhausted)
	}
	return nil
}

// blobPath returns where a blob is.
func blobPath(d digest.Digest) (string, error) {
	if err := d.Validate(); err != nil || d.Algorithm() != digest.SHA256 {
		return "", fmt.Errorf("digest %.100q: only those of sha256 are known: %w", d, errdefs.ErrInvalidArgument)
	}
	return ocispec.ImageBlobsDir + "/sha256/" + d.Encoded(), nil
}

// blob writes a config or a layer.
func (p *packer) blob(d ocispec.Descriptor) error {
	path, err := blobPath(d.Digest)
	if err != nil || p.done[d.Digest] {
		return err
	}
	f, size, err := p.open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if size != d.Size {
		return fmt.Errorf("%s has %d bytes, and its descriptor says %d: %w", path, size, d.Size, errdefs.ErrInvalidArgument)
	}
	if err := p.mark(d.Digest); err != nil {
		return err
	}
	if err := p.tar.WriteHeader(header(path, size)); err != nil {
		return err
	}
	if n, err := io.CopyN(p.tar, f, size); err != nil {
		return fmt.Errorf("%s: %d of %d bytes could be read: %w", path, n, size, err)
	}
	return nil
}

// small reads a file that is not larger than limit.
func (p *packer) small(path string, limit int64) ([]byte, error) {
	f, size, err := p.open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if size > limit {
		return nil, fmt.Errorf("%s has %d bytes, at most %d are read: %w", path, size, limit, errdefs.ErrResourceExhausted)
	}
	return io.ReadAll(io.LimitReader(f, limit))
}

// open opens a regular file. Nothing else is opened: a device may do something when it is, and a
// FIFO waits.
func (p *packer) open(path string) (*os.File, int64, error) {
	fi, err := p.root.Stat(path)
	if err != nil {
		return nil, 0, err
	}
	if fi.Mode().IsRegular() {
		var f *os.File
		if f, err = p.root.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOCTTY, 0); err != nil {
			return nil, 0, err
		}
		if fi, err = f.Stat(); err == nil && fi.Mode().IsRegular() {
			return f, fi.Size(), nil
		}
		_ = f.Close()
	}
	return nil, 0, errors.Join(err, fmt.Errorf("%s is no regular file: %w", path, errdefs.ErrInvalidArgument))
}

func (p *packer) put(path string, body []byte) error {
	if err := p.tar.WriteHeader(header(path, int64(len(body)))); err != nil {
		return err
	}
	_, err := p.tar.Write(body)
	return err
}

func header(path string, size int64) *tar.Header {
	return &tar.Header{Typeflag: tar.TypeReg, Name: path, Size: size, Mode: 0o644}
}

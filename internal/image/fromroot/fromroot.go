// Package fromroot makes archives of images out of tars of root file systems, as docker's import takes them, and tells the two
// apart by their first entries.
//
// It unpacks nothing: the importer of the archive does that. Start at Detect and Archive.
package fromroot

import (
	"archive/tar"
	"bufio"
	"bytes"
	"compress/bzip2"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"runtime"
	"strings"
	"time"

	"github.com/longshore/longshore/internal/decompress"

	"github.com/containerd/errdefs"
	"github.com/klauspost/compress/gzip"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/derive"
)

// Kind is the content of a tar.
type Kind int

// The kinds of content.
const (
	Unknown Kind = iota // no tar, or one without entries
	Images              // an archive of images, as `docker save` and skopeo write it
	Root                // a root file system
)

// HeadBytes is the number of bytes at the beginning of a tar that Detect needs at most: a block of bzip2 has up to 900 kB, and
// cannot be read before its end.
const HeadBytes = 1 << 20

// Detect returns the kind of a tar by its beginning, which may be compressed. Archives of images begin with one of a few
// names, which no root file system has at its top.
func Detect(head []byte) Kind {
	plain, err := plainOf(bufio.NewReader(bytes.NewReader(head)))
	if err != nil {
		return Unknown
	}
	defer func() { _ = plain.Close() }()
	for r := tar.NewReader(plain); ; {
		h, err := r.Next()
		if err != nil {
			return Unknown
		}
		top, _, _ := strings.Cut(strings.TrimPrefix(path.Clean("/"+h.Name), "/"), "/")
		switch {
		case top == "": // the directory itself
		case isImagesEntry(top):
			return Images
		default:
			return Root
		}
	}
}

// isImagesEntry reports whether a name is at the top of archives of images. Docker's older archives, and those of crane, ko
// and Jib, have directories and files that are named by digests.
func isImagesEntry(name string) bool {
	switch name {
	case ocispec.ImageLayoutFile, ocispec.ImageIndexFile, ocispec.ImageBlobsDir, "manifest.json", "repositories":
		return true
	}
	name, _, _ = strings.Cut(strings.TrimPrefix(name, string(digest.SHA256)+":"), ".") // without .tar, .tar.gz, .json
	return digest.NewDigestFromEncoded(digest.SHA256, name).Validate() == nil
}

// plainOf returns the plain content of r.
func plainOf(r *bufio.Reader) (io.ReadCloser, error) {
	if head, _ := r.Peek(len(decompress.Xz)); string(head) == decompress.Xz { // the reader returns the error of Peek again
		return nil, fmt.Errorf("xz is not supported: use xz -dc FILE | longshore import - NAME: %w", errdefs.ErrInvalidArgument)
	}
	return decompress.Reader(r)
}

// ForAgent returns an archive of images as the agent reads it: it knows gzip and zstd, and bzip2 is decompressed here.
func ForAgent(r *bufio.Reader) io.Reader {
	if head, _ := r.Peek(len(decompress.Bzip2)); string(head) == decompress.Bzip2 { // the reader returns the error of Peek again
		return bzip2.NewReader(r)
	}
	return r
}

// Image describes the image of a root file system.
type Image struct {
	Name         string // "": none
	Message      string // for its history
	Changes      []string
	Architecture string // "": the node's
	Variant      string
	Created      time.Time
}

// Config returns the image's config for the digest of its uncompressed layer.
func (i Image) Config(diff digest.Digest) ([]byte, error) {
	base := map[string]string{"os": "linux", "architecture": i.Architecture}
	if i.Architecture == "" {
		base["architecture"] = runtime.GOARCH
	}
	if i.Variant != "" {
		base["variant"] = i.Variant
	}
	raw, err := json.Marshal(base)
	if err != nil {
		return nil, err
	}
	return derive.Config(raw, derive.Layer{DiffID: diff, Created: i.Created, Comment: i.Message}, func(s derive.Settings) error {
		for _, line := range i.Changes {
			if err := s.Instruct(line); err != nil {
				return err
			}
		}
		return nil
	})
}

// Archive writes an archive of an image with one layer, the tar r. It compresses the layer into file, which must be empty,
// because its digest comes first in the archive.
func Archive(w io.Writer, r io.Reader, file io.ReadWriteSeeker, image Image) error {
	if _, err := image.Config(""); err != nil { // before the tar is read
		return err
	}
	plain, err := plainOf(bufio.NewReader(r))
	if err != nil {
		return err
	}
	defer func() { _ = plain.Close() }()
	blob, content := digest.Canonical.Digester(), digest.Canonical.Digester()
	zip, err := gzip.NewWriterLevel(io.MultiWriter(file, blob.Hash()), gzip.BestSpeed)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.MultiWriter(zip, content.Hash()), plain); err != nil {
		return fmt.Errorf("read the root file system: %w", err)
	}
	if err := zip.Close(); err != nil {
		return err
	}
	size, err := file.Seek(0, io.SeekCurrent)
	if err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	config, err := image.Config(content.Digest())
	if err != nil {
		return err
	}
	layer := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageLayerGzip, Digest: blob.Digest(), Size: size}
	return Layout(w, ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: digest.FromBytes(config), Size: int64(len(config))},
		Layers: []ocispec.Descriptor{layer},
	}, config, Blob{layer, file}, image.Name)
}

// Blob is a layer and its content.
type Blob struct {
	ocispec.Descriptor
	Content io.Reader
}

// annotationName is the annotation with an image's full name in archives.
const annotationName = "io.containerd.image.name"

// Layout writes an archive of one image with only one of its layers: the importer must have the others.
func Layout(w io.Writer, manifest ocispec.Manifest, config []byte, layer Blob, name string) error {
	body, err := json.Marshal(manifest)
	if err != nil {
		return err
	}
	top := ocispec.Descriptor{MediaType: manifest.MediaType, Digest: digest.FromBytes(body), Size: int64(len(body))}
	if name != "" {
		top.Annotations = map[string]string{annotationName: name}
	}
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{top}})
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	add := func(name string, size int64, r io.Reader) error {
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o600}); err != nil {
			return err
		}
		_, err := io.Copy(tw, r)
		return err
	}
	for _, f := range []struct {
		name string
		body string
	}{
		{ocispec.ImageLayoutFile, `{"imageLayoutVersion":"1.0.0"}`},
		{"blobs/sha256/" + manifest.Config.Digest.Encoded(), string(config)},
		{"blobs/sha256/" + top.Digest.Encoded(), string(body)},
		{ocispec.ImageIndexFile, string(index)},
	} {
		if err := add(f.name, int64(len(f.body)), strings.NewReader(f.body)); err != nil {
			return err
		}
	}
	if err := add("blobs/sha256/"+layer.Digest.Encoded(), layer.Size, layer.Content); err != nil {
		return err
	}
	return tw.Close()
}

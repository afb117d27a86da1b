// Package artifact has the commands that make OCI artifacts of files, and files of artifacts.
//
// An artifact travels to and from the agent as an archive of an OCI layout. Start reading at NewAdd and NewExtract.
package artifact

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// unknownType is the type of an artifact without one, as oras sets it.
const unknownType = "application/vnd.unknown.artifact.v1"

// imageName is the annotation of containerd's archives for the name of an image.
const imageName = "io.containerd.image.name"

// making is an artifact that is made of files.
type making struct {
	name, kind, fileType string
	annotations          map[string]string // of each layer
	created              time.Time
	paths                []string

	layers   []ocispec.Descriptor
	manifest []byte
}

// read computes the digests of the files and the manifest.
func (m *making) read() error {
	names := map[string]bool{}
	for _, path := range m.paths {
		l, err := m.layer(path)
		if err != nil {
			return err
		}
		title := l.Annotations[ocispec.AnnotationTitle]
		if names[title] {
			return fmt.Errorf("%s: another file has the name %q", path, title)
		}
		names[title] = true
		m.layers = append(m.layers, l)
	}
	var err error
	m.manifest, err = json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, ArtifactType: m.kind, Config: ocispec.DescriptorEmptyJSON,
		Layers: m.layers, Annotations: map[string]string{ocispec.AnnotationCreated: m.created.UTC().Format(time.RFC3339Nano)},
	})
	return err
}

// layer describes a file. Its name without directories is its title, unless the annotations have another.
func (m *making) layer(path string) (ocispec.Descriptor, error) {
	f, err := os.Open(path)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	defer func() { _ = f.Close() }() // it was only read
	if fi, err := f.Stat(); err != nil || !fi.Mode().IsRegular() {
		return ocispec.Descriptor{}, errors.Join(err, fmt.Errorf("%s is no regular file: name each file of a directory", path))
	}
	head := make([]byte, 512) // as many as DetectContentType reads
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return ocispec.Descriptor{}, err
	}
	sum := sha256.New()
	_, _ = sum.Write(head[:n]) // never fails
	rest, err := io.Copy(sum, f)
	if err != nil {
		return ocispec.Descriptor{}, err
	}
	l := ocispec.Descriptor{
		MediaType: m.fileType, Digest: digest.NewDigest(digest.SHA256, sum), Size: int64(n) + rest,
		Annotations: map[string]string{ocispec.AnnotationTitle: filepath.Base(path)},
	}
	if l.MediaType == "" {
		l.MediaType = http.DetectContentType(head[:n])
	}
	maps.Copy(l.Annotations, m.annotations)
	return l, nil
}

// write writes the archive. Preconditions: read has succeeded.
func (m *making) write(w io.Writer) error {
	tw := tar.NewWriter(w)
	desc := ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, ArtifactType: m.kind, Digest: digest.FromBytes(m.manifest), Size: int64(len(m.manifest)),
		Annotations: map[string]string{imageName: m.name},
	}
	index, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{desc}})
	if err != nil {
		return err
	}
	layoutFile, err := json.Marshal(ocispec.ImageLayout{Version: ocispec.ImageLayoutVersion})
	if err != nil {
		return err
	}
	blob := func(d digest.Digest) string { return "blobs/sha256/" + d.Encoded() }
	empty := ocispec.DescriptorEmptyJSON
	for _, f := range []struct {
		name string
		body []byte
	}{{ocispec.ImageLayoutFile, layoutFile}, {ocispec.ImageIndexFile, index}, {blob(empty.Digest), empty.Data}, {blob(desc.Digest), m.manifest}} {
		if err := putEntry(tw, f.name, int64(len(f.body)), bytes.NewReader(f.body)); err != nil {
			return err
		}
	}
	done := map[digest.Digest]bool{empty.Digest: true}
	for i, l := range m.layers {
		if done[l.Digest] {
			continue
		}
		done[l.Digest] = true
		if err := putFile(tw, blob(l.Digest), m.paths[i], l); err != nil {
			return err
		}
	}
	return tw.Close()
}

func putEntry(tw *tar.Writer, name string, size int64, r io.Reader) error {
	if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: size, Mode: 0o444}); err != nil {
		return err
	}
	_, err := io.Copy(tw, r)
	return err
}

// putFile copies a file into the archive, unless it has changed since its digest was computed.
func putFile(tw *tar.Writer, name, path string, l ocispec.Descriptor) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // it was only read
	sum := l.Digest.Verifier()
	if err := putEntry(tw, name, l.Size, io.TeeReader(io.LimitReader(f, l.Size), sum)); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	if !sum.Verified() {
		return fmt.Errorf("%s has changed while it was read: try again", path)
	}
	return nil
}

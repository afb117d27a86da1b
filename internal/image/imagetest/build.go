// Package imagetest builds small images in pure Go, serves them from a registry in the process,
// and has the contract suite of core.Images, which the store and every fake pass.
//
// It does not know the store. Start reading at Image and at Suite.
package imagetest

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
)

// The compressions of a layer.
const (
	Gzip = "gzip"
	Zstd = "zstd"
	None = "none"
)

// File is one entry of a layer. A name that ends in "/" is a directory. Link makes it a symlink,
// Hard a hard link to that entry.
type File struct {
	Name     string
	Body     []byte
	Mode     fs.FileMode // 0 is 0755 for directories, 0644 else; setuid and sticky as in fs
	UID, GID int         // 0 is the test's user
	Link     string
	Hard     string // Mode and owner are the header's, and so the file's
	Xattrs   map[string]string
	ModTime  time.Time // zero is 2020-01-01
}

// Image is an image to build.
type Image struct {
	Layers      [][]File
	Raw         [][]byte // further layers as tars, for content that File cannot describe
	Config      ocispec.ImageConfig
	Health      *core.HealthCheck // as Docker writes it
	Shell       []string          // as Docker writes it
	Platform    ocispec.Platform  // zero is this node's
	Compression string            // Gzip, Zstd or None; "" is Gzip
	Docker      bool              // schema 2 media types instead of OCI's
	Annotations map[string]string // of the manifest
	Created     *time.Time
}

// Built is an image as blobs.
type Built struct {
	ID       digest.Digest // of the config
	Manifest ocispec.Descriptor
	Blobs    map[digest.Digest][]byte // manifest and config too
	Layers   []ocispec.Descriptor
	DiffIDs  []digest.Digest
}

// Tar writes files as one uncompressed layer.
func Tar(files []File) []byte {
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, f := range files {
		hdr := &tar.Header{Name: f.Name, Size: int64(len(f.Body)), Uid: f.UID, Gid: f.GID, Typeflag: tar.TypeReg, ModTime: f.ModTime, Format: tar.FormatPAX}
		if f.UID == 0 && f.GID == 0 {
			hdr.Uid, hdr.Gid = os.Geteuid(), os.Getegid()
		}
		perm := f.Mode
		switch {
		case f.Link != "":
			hdr.Typeflag, hdr.Linkname, hdr.Size = tar.TypeSymlink, f.Link, 0
			perm |= 0o777
		case f.Hard != "":
			hdr.Typeflag, hdr.Linkname, hdr.Size = tar.TypeLink, f.Hard, 0
		case strings.HasSuffix(f.Name, "/"):
			hdr.Typeflag = tar.TypeDir
			if perm == 0 {
				perm = 0o755
			}
		}
		if perm == 0 {
			perm = 0o644
		}
		hdr.Mode = int64(perm.Perm())
		for bit, mode := range map[fs.FileMode]int64{fs.ModeSetuid: 0o4000, fs.ModeSetgid: 0o2000, fs.ModeSticky: 0o1000} {
			if perm&bit != 0 {
				hdr.Mode |= mode
			}
		}
		if hdr.ModTime.IsZero() {
			hdr.ModTime = time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
		}
		for k, v := range f.Xattrs {
			if hdr.PAXRecords == nil {
				hdr.PAXRecords = map[string]string{}
			}
			hdr.PAXRecords["SCHILY.xattr."+k] = v
		}
		must(tw.WriteHeader(hdr))
		if hdr.Typeflag == tar.TypeReg {
			_, err := tw.Write(f.Body)
			must(err)
		}
	}
	must(tw.Close())
	return buf.Bytes()
}

// must is for writes to memory, which cannot fail.
func must(err error) {
	if err != nil {
		panic(err)
	}
}

// Compress compresses a layer.
func Compress(data []byte, how string) []byte {
	var buf bytes.Buffer
	var w io.WriteCloser
	switch how {
	case None:
		return data
	case Zstd:
		zw, err := zstd.NewWriter(&buf)
		must(err)
		w = zw
	default:
		w = gzip.NewWriter(&buf)
	}
	_, err := w.Write(data)
	must(err)
	must(w.Close())
	return buf.Bytes()
}

func (i Image) mediaTypes() (manifest, config, layer string) {
	if i.Docker {
		layer = "application/vnd.docker.image.rootfs.diff.tar.gzip"
		switch i.Compression {
		case None:
			layer = "application/vnd.docker.image.rootfs.diff.tar"
		case Zstd:
			layer = "application/vnd.docker.image.rootfs.diff.tar.zstd"
		}
		return "application/vnd.docker.distribution.manifest.v2+json", "application/vnd.docker.container.image.v1+json", layer
	}
	layer = ocispec.MediaTypeImageLayerGzip
	switch i.Compression {
	case None:
		layer = ocispec.MediaTypeImageLayer
	case Zstd:
		layer = ocispec.MediaTypeImageLayerZstd
	}
	return ocispec.MediaTypeImageManifest, ocispec.MediaTypeImageConfig, layer
}

// Build makes the image's blobs. The same Image gives the same digests.
func (i Image) Build() Built {
	b := Built{Blobs: map[digest.Digest][]byte{}}
	manifestType, configType, layerType := i.mediaTypes()
	tars := make([][]byte, 0, len(i.Layers)+len(i.Raw))
	for _, l := range i.Layers {
		tars = append(tars, Tar(l))
	}
	tars = append(tars, i.Raw...)
	for _, plain := range tars {
		b.DiffIDs = append(b.DiffIDs, digest.FromBytes(plain))
		b.Layers = append(b.Layers, b.add(layerType, Compress(plain, i.Compression)))
	}
	platform := i.Platform
	if platform.Architecture == "" {
		platform = ocispec.Platform{OS: "linux", Architecture: runtime.GOARCH}
	}
	plain := ocispec.Image{Created: i.Created, Platform: platform, Config: i.Config, RootFS: ocispec.RootFS{Type: "layers", DiffIDs: b.DiffIDs}}
	var config any = plain
	if i.Health != nil || i.Shell != nil {
		config = struct {
			ocispec.Image
			Config dockerConfig `json:"config"`
		}{plain, dockerConfig{i.Config, i.Health, i.Shell}}
	}
	cdesc := b.add(configType, encode(config))
	b.ID = cdesc.Digest
	b.Manifest = b.add(manifestType, encode(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: manifestType, Config: cdesc, Layers: b.Layers, Annotations: i.Annotations,
	}))
	b.Manifest.Platform = &platform
	return b
}

// dockerConfig is the part of a config that says how to run the image.
type dockerConfig struct {
	ocispec.ImageConfig
	Healthcheck *core.HealthCheck `json:",omitempty"`
	Shell       []string          `json:",omitempty"`
}

func encode(v any) []byte {
	data, err := json.Marshal(v)
	must(err)
	return data
}

func (b *Built) add(mediaType string, data []byte) ocispec.Descriptor {
	d := digest.FromBytes(data)
	b.Blobs[d] = data
	return ocispec.Descriptor{MediaType: mediaType, Digest: d, Size: int64(len(data))}
}

// Index combines images of several platforms in an index, returned as a Built with the index as its
// Manifest.
func Index(images ...Built) Built {
	all := Built{Blobs: map[digest.Digest][]byte{}}
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	for _, b := range images {
		for d, data := range b.Blobs {
			all.Blobs[d] = data
		}
		index.Manifests = append(index.Manifests, b.Manifest)
	}
	all.Manifest = all.add(ocispec.MediaTypeImageIndex, encode(index))
	return all
}

// WriteOCI writes an OCI layout tar with one entry per name.
func WriteOCI(w io.Writer, images map[string]Built) error {
	tw := tar.NewWriter(w)
	index := ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex}
	done := map[digest.Digest]bool{}
	if err := put(tw, ocispec.ImageLayoutFile, []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	for name, b := range images {
		for d, data := range b.Blobs {
			if done[d] {
				continue
			}
			done[d] = true
			if err := put(tw, "blobs/sha256/"+d.Encoded(), data); err != nil {
				return err
			}
		}
		desc := b.Manifest
		if name != "" {
			desc.Annotations = map[string]string{"io.containerd.image.name": name}
		}
		index.Manifests = append(index.Manifests, desc)
	}
	if err := put(tw, ocispec.ImageIndexFile, encode(index)); err != nil {
		return err
	}
	return tw.Close()
}

// WriteDocker writes a docker-save tar. Layers are stored as they are.
func WriteDocker(w io.Writer, images map[string]Built) error {
	type entry struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	tw := tar.NewWriter(w)
	var list []entry
	done := map[string]bool{}
	for name, b := range images {
		e := entry{Config: b.ID.Encoded() + ".json"}
		if name != "" {
			e.RepoTags = []string{name}
		}
		files := map[string][]byte{e.Config: b.Blobs[b.ID]}
		for _, l := range b.Layers {
			file := l.Digest.Encoded() + "/layer.tar"
			e.Layers = append(e.Layers, file)
			files[file] = b.Blobs[l.Digest]
		}
		for file, data := range files {
			if done[file] {
				continue
			}
			done[file] = true
			if err := put(tw, file, data); err != nil {
				return err
			}
		}
		list = append(list, e)
	}
	if err := put(tw, "manifest.json", encode(list)); err != nil {
		return err
	}
	return tw.Close()
}

func put(tw *tar.Writer, name string, data []byte) error {
	if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data)), Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err := tw.Write(data)
	return err
}

// Busybox returns the files of an image with a static busybox as /bin/busybox, the given applets
// linked to it, and the directories that programs usually expect.
func Busybox(path string, applets ...string) ([]File, error) {
	body, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read busybox: %w", err)
	}
	files := []File{
		{Name: "bin/"},
		{Name: "dev/"},
		{Name: "etc/"},
		{Name: "proc/"},
		{Name: "sys/"},
		{Name: "root/", Mode: 0o700},
		{Name: "tmp/", Mode: 0o777 | fs.ModeSticky},
		{Name: "run/"},
		{Name: "var/"},
		{Name: "bin/busybox", Body: body, Mode: 0o755},
		{Name: "etc/passwd", Body: []byte("root:x:0:0:root:/root:/bin/sh\nwww-data:x:33:33::/var/www:/bin/false\nnobody:x:65534:65534:nobody:/:/bin/false\n")},
		{Name: "etc/group", Body: []byte("root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\n")},
	}
	for _, a := range applets {
		files = append(files, File{Name: "bin/" + a, Link: "busybox"})
	}
	return files, nil
}

// WithLayers returns an image that is inconsistent: a's config over b's layers.
func WithLayers(a, b Built) Built {
	lie := Built{ID: a.ID, Blobs: map[digest.Digest][]byte{}, Layers: b.Layers, DiffIDs: a.DiffIDs}
	for _, m := range []map[digest.Digest][]byte{a.Blobs, b.Blobs} {
		for d, data := range m {
			lie.Blobs[d] = data
		}
	}
	config := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig, Digest: a.ID, Size: int64(len(a.Blobs[a.ID]))}
	lie.Manifest = lie.add(ocispec.MediaTypeImageManifest, encode(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest, Config: config, Layers: b.Layers,
	}))
	return lie
}

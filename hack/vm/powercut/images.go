package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
)

// images is how many there are: the first is the one that containers run all
// the time, the others come and go.
const images = 6

const registryAddr = "127.0.0.1:5000"

func imageRef(i int) string { return fmt.Sprintf("%s/power/i%d:latest", registryAddr, i) }

// makeImages writes blobs and manifests below dir as the registry serves them.
// Every image holds a list of the sums of its files and checks it when run, so
// a file that a cut left empty or torn shows as an exit code. All share a first
// layer; the own layers have one big and many small files.
func makeImages(dir string) error {
	shell, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return fmt.Errorf("images need busybox-static: %w", err)
	}
	rnd := rand.New(rand.NewPCG(20, 20)) //nolint:gosec // the same images every time
	first := files{{"bin/busybox", 0o755, shell}}
	first.addRandom(rnd, "shared", 150, 4<<10)
	base, baseDiff, err := putLayer(dir, first)
	if err != nil {
		return err
	}
	for i := range images {
		var own files
		own.addRandom(rnd, fmt.Sprintf("own%d", i), 150, 8<<10)
		own = append(own, file{fmt.Sprintf("big%d", i), 0o644, random(rnd, (1+2*i)<<20)})
		var sums strings.Builder
		for _, f := range append(first[:len(first):len(first)], own...) {
			sum := sha256.Sum256(f.data)
			fmt.Fprintf(&sums, "%s  /%s\n", hex.EncodeToString(sum[:]), f.name)
		}
		own = append(own, file{"sums", 0o644, []byte(sums.String())})
		top, topDiff, err := putLayer(dir, own)
		if err != nil {
			return err
		}
		config := imagespec.Image{
			Platform: imagespec.Platform{Architecture: "amd64", OS: "linux"},
			Config:   imagespec.ImageConfig{Cmd: []string{"/bin/busybox", "sha256sum", "-c", "-s", "/sums"}},
			RootFS:   imagespec.RootFS{Type: "layers", DiffIDs: []digest.Digest{baseDiff, topDiff}},
		}
		c, err := putJSON(dir, imagespec.MediaTypeImageConfig, config)
		if err != nil {
			return err
		}
		manifest, err := putJSON(dir, imagespec.MediaTypeImageManifest, imagespec.Manifest{
			Versioned: specs.Versioned{SchemaVersion: 2},
			MediaType: imagespec.MediaTypeImageManifest,
			Config:    c,
			Layers:    []imagespec.Descriptor{base, top},
		})
		if err != nil {
			return err
		}
		tag := filepath.Join(dir, "tags", fmt.Sprintf("i%d", i))
		if err := put(tag, []byte(manifest.Digest)); err != nil {
			return err
		}
	}
	return nil
}

type file struct {
	name string
	mode int64
	data []byte
}

type files []file

func (f *files) addRandom(rnd *rand.Rand, dir string, n, size int) {
	for i := range n {
		*f = append(*f, file{fmt.Sprintf("%s/%03d", dir, i), 0o644, random(rnd, 1+rnd.IntN(size))})
	}
}

func random(rnd *rand.Rand, n int) []byte {
	p := make([]byte, n)
	for i := range p {
		p[i] = byte(rnd.Uint32())
	}
	return p
}

func putLayer(dir string, content files) (imagespec.Descriptor, digest.Digest, error) {
	var plain bytes.Buffer
	tw := tar.NewWriter(&plain)
	seen := map[string]bool{}
	for _, f := range content {
		if d := filepath.Dir(f.name); d != "." && !seen[d] {
			seen[d] = true
			if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: d + "/", Mode: 0o755, ModTime: time.Unix(1, 0)}); err != nil {
				return imagespec.Descriptor{}, "", err
			}
		}
		if err := tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: time.Unix(1, 0)}); err != nil {
			return imagespec.Descriptor{}, "", err
		}
		if _, err := tw.Write(f.data); err != nil {
			return imagespec.Descriptor{}, "", err
		}
	}
	if err := tw.Close(); err != nil {
		return imagespec.Descriptor{}, "", err
	}
	diff := digest.FromBytes(plain.Bytes())
	var packed bytes.Buffer
	zw := gzip.NewWriter(&packed)
	if _, err := zw.Write(plain.Bytes()); err != nil {
		return imagespec.Descriptor{}, "", err
	}
	if err := zw.Close(); err != nil {
		return imagespec.Descriptor{}, "", err
	}
	d, err := putBlob(dir, imagespec.MediaTypeImageLayerGzip, packed.Bytes())
	return d, diff, err
}

func putJSON(dir, mediaType string, v any) (imagespec.Descriptor, error) {
	p, err := json.Marshal(v)
	if err != nil {
		return imagespec.Descriptor{}, err
	}
	return putBlob(dir, mediaType, p)
}

func putBlob(dir, mediaType string, p []byte) (imagespec.Descriptor, error) {
	d := imagespec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(p), Size: int64(len(p))}
	return d, put(filepath.Join(dir, "blobs", d.Digest.String()), p)
}

func put(path string, p []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, p, 0o644)
}

// registry serves the files of makeImages to all clients.
func registry(dir string) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v2/{$}", func(http.ResponseWriter, *http.Request) {})
	mux.HandleFunc("GET /v2/power/{name}/manifests/{ref}", func(w http.ResponseWriter, r *http.Request) {
		ref := r.PathValue("ref")
		if ref == "latest" {
			p, err := os.ReadFile(filepath.Join(dir, "tags", filepath.Base(r.PathValue("name"))))
			if err != nil {
				http.NotFound(w, r)
				return
			}
			ref = string(p)
		}
		w.Header().Set("Content-Type", imagespec.MediaTypeImageManifest)
		w.Header().Set("Docker-Content-Digest", ref)
		http.ServeFile(w, r, filepath.Join(dir, "blobs", filepath.Base(ref)))
	})
	mux.HandleFunc("GET /v2/power/{name}/blobs/{digest}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeFile(w, r, filepath.Join(dir, "blobs", filepath.Base(r.PathValue("digest"))))
	})
	return mux
}

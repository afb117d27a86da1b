package layout

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// dir is an OCI layout that a test fills.
type dir struct {
	t    testing.TB
	path string
}

func newDir(t testing.TB) dir {
	t.Helper()
	d := dir{t, t.TempDir()}
	d.write("oci-layout", []byte(`{"imageLayoutVersion":"1.0.0"}`))
	return d
}

func (d dir) write(name string, body []byte) {
	d.t.Helper()
	path := filepath.Join(d.path, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, body, 0o600)); err != nil {
		d.t.Fatal(err)
	}
}

// blob writes a blob and returns its descriptor.
func (d dir) blob(mediaType, body string) ocispec.Descriptor {
	d.t.Helper()
	desc := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromString(body), Size: int64(len(body))}
	d.write("blobs/sha256/"+desc.Digest.Encoded(), []byte(body))
	return desc
}

func encoded(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// image writes an image of one layer.
func (d dir) image(layer string) (manifest, blob ocispec.Descriptor) {
	d.t.Helper()
	blob = d.blob(ocispec.MediaTypeImageLayer, layer)
	config := d.blob(ocispec.MediaTypeImageConfig, "{}"+layer)
	return d.blob(ocispec.MediaTypeImageManifest, encoded(d.t, ocispec.Manifest{Config: config, Layers: []ocispec.Descriptor{blob}})), blob
}

func (d dir) index(list ...ocispec.Descriptor) {
	d.t.Helper()
	d.write("index.json", []byte(encoded(d.t, ocispec.Index{Manifests: list})))
}

// read returns the names in the archive of the layout.
func (d dir) read() (names []string, err error) {
	r := Archive(d.path)
	defer func() { _ = r.Close() }()
	tr := tar.NewReader(r)
	for {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return names, nil
		}
		if err != nil {
			return names, err
		}
		if _, err := io.Copy(io.Discard, tr); err != nil {
			return names, err
		}
		names = append(names, strings.TrimPrefix(h.Name, "blobs/sha256/"))
	}
}

func TestALayoutIsReadAsFarAsItIsForThisNode(t *testing.T) {
	d := newDir(t)
	one, oneLayer := d.image("one")
	two, twoLayer := d.image("two")
	other, otherLayer := d.image("other")
	other.Platform = &ocispec.Platform{OS: "linux", Architecture: "mips"}
	nested := d.blob(ocispec.MediaTypeImageIndex, encoded(t, ocispec.Index{Manifests: []ocispec.Descriptor{
		two, other, {MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString("not copied"), Size: 3},
	}}))
	stray := d.blob(ocispec.MediaTypeImageLayer, "stray")
	d.index(one, nested, one)
	names, err := d.read()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []ocispec.Descriptor{one, oneLayer, two, twoLayer, nested} {
		if !slices.Contains(names, want.Digest.Encoded()) {
			t.Errorf("%s is not in the archive", want.Digest)
		}
	}
	for _, no := range []ocispec.Descriptor{other, otherLayer, stray} {
		if slices.Contains(names, no.Digest.Encoded()) {
			t.Errorf("%s is in the archive", no.Digest)
		}
	}
	if len(names) != 9 || names[0] != "oci-layout" || names[8] != "index.json" {
		t.Errorf("the archive has %v", names)
	}
}

func TestHostileLayouts(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(outside, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	of := func(layer ocispec.Descriptor) func(d dir) {
		return func(d dir) {
			d.index(d.blob(ocispec.MediaTypeImageManifest, encoded(t, ocispec.Manifest{Layers: []ocispec.Descriptor{layer}})))
		}
	}
	instead := func(put func(path string) error) func(d dir) {
		return func(d dir) {
			m, layer := d.image("layer")
			d.index(m)
			path := filepath.Join(d.path, "blobs/sha256", layer.Digest.Encoded())
			if err := errors.Join(os.Remove(path), put(path)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		spoil func(d dir)
		says  string
	}{
		"no layout":          {func(d dir) { _ = os.Remove(filepath.Join(d.path, "oci-layout")) }, "has no file oci-layout"},
		"a later version":    {func(d dir) { d.write("oci-layout", []byte(`{"imageLayoutVersion":"2.0.0"}`)) }, `version "2.0.0"`},
		"no index":           {func(dir) {}, "index.json"},
		"an index of text":   {func(d dir) { d.write("index.json", []byte("text")) }, "index.json"},
		"a huge index":       {func(d dir) { d.write("index.json", make([]byte, maxManifest+1)) }, "at most"},
		"a huge version":     {func(d dir) { d.write("oci-layout", make([]byte, maxVersion+1)) }, "at most"},
		"a digest of dots":   {of(ocispec.Descriptor{Digest: "sha256:../../../../../../etc/passwd"}), "only those of sha256"},
		"a manifest of dots": {func(d dir) { d.index(ocispec.Descriptor{Digest: "../index.json"}) }, "only those of sha256"},
		"sha512":             {of(ocispec.Descriptor{Digest: digest.Digest("sha512:" + strings.Repeat("0", 128))}), "only those of sha256"},
		"no manifest":        {func(d dir) { d.index(ocispec.Descriptor{Digest: digest.FromString("gone")}) }, "no such file"},
		"a size that lies": {func(d dir) {
			layer := d.blob(ocispec.MediaTypeImageLayer, "layer")
			layer.Size = 1 << 40
			of(layer)(d)
		}, "5 bytes, and its descriptor says 1099511627776"},
		"a link out":       {instead(func(path string) error { return os.Symlink(outside, path) }), "escapes"},
		"a relative link":  {instead(func(path string) error { return os.Symlink("../../../../../../../../../../etc/passwd", path) }), "escapes"},
		"a link to itself": {instead(func(path string) error { return os.Symlink(filepath.Base(path), path) }), "too many levels"},
		"a FIFO":           {instead(func(path string) error { return syscall.Mkfifo(path, 0o600) }), "no regular file"},
		"a directory":      {instead(func(path string) error { return os.Mkdir(path, 0o700) }), "no regular file"},
		"a directory's link": {func(d dir) {
			_ = os.Symlink(filepath.Dir(outside), filepath.Join(d.path, "blobs"))
			d.index(ocispec.Descriptor{Digest: digest.FromString("secret")})
		}, "escapes"},
		"an index in itself": {func(d dir) {
			last, _ := d.image("layer")
			for range maxDepth + 2 {
				last = d.blob(ocispec.MediaTypeImageIndex, encoded(t, ocispec.Index{Manifests: []ocispec.Descriptor{last}}))
			}
			d.index(last)
		}, "nested too deep"},
		"too many blobs": {func(d dir) {
			var layers []ocispec.Descriptor
			one := d.blob(ocispec.MediaTypeImageLayer, "")
			for i := range maxBlobs + 1 {
				hard := ocispec.Descriptor{Digest: digest.FromString(fmt.Sprint(i))}
				if err := os.Link(filepath.Join(d.path, "blobs/sha256", one.Digest.Encoded()), filepath.Join(d.path, "blobs/sha256", hard.Digest.Encoded())); err != nil {
					t.Fatal(err)
				}
				layers = append(layers, hard)
			}
			d.index(d.blob(ocispec.MediaTypeImageManifest, encoded(t, ocispec.Manifest{Layers: layers})))
		}, "more than"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDir(t)
			c.spoil(d)
			if _, err := d.read(); err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v; want an error that says %q", err, c.says)
			}
		})
	}
}

// FuzzIndex reads layouts with an index of any bytes: it sends only files of the layout, and
// nothing hangs.
func FuzzIndex(f *testing.F) {
	d := newDir(f)
	m, _ := d.image("layer")
	f.Add([]byte(encoded(f, ocispec.Index{Manifests: []ocispec.Descriptor{m}})))
	f.Add([]byte(`{"manifests":[{"digest":"sha256:../x"},{"digest":"` + m.Digest.String() + `","size":-1,"platform":{"os":"x","architecture":"y"}}]}`))
	f.Fuzz(func(t *testing.T, index []byte) {
		d := dir{t, d.path}
		d.write("index.json", index)
		names, _ := d.read()
		for _, n := range names {
			if n != "oci-layout" && n != "index.json" && len(n) != 64 {
				t.Errorf("the archive has %q", n)
			}
		}
	})
}

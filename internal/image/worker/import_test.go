package worker

import (
	"archive/tar"
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// archived returns an archive with these files; empty ones are left out.
func archived(tb testing.TB, files map[string][]byte) []byte {
	tb.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for name, data := range files {
		if len(data) == 0 {
			continue
		}
		if err := tw.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}); err != nil {
			tb.Fatal(err)
		}
		if _, err := tw.Write(data); err != nil {
			tb.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		tb.Fatal(err)
	}
	return buf.Bytes()
}

// FuzzImport reads archives with arbitrary JSON: OCI's layout and index, docker's list of images,
// and a blob that they may name as manifest, index or config.
func FuzzImport(f *testing.F) {
	const blob = `{"schemaVersion":2,"config":{"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":0},"layers":[]}`
	d := digest.FromString(blob).String()
	f.Add([]byte(`{"imageLayoutVersion":"1.0.0"}`), []byte(`{"schemaVersion":2,"manifests":[{"mediaType":"application/vnd.oci.image.manifest.v1+json","digest":"`+d+`","size":137,"annotations":{"io.containerd.image.name":"a/b:c"}}]}`), []byte{}, []byte(blob))
	f.Add([]byte{}, []byte{}, []byte(`[{"Config":"config.json","RepoTags":["a:b"],"Layers":["layer.tar"]}]`), []byte(`{"rootfs":{"diff_ids":["sha256:00"]},"os":"linux","architecture":"amd64"}`))
	f.Add([]byte{}, []byte{}, []byte(`[{"Config":"../../etc/passwd","Layers":["../x"]}]`), []byte(`{}`))
	f.Add([]byte(`{"imageLayoutVersion":"9"}`), []byte(`{"manifests":[{"digest":"../../x","platform":{"os":"linux"}}]}`), []byte(`null`), []byte(`null`))
	f.Fuzz(func(t *testing.T, layout, index, manifest, blob []byte) {
		data := archived(t, map[string][]byte{
			"oci-layout": layout, "index.json": index, "manifest.json": manifest, "config.json": blob,
			"blobs/sha256/" + digest.FromBytes(blob).Encoded(): blob,
		})
		images, err := fuzzed(t).Import(t.Context(), nobody{}, bytes.NewReader(data))
		if err == nil && len(images) == 0 {
			t.Error("neither images nor an error")
		}
		for _, i := range images {
			for _, d := range []digest.Digest{i.Manifest.Digest, i.Config.Digest} {
				if d.Validate() != nil {
					t.Errorf("image with the digest %q", d)
				}
			}
		}
	})
}

// FuzzNamed lists the index made from an archive's JSON.
func FuzzNamed(f *testing.F) {
	f.Add([]byte(`{"manifests":[{"digest":"sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855","size":1,"annotations":{"org.opencontainers.image.ref.name":"latest"}}]}`))
	f.Add([]byte(`{"manifests":[{"platform":{"os":"plan9"}},{"annotations":{"io.containerd.image.name":"x"}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		desc := ocispec.Descriptor{Digest: digest.FromBytes(data), Size: int64(len(data))}
		if len(data) == 0 {
			return
		}
		w := fuzzed(t)
		if err := w.write(t.Context(), desc, data); err != nil {
			t.Fatal(err)
		}
		list, err := w.named(t.Context(), desc)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) && !errdefs.IsNotFound(err) {
				t.Errorf("class of %v", errors.Unwrap(err))
			}
			return
		}
		for _, m := range list {
			if name := archiveName(m); name != "" && !strings.ContainsAny(name, "/:@") && m.Annotations["io.containerd.image.name"] == "" {
				t.Errorf("a bare tag %q names an image", name)
			}
		}
	})
}

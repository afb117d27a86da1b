package image_test

import (
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// qemu is binfmt_misc's text of Debian's handler for s390x programs, and python of a handler that
// is none for programs.
const (
	qemu = "enabled\ninterpreter /usr/bin/qemu-s390x-static\nflags: OCF\noffset 0\n" +
		"magic 7f454c4602020100000000000000000000020016\nmask ffffffffffffff00fffffffffffffffffffeffff\n"
	python = "enabled\ninterpreter /usr/bin/python3.11\nflags: \noffset 0\nmagic a70d0d0a\n"
)

// binfmt makes a directory as binfmt_misc shows its handlers.
func binfmt(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestAForeignImageIsToldBeforeItRuns pulls, imports and checks out an image of another platform,
// on nodes with and without a handler for it.
func TestAForeignImageIsToldBeforeItRuns(t *testing.T) {
	foreign := imagetest.Image{Layers: [][]imagetest.File{{{Name: "a"}}}, Platform: ocispec.Platform{OS: "linux", Architecture: "s390x"}}.Build()
	bare := foreign // no index names its platform
	bare.Manifest.Platform = nil
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/foreign", "v1", bare)
	for name, node := range map[string]struct {
		files map[string]string
		runs  bool
	}{
		"no binfmt_misc":       {map[string]string{}, false},
		"another handler":      {map[string]string{"status": "enabled\n", "register": "", "python3.11": python}, false},
		"a handler":            {map[string]string{"status": "enabled\n", "register": "", "qemu-s390x": qemu, "python3.11": python}, true},
		"a disabled handler":   {map[string]string{"status": "enabled\n", "qemu-s390x": "disabled" + strings.TrimPrefix(qemu, "enabled")}, false},
		"all are disabled":     {map[string]string{"status": "disabled\n", "qemu-s390x": qemu}, false},
		"a handler of strange": {map[string]string{"status": "enabled\n", "x": "enabled\noffset z\nmagic 7f", "y": "enabled\nmagic zz\n", "z": "enabled\nextension .exe\n"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := openWith(t, image.Options{Root: dir, InProcess: true, Binfmt: binfmt(t, node.files)})
			_, err := s.Pull(t.Context(), "cli", ref, core.PullOptions{Always: true})
			if node.runs != (err == nil) {
				t.Errorf("without a platform: %v", err)
			}
			if !node.runs {
				for _, want := range []string{"linux/s390x", "this node is linux/", "--platform linux/s390x", "binfmt_misc"} {
					if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), want) {
						t.Errorf("%v; want NotFound with %q", err, want)
					}
				}
			}
			img, err := s.Pull(t.Context(), "cli", ref, core.PullOptions{Always: true, Platform: "linux/s390x"})
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Checkout(t.Context(), core.CheckoutRequest{Container: "c", Image: img.ID})
			if node.runs {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "linux/s390x") || !strings.Contains(err.Error(), "qemu-user-static") {
				t.Errorf("checkout: %v; want FailedPrecondition with the platform and what to do", err)
			}
			if _, err := os.Lstat(filepath.Join(dir, "checkouts", "c")); err == nil {
				t.Error("a refused checkout has left its directory")
			}
		})
	}
}

// relayered returns b with another media type and addresses for its only layer, which is left out
// of the blobs when keep is false.
func relayered(b imagetest.Built, mediaType string, urls []string, keep bool) imagetest.Built {
	var m ocispec.Manifest
	if err := json.Unmarshal(b.Blobs[b.Manifest.Digest], &m); err != nil {
		panic(err)
	}
	m.Layers[0].MediaType, m.Layers[0].URLs = mediaType, urls
	body, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	blobs := map[digest.Digest][]byte{}
	for d, data := range b.Blobs {
		if d != b.Manifest.Digest && (keep || d != m.Layers[0].Digest) {
			blobs[d] = data
		}
	}
	b.Manifest.Digest, b.Manifest.Size, b.Blobs = digest.FromBytes(body), int64(len(body)), blobs
	blobs[b.Manifest.Digest] = body
	return b
}

// TestLayersThatAreElsewhere pulls images with foreign, nondistributable and encrypted layers.
func TestLayersThatAreElsewhere(t *testing.T) {
	asked := make(chan string, 100)
	other := imagetest.NewRegistry(t) // the address in the manifest, which nobody may ask
	other.Intercept(func(_ http.ResponseWriter, r *http.Request, _ http.Handler) { asked <- r.URL.Path })
	url := "http://" + other.Host + "/layer.tar.gz"
	reg := imagetest.NewRegistry(t)
	for i, c := range []struct {
		mediaType string
		urls      []string
		there     bool
		refused   []string
	}{
		{"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", []string{url}, true, nil},
		{"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", nil, true, nil},
		{"application/vnd.oci.image.layer.v1.tar+gzip", []string{url}, true, nil},
		{"application/vnd.docker.image.rootfs.foreign.diff.tar.gzip", []string{url}, false, []string{url, "registry alone"}},
		{"application/vnd.oci.image.layer.nondistributable.v1.tar+gzip", nil, false, []string{"the image's maker has it"}},
		{"application/vnd.oci.image.layer.v1.tar+gzip+encrypted", nil, true, []string{"is encrypted", "skopeo copy --decryption-key"}},
		{"application/vnd.oci.image.layer.v1.tar+encrypted", nil, true, []string{"is encrypted"}},
		{"application/vnd.cncf.helm.chart.content.v1.tar+gzip", nil, true, []string{"cannot be unpacked"}},
	} {
		b := imagetest.Image{Layers: [][]imagetest.File{{{Name: "a", Body: []byte{byte(i)}}}}}.Build()
		layer := b.Layers[0].Digest.String()
		ref := reg.Push("team/elsewhere", "v"+string(rune('a'+i)), relayered(b, c.mediaType, c.urls, c.there))
		s := openWith(t, image.Options{Root: t.TempDir(), InProcess: true})
		img, err := s.Pull(t.Context(), "cli", ref, core.PullOptions{})
		if c.refused == nil {
			if err != nil || img.ID != b.ID {
				t.Errorf("%s: %v, %v", c.mediaType, img.ID, err)
			}
			continue
		}
		for _, want := range append(c.refused, layer) {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: %v; want it to say %q", c.mediaType, err, want)
			}
		}
	}
	select {
	case path := <-asked:
		t.Errorf("the address that a manifest names was asked for %s", path)
	default:
	}
}

package image_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// TestImportRoot makes images of root file systems, also of another platform, by the confined worker.
func TestImportRoot(t *testing.T) {
	s := open(t, t.TempDir())
	root := imagetest.Tar([]imagetest.File{{Name: "bin/"}, {Name: "bin/sh", Body: []byte("x"), Mode: 0o755}})
	for _, how := range []string{imagetest.None, imagetest.Gzip, imagetest.Zstd} {
		opts := core.RootImport{Name: "made:" + how, Message: "why", Changes: []string{"CMD /bin/sh", "LABEL a=b"}}
		img, err := s.ImportRoot(t.Context(), "cli", bytes.NewReader(imagetest.Compress(root, how)), opts)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(img.Names, []string{"docker.io/library/made:" + how}) || img.Config.Config.Labels["a"] != "b" || img.Config.Architecture != runtime.GOARCH {
			t.Errorf("%s: %+v", how, img)
		}
		if d := img.Config.RootFS.DiffIDs; len(d) != 1 || d[0] != digest.FromBytes(root) || img.Config.History[0].Comment != "why" {
			t.Errorf("%s: layers %v, history %v", how, d, img.Config.History)
		}
	}
	img, err := s.ImportRoot(t.Context(), "cli", bytes.NewReader(root), core.RootImport{Platform: "linux/arm/v7"})
	if err != nil || len(img.Names) != 0 || img.Config.Architecture != "arm" || img.Config.Variant != "v7" {
		t.Errorf("of another platform: %+v, %v", img, err)
	}
}

// TestImportRootRefuses leaves nothing of a root file system that cannot be read, and says why.
func TestImportRootRefuses(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	root := imagetest.Tar([]imagetest.File{{Name: "a", Body: []byte("x")}})
	for _, c := range []struct {
		body []byte
		opts core.RootImport
		want string
	}{
		{[]byte("\xfd7zXZ\x00 and so on"), core.RootImport{}, "xz"},
		{imagetest.Compress(root, imagetest.Gzip)[:40], core.RootImport{}, "unexpected EOF"},
		{root, core.RootImport{Changes: []string{"RUN x"}}, "RUN"},
		{root, core.RootImport{Name: "a@sha256:" + strings.Repeat("a", 64)}, "digest"},
		{root, core.RootImport{Platform: "windows/amd64"}, "linux/"},
		{root[:512], core.RootImport{}, ""},
		{[]byte(strings.Repeat("no tar ", 200)), core.RootImport{}, ""},
	} {
		_, err := s.ImportRoot(t.Context(), "cli", bytes.NewReader(c.body), c.opts)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.20q %+v: %v, want InvalidArgument with %q", c.body, c.opts, err, c.want)
		}
	}
	if list, err := s.List(t.Context(), "cli"); err != nil || len(list) != 0 {
		t.Errorf("it kept %v, %v", list, err)
	}
	if left, err := os.ReadDir(filepath.Join(dir, "content", "ingest")); err != nil || len(left) != 0 {
		t.Errorf("it left %v, %v", left, err)
	}
}

// TestResolve: a registry's answer about an index and about an image, without anything stored.
func TestResolve(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	one := imagetest.Image{Layers: [][]imagetest.File{{{Name: "a", Body: []byte("a")}}}}
	other := one
	other.Platform.OS, other.Platform.Architecture, other.Platform.Variant = "linux", "arm", "v6"
	index := imagetest.Index(one.Build(), other.Build())
	single, several := reg.Push("lib/one", "v1", other.Build()), reg.Push("lib/many", "v1", index)
	s := open(t, t.TempDir())
	got, err := s.Resolve(t.Context(), several, core.PullOptions{})
	if err != nil || got.Target.Digest != index.Manifest.Digest || len(got.Platforms) != 2 || got.Platforms[1].Variant != "v6" {
		t.Errorf("index: %+v, %v", got, err)
	}
	if got, err = s.Resolve(t.Context(), single, core.PullOptions{}); err != nil || len(got.Platforms) != 1 || got.Platforms[0].Variant != "v6" || got.Target.Size == 0 {
		t.Errorf("image: %+v, %v", got, err)
	}
	if _, err := s.Resolve(t.Context(), reg.Host+"/lib/one:absent", core.PullOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("absent: %v", err)
	}
	reg.SetBlob(other.Build().ID, []byte(`{"os":"linux","architecture":"s390x"}`))
	if _, err := s.Resolve(t.Context(), single, core.PullOptions{}); !errdefs.IsDataLoss(err) && !errdefs.IsUnavailable(err) {
		t.Errorf("a config of other content: %v", err)
	}
}

// TestThePullNamesItsLayersFirst: a pull reports all of its layers in their order before any bytes, and reports layers of the store as existing.
func TestThePullNamesItsLayersFirst(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	b := imagetest.Image{Layers: [][]imagetest.File{
		{{Name: "a", Body: bytes.Repeat([]byte("a"), 1<<20)}}, {{Name: "b", Body: []byte("b")}}, {{Name: "c", Body: []byte("c")}},
	}}.Build()
	name := reg.Push("lib/app", "v1", b)
	s := open(t, t.TempDir())
	var first []digest.Digest
	last := map[digest.Digest]core.PullProgress{}
	full := map[digest.Digest]bool{}
	opts := core.PullOptions{Always: true, Progress: func(p core.PullProgress) {
		if p.Blob == "" {
			return
		}
		if p.Status == "waiting" {
			first = append(first, p.Blob)
			if len(full) > 0 {
				t.Error("a layer is late")
			}
		}
		if p.Status == "downloading" && p.Done == p.Total {
			full[p.Blob] = true
		}
		last[p.Blob] = p
	}}
	if _, err := s.Pull(t.Context(), "cli", name, opts); err != nil {
		t.Fatal(err)
	}
	if len(first) != 3 || first[0] != b.Layers[0].Digest || first[2] != b.Layers[2].Digest {
		t.Errorf("first %v, want %v", first, b.Layers)
	}
	for _, l := range b.Layers {
		if last[l.Digest].Status != "done" || !full[l.Digest] {
			t.Errorf("layer %s ended as %+v, whole: %t", l.Digest, last[l.Digest], full[l.Digest])
		}
	}
	clear(full)
	if _, err := s.Pull(t.Context(), "cli", name, opts); err != nil {
		t.Fatal(err)
	}
	for _, l := range b.Layers {
		if last[l.Digest].Status != "exists" {
			t.Errorf("layer %s the second time: %+v", l.Digest, last[l.Digest])
		}
	}
}

// TestAJoinerSeesTheLayers: a caller that joins a pull gets the earlier reports about its layers.
func TestAJoinerSeesTheLayers(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	name := reg.Push("lib/app", "v1", seeded(3, 50))
	s := openWith(t, image.Options{Root: t.TempDir(), InProcess: true})
	release := make(chan struct{})
	reg.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, "/blobs/") && r.Method == http.MethodGet && !strings.Contains(r.URL.Path, seeded(3, 50).ID.Encoded()) {
			select {
			case <-release:
			case <-r.Context().Done():
			}
		}
		next.ServeHTTP(w, r)
	})
	pull := func(layers chan<- []digest.Digest, ended chan<- error) {
		var seen []digest.Digest
		_, err := s.Pull(t.Context(), "cli", name, core.PullOptions{Always: true, Progress: func(p core.PullProgress) {
			if p.Blob != "" && !slices.Contains(seen, p.Blob) {
				if seen = append(seen, p.Blob); len(seen) == 3 {
					layers <- slices.Clone(seen)
				}
			}
		}})
		ended <- err
	}
	layers, ended := make(chan []digest.Digest, 2), make(chan error, 2)
	go pull(layers, ended)
	first := <-layers
	go pull(layers, ended)
	if second := <-layers; !slices.Equal(second, first) {
		t.Errorf("the second caller saw %v, the first one %v", second, first)
	}
	close(release)
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}

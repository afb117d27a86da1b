package image_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// seeded is an image of n layers that no other seed has.
func seeded(n int, seed byte) imagetest.Built {
	var i imagetest.Image
	for k := range n {
		i.Layers = append(i.Layers, []imagetest.File{{Name: fmt.Sprintf("file%d", k), Body: noise(100_000, seed+byte(k))}})
	}
	return i.Build()
}

// TestASlowRegistryHoldsNobodyUp: while a registry is sending more layers than may be fetched or
// unpacked at a time, another image from another registry and another image from the same one can
// be pulled.
func TestASlowRegistryHoldsNobodyUp(t *testing.T) {
	slow, other := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	cfg := image.Default()
	cfg.MaxConcurrentLayers = 2
	s := openWith(t, image.Options{Root: t.TempDir(), Config: cfg, InProcess: true})
	release, begun := make(chan struct{}), make(chan struct{}, 100)
	stuck := map[digest.Digest][]byte{}
	var refs []string
	for i := range 3 {
		b := seeded(3, byte(100+10*i))
		for _, l := range b.Layers {
			stuck[l.Digest] = b.Blobs[l.Digest]
		}
		refs = append(refs, slow.Push("stuck", "v"+strconv.Itoa(i), b))
	}
	slow.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		body, ok := stuck[digest.Digest(path.Base(r.URL.Path))]
		if !ok {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
		_, _ = w.Write(body[:1000])
		w.(http.Flusher).Flush()
		begun <- struct{}{}
		<-release
		_, _ = w.Write(body[1000:])
	})
	done := make(chan error, len(refs))
	for _, ref := range refs {
		go func() {
			_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
			done <- err
		}()
	}
	for range len(refs) * cfg.MaxConcurrentLayers {
		<-begun
	}
	for _, ref := range []string{other.Push("team/app", "v1", seeded(3, 1)), slow.Push("team/app", "v2", seeded(3, 20))} {
		if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
			t.Error(err)
		}
	}
	close(release)
	for range refs {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
}

// TestALayerThatTwoRegistriesHaveComesFromEither: a registry that withholds a layer, or sends
// something else, does not keep it from a pull that can get it from another registry.
func TestALayerThatTwoRegistriesHaveComesFromEither(t *testing.T) {
	if testing.Short() {
		t.Skip("a registry must have been slow for five seconds")
	}
	b := seeded(1, 7)
	layer := b.Layers[0]
	for name, begin := range map[string][]byte{"right": b.Blobs[layer.Digest][:1000], "wrong": make([]byte, 1000)} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			first, second := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
			begun := make(chan struct{}, 100)
			first.Intercept(onBlob(layer.Digest, func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
				w.Header().Set("Content-Length", strconv.FormatInt(layer.Size, 10))
				_, _ = w.Write(begin)
				w.(http.Flusher).Flush()
				begun <- struct{}{}
				<-r.Context().Done()
			}))
			s := openWith(t, image.Options{Root: t.TempDir(), Config: image.Default(), InProcess: true})
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() {
				defer close(done)
				_, _ = s.Pull(ctx, "cri", first.Push("team/app", "v1", b), core.PullOptions{})
			}()
			<-begun
			if _, err := s.Pull(t.Context(), "cri", second.Push("team/app", "v1", b), core.PullOptions{}); err != nil {
				t.Error(err)
			}
			cancel()
			<-done
		})
	}
}

// trickle sends a byte at a time until its client has gone.
func trickle(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Length", "100000000")
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if _, err := io.WriteString(w, "x"); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		case <-r.Context().Done():
			return
		}
	}
}

// TestAPullHasATimeInAll: a pull ends even if its registry always sends something, which is
// neither a stall nor a lack of progress.
func TestAPullHasATimeInAll(t *testing.T) {
	b := layered(1, 200_000)
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/app", "v1", b)
	reg.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Method == http.MethodHead || !strings.Contains(r.URL.Path, "/manifests/") {
			next.ServeHTTP(w, r)
			return
		}
		trickle(w, r)
	})
	cfg := image.Default()
	cfg.PullTimeout = image.Duration(300 * time.Millisecond)
	s := openWith(t, image.Options{Root: t.TempDir(), Config: cfg, InProcess: true})
	_, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
	if !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), "longer than images.pull_timeout, 300ms") {
		t.Errorf("error %v", err)
	}
	reg.Intercept(nil)
	cfg.PullTimeout = 0
	s = openWith(t, image.Options{Root: t.TempDir(), Config: cfg, InProcess: true})
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Errorf("without a bound: %v", err)
	}
}

// TestALayerOfTooManyFilesIsRefused, and nothing of it is left; the same for an image with too many
// in all its layers.
func TestALayerOfTooManyFilesIsRefused(t *testing.T) {
	many := func(layers, files int) imagetest.Built {
		var i imagetest.Image
		for l := range layers {
			var all []imagetest.File
			for f := range files {
				all = append(all, imagetest.File{Name: fmt.Sprintf("l%d/f%d", l, f)})
			}
			i.Layers = append(i.Layers, all)
		}
		return i.Build()
	}
	reg := imagetest.NewRegistry(t)
	cfg := image.Default()
	cfg.MaxLayerEntries, cfg.MaxImageEntries = 1000, 1500
	root := t.TempDir()
	s := openWith(t, image.Options{Root: root, Config: cfg, InProcess: true})
	for name, c := range map[string]struct {
		built imagetest.Built
		want  string
	}{
		"layer": {many(1, 1000), "more than 1000 entries (images.max_layer_entries)"}, // together with its directory
		"image": {many(2, 900), "the image has more than 1500 entries (images.max_image_entries)"},
		"fits":  {many(2, 700), ""},
	} {
		_, err := s.Pull(t.Context(), "cri", reg.Push(name, "v1", c.built), core.PullOptions{})
		if c.want == "" && err != nil || c.want != "" && (!errdefs.IsResourceExhausted(err) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if n := len(layerDirs(t, root)); n != 2 {
		t.Errorf("%d layers are on disk, want the 2 of the image that fits", n)
	}
}

// layerDirs are the unpacked layers of a store.
func layerDirs(t *testing.T, root string) []os.DirEntry {
	t.Helper()
	dirs, err := os.ReadDir(filepath.Join(root, "l"))
	if err != nil {
		t.Fatal(err)
	}
	return dirs
}

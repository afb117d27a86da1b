package image_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// TestDamagedImagesAreFoundAndMended spoils a blob and an unpacked file: Verify names both, a
// container cannot be made of the image until a pull has mended it, one that exists keeps its
// layers, and has the mended ones when it is checked out again.
func TestDamagedImagesAreFoundAndMended(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, file string){
		"one byte": func(t *testing.T, file string) {
			t.Helper()
			write(t, file, "B")
		},
		"longer": func(t *testing.T, file string) {
			t.Helper()
			write(t, file, "b and more")
		},
		"gone": func(t *testing.T, file string) {
			t.Helper()
			if err := os.Remove(file); err != nil {
				t.Fatal(err)
			}
		},
		"one more": func(t *testing.T, file string) {
			t.Helper()
			write(t, file+"2", "more")
		},
		"mode": func(t *testing.T, file string) {
			t.Helper()
			if err := os.Chmod(file, 0o777); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			reg := imagetest.NewRegistry(t)
			b := imagetest.Image{Layers: [][]imagetest.File{{{Name: "etc/"}, {Name: "etc/a", Body: []byte("a")}, {Name: "etc/l", Link: "a"}}, {{Name: "etc/b", Body: []byte("b")}}}}.Build()
			ref := reg.Push("lib/app", "v1", b)
			dir := t.TempDir()
			s := open(t, dir)
			img, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if found, err := s.Verify(t.Context()); err != nil || len(found) != 0 {
				t.Fatalf("a sound image: %+v, %v", found, err)
			}
			was, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "runs", Image: img.ID})
			if err != nil {
				t.Fatal(err)
			}
			damaged := only(t, filepath.Join(dir, "l/*/etc/b"))
			spoil(t, damaged)
			found, err := s.Verify(t.Context())
			if err != nil || len(found) != 1 || found[0].Unknown || !strings.HasPrefix(found[0].Object, "layer sha256:") || found[0].Image == "" || !strings.Contains(found[0].Detail, "etc") {
				t.Fatalf("a damaged layer: %+v, %v", found, err)
			}
			_, err = s.Checkout(t.Context(), core.CheckoutRequest{Container: "new", Image: img.ID})
			if !errdefs.IsDataLoss(err) || !strings.Contains(err.Error(), "pull it again") {
				t.Errorf("checkout of a damaged image: %v", err)
			}
			// The damage is remembered.
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir)
			blobs, err := filepath.Glob(filepath.Join(dir, "content/blobs/sha256/*"))
			if err != nil || len(blobs) == 0 {
				t.Fatal(blobs, err)
			}
			for _, blob := range blobs {
				spoilBlob(t, blob)
			}
			found, err = s.Verify(t.Context())
			if err != nil || len(found) != len(blobs)+1 {
				t.Fatalf("%d damaged blobs and a layer: %+v, %v", len(blobs), found, err)
			}
			if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
				t.Fatal(err)
			}
			if found, err := s.Verify(t.Context()); err != nil || len(found) != 0 {
				t.Fatalf("after the pull: %+v, %v", found, err)
			}
			// The container that ran through all of it has its layers, until it starts again.
			if _, err := os.Stat(filepath.Dir(damaged)); err != nil {
				t.Error(err)
			}
			now, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "runs", Image: img.ID})
			if err != nil || slices.Equal(now.Mounts[0].Options, was.Mounts[0].Options) {
				t.Errorf("the container has the damaged layer when it starts again: %v, %v", now.Mounts, err)
			}
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			s = open(t, dir)
			again, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "runs", Image: img.ID})
			if err != nil || !slices.Equal(now.Mounts[0].Options, again.Mounts[0].Options) {
				t.Errorf("after a restart: %v, %v", again.Mounts, err)
			}
			if layers, err := os.ReadDir(filepath.Join(dir, "l")); err != nil || len(layers) != 2 {
				t.Errorf("layers: %v, %v", layers, err)
			}
			if sums, err := os.ReadDir(filepath.Join(dir, "sums")); err != nil || len(sums) != 2 {
				t.Errorf("sums: %v, %v", sums, err)
			}
		})
	}
}

// TestALayerWithoutSumsIsNotChecked: an older version has unpacked it, or the sums are damaged.
func TestALayerWithoutSumsIsNotChecked(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	dir := t.TempDir()
	s := open(t, dir)
	if _, err := s.Pull(t.Context(), "cri", reg.Push("lib/app", "v1", layered(2, 100)), core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	sums, err := filepath.Glob(filepath.Join(dir, "sums/*"))
	if err != nil || len(sums) != 2 {
		t.Fatal(sums, err)
	}
	if err := os.Remove(sums[0]); err != nil {
		t.Fatal(err)
	}
	spoilBlob(t, sums[1])
	found, err := s.Verify(t.Context())
	if err != nil || len(found) != 2 || !found[0].Unknown || !found[1].Unknown {
		t.Errorf("%+v, %v", found, err)
	}
}

// TestADamagedCheckoutIsAdopted: the record of a container's root was damaged; the next checkout
// has the container's files.
func TestADamagedCheckoutIsAdopted(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	dir := t.TempDir()
	s := open(t, dir)
	img, err := s.Pull(t.Context(), "cri", reg.Push("lib/app", "v1", layered(2, 100)), core.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	req := core.CheckoutRequest{Container: "c1", Image: img.ID}
	was, err := s.Checkout(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "checkouts/c1/upper/made"), "by the container")
	for range 2 {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, "checkouts/c1/record.json"), "{")
		s = open(t, dir)
		now, err := s.Checkout(t.Context(), req)
		if err != nil || fmt.Sprint(now.Mounts) != fmt.Sprint(was.Mounts) {
			t.Errorf("%v, %v; was %v", now.Mounts, err, was.Mounts)
		}
	}
	if _, err := os.Stat(filepath.Join(dir, "checkouts/c1/upper/made")); err != nil {
		t.Error(err)
	}
}

// spoilBlob flips a bit in the middle of a file.
func spoilBlob(t *testing.T, path string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 4
	if err := os.WriteFile(path, b, 0); err != nil {
		t.Fatal(err)
	}
}

// only returns the one file that matches.
func only(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatal(pattern, found, err)
	}
	return found[0]
}

// TestAPullWithoutSpaceKeepsNothing: its fetched content is not kept for the next attempt.
func TestAPullWithoutSpaceKeepsNothing(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	dir := t.TempDir()
	cfg := image.Default()
	cfg.MaxLayerBytes = 1 << 20
	s := openWith(t, image.Options{Root: dir, Config: cfg})
	kept, err := s.Pull(t.Context(), "cri", reg.Push("lib/small", "v1", layered(2, 100)), core.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	count := func() (n int) {
		for _, pattern := range []string{"l/*", "content/blobs/sha256/*", "content/ingest/*", "sums/*"} {
			found, err := filepath.Glob(filepath.Join(dir, pattern))
			if err != nil {
				t.Fatal(err)
			}
			n += len(found)
		}
		return n
	}
	before := count()
	big := imagetest.Image{Layers: [][]imagetest.File{{{Name: "small", Body: []byte("s")}}, {{Name: "big", Body: make([]byte, 8<<20)}}}, Compression: imagetest.None}.Build()
	ref := reg.Push("lib/big", "v1", big)
	for range 2 {
		if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); !errdefs.IsResourceExhausted(err) {
			t.Fatalf("got %v", err)
		}
		if now := count(); now != before {
			t.Errorf("%d files and layers, before %d", now, before)
		}
	}
	if _, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "c1", Image: kept.ID}); err != nil {
		t.Error(err)
	}
}

// TestADamagedBlobIsFetchedAgain spoils the blob of a layer with sound files, and pulls with the
// worker that has unpacked it.
func TestADamagedBlobIsFetchedAgain(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	b := imagetest.Image{Layers: [][]imagetest.File{{{Name: "a", Body: []byte("a")}}}}.Build()
	ref := reg.Push("lib/app", "v1", b)
	dir := t.TempDir()
	s := open(t, dir)
	pull := func() {
		t.Helper()
		if _, err := s.Pull(t.Context(), "cli", ref, core.PullOptions{Always: true}); err != nil {
			t.Fatal(err)
		}
	}
	pull()
	blob := filepath.Join(dir, "content/blobs/sha256", b.Layers[0].Digest.Encoded())
	if err := os.Chmod(blob, 0o600); err != nil {
		t.Fatal(err)
	}
	write(t, blob, "spoiled")
	if found, err := s.Verify(t.Context()); err != nil || len(found) != 1 || !strings.Contains(found[0].Object, b.Layers[0].Digest.String()) {
		t.Errorf("found %+v, %v", found, err)
	}
	pull()
	if found, err := s.Verify(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("after a pull: %+v, %v", found, err)
	}
}

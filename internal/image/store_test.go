package image_test

import (
	"bytes"
	"log/slog"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
)

func open(t *testing.T, dir string) *image.Store {
	t.Helper()
	return openWith(t, image.Options{Root: dir})
}

func openWith(t *testing.T, opts image.Options) *image.Store {
	t.Helper()
	opts.Logger = slog.New(slog.NewTextHandler(t.Output(), nil))
	s, err := image.New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestPullCheckoutListRemove(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	b := imagetest.Image{Layers: [][]imagetest.File{{{Name: "etc/"}, {Name: "etc/a", Body: []byte("a")}}, {{Name: "etc/b", Body: []byte("b")}}}}.Build()
	name := reg.Push("lib/app", "v1", b)
	s := open(t, t.TempDir())
	img, err := s.Pull(t.Context(), "cri", name, core.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", img)
	co, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "c1", Image: img.ID})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%+v", co.Mounts)
	if err := s.Remove(t.Context(), "cri", name); err != nil {
		t.Fatal(err)
	}
	if l, err := s.List(t.Context(), "cri"); err != nil || len(l) != 0 {
		t.Error(l, err)
	}
	if err := s.Discard(t.Context(), "c1"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prune(t.Context(), "cri", nil); err != nil {
		t.Fatal(err)
	}
	u, err := s.Usage(t.Context())
	if err != nil || u.Bytes != 0 || u.Inodes != 0 {
		t.Error(u, err)
	}
}

func TestContract(t *testing.T) {
	for _, inProcess := range []bool{true, false} {
		t.Run(map[bool]string{true: "InProcess", false: "Worker"}[inProcess], func(t *testing.T) {
			imagetest.Suite(t, func(t *testing.T) imagetest.Harness {
				t.Helper()
				reg := imagetest.NewRegistry(t)
				return imagetest.Harness{Images: openWith(t, image.Options{Root: t.TempDir(), InProcess: inProcess}), Provide: reg.Push}
			})
		})
	}
}

// TestPulledBytesAreTold: those that were fetched, not those that were already there.
func TestPulledBytesAreTold(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	common := imagetest.File{Name: "common", Body: bytes.Repeat([]byte("c"), 5000)}
	first := imagetest.Image{Layers: [][]imagetest.File{{common}}}.Build()
	second := imagetest.Image{Layers: [][]imagetest.File{{common}, {{Name: "own", Body: []byte("own")}}}}.Build()
	names := []string{reg.Push("lib/first", "v1", first), reg.Push("lib/second", "v1", second)}
	var told []int64
	s := openWith(t, image.Options{Root: t.TempDir(), Pulled: func(n int64) { told = append(told, n) }})
	pull := func(name string) int64 {
		t.Helper()
		img, err := s.Pull(t.Context(), "cri", name, core.PullOptions{Always: true})
		if err != nil {
			t.Fatal(err)
		}
		return img.Size
	}
	size := pull(names[0])
	pull(names[0])
	pull(names[1])
	if len(told) != 3 || told[0] <= 0 || told[0] > size || told[1] != 0 || told[2] <= 0 || told[2] >= told[0]+size {
		t.Errorf("%d bytes were told, the first image has %d", told, size)
	}
}

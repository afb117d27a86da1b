package image_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/worker"
)

// declaring returns the config of an image that declares n volumes.
func declaring(n int) ocispec.ImageConfig {
	c := ocispec.ImageConfig{Volumes: map[string]struct{}{}}
	for i := range n {
		c.Volumes[fmt.Sprint("/v", i)] = struct{}{}
	}
	return c
}

func importOf(t *testing.T, s *image.Store, b imagetest.Built) ([]core.Image, error) {
	t.Helper()
	var archive bytes.Buffer
	if err := imagetest.WriteOCI(&archive, map[string]imagetest.Built{"docker.io/library/volumes:latest": b}); err != nil {
		t.Fatal(err)
	}
	return s.Import(t.Context(), "cli", &archive, core.ImportOptions{})
}

func wantTooMany(t *testing.T, what string, err error) {
	t.Helper()
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "it declares 129 volumes, at most 128") {
		t.Errorf("%s: %v", what, err)
	}
}

// TestAnImportOfTooManyVolumesIsRefused: of an archive of layers, and of a module. As many as are allowed
// are taken.
func TestAnImportOfTooManyVolumesIsRefused(t *testing.T) {
	s := open(t, t.TempDir())
	layers := [][]imagetest.File{{{Name: "a", Body: []byte("a")}}}
	if list, err := importOf(t, s, imagetest.Image{Layers: layers, Config: declaring(worker.MaxVolumes)}.Build()); err != nil || len(list) != 1 {
		t.Errorf("as many as are allowed: %v", err)
	}
	_, err := importOf(t, s, imagetest.Image{Layers: layers, Config: declaring(worker.MaxVolumes + 1)}.Build())
	wantTooMany(t, "layers", err)
	module := cncf(program("fd_write"))
	module.Config = map[string]any{"os": "wasip1", "architecture": "wasm", "config": declaring(worker.MaxVolumes + 1)}
	_, err = importOf(t, s, module.Build())
	wantTooMany(t, "a module", err)
	if all, err := s.List(t.Context(), "cli"); err != nil || len(all) != 1 {
		t.Errorf("images %+v, %v", all, err)
	}
}

// TestAStoredImageOfTooManyVolumesMakesNoContainer: an earlier release took it. A container that it has
// made keeps its root.
func TestAStoredImageOfTooManyVolumesMakesNoContainer(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	list, err := importOf(t, s, imagetest.Image{Layers: [][]imagetest.File{{{Name: "a", Body: []byte("a")}}}, Config: declaring(1)}.Build())
	if err != nil {
		t.Fatal(err)
	}
	id := list[0].ID
	checkout := func(container core.ID) error {
		_, err := s.Checkout(t.Context(), core.CheckoutRequest{Image: id, Container: container})
		return err
	}
	if err := checkout("old"); err != nil {
		t.Fatal(err)
	}
	// The config becomes one that an earlier release would have stored.
	changed := 0
	err = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Name() != id.Encoded() || !d.Type().IsRegular() {
			return err
		}
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		var doc map[string]any
		if err := json.Unmarshal(body, &doc); err != nil {
			return err
		}
		doc["config"] = declaring(worker.MaxVolumes + 1)
		if body, err = json.Marshal(doc); err != nil {
			return err
		}
		changed++
		return os.WriteFile(path, body, 0o600)
	})
	if err != nil || changed == 0 {
		t.Fatalf("%d configs changed, %v", changed, err)
	}
	wantTooMany(t, "a new container", checkout("new"))
	if err := checkout("old"); err != nil {
		t.Errorf("the container from before: %v", err)
	}
	if ids, err := s.Checkouts(t.Context()); err != nil || len(ids) != 1 {
		t.Errorf("roots %v, %v", ids, err)
	}
}

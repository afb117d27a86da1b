package image_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// TestImagesLostWithTheirRecordsAreNamed: names.db and its copy are gone; a repair names each image
// by its remains, and a pull brings it back.
func TestImagesLostWithTheirRecordsAreNamed(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	dir := t.TempDir()
	s := open(t, dir)
	var ids, refs []string
	for _, name := range []string{"a", "b"} {
		ref := reg.Push("lib/"+name, "v1", imagetest.Image{Layers: [][]imagetest.File{{{Name: name, Body: []byte(name)}}}}.Build())
		img, err := s.Pull(t.Context(), "cli", ref, core.PullOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ids, refs = append(ids, string(img.ID)), append(refs, ref)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"names.db", "names.db.copy"} {
		if err := os.Truncate(filepath.Join(dir, f), 100); err != nil {
			t.Fatal(err)
		}
	}
	for _, dry := range []bool{true, false} {
		r, err := image.Repair(dir, slog.New(slog.DiscardHandler), dry)
		if err != nil || r.Damage == "" || r.Whole {
			t.Fatalf("dry %v: %+v, %v", dry, r, err)
		}
		for _, id := range ids {
			if lost := strings.Join(r.Lost, "\n"); strings.Count(lost, id) != 1 {
				t.Errorf("dry %v: %s is not named:\n%s", dry, id, lost)
			}
		}
	}
	if r, err := image.Repair(dir, slog.New(slog.DiscardHandler), false); err != nil || r.Damage != "" {
		t.Errorf("a second repair: %+v, %v", r, err)
	}
	s = open(t, dir)
	for i, ref := range refs {
		img, err := s.Pull(t.Context(), "cli", ref, core.PullOptions{})
		if err != nil || string(img.ID) != ids[i] {
			t.Errorf("the next pull: %v, %v", img.ID, err)
		}
	}
	if found, err := s.Verify(t.Context()); err != nil || len(found) > 0 {
		t.Errorf("after the pulls: %+v, %v", found, err)
	}
}

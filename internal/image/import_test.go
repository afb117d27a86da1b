package image_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// TestImportNamesWhatTheArchiveNames imports an image that is here under another name already.
func TestImportNamesWhatTheArchiveNames(t *testing.T) {
	built := imagetest.Image{Layers: [][]imagetest.File{{{Name: "a", Body: []byte("a")}}}}.Build()
	s := open(t, t.TempDir())
	for _, name := range []string{"docker.io/library/box:one", "docker.io/library/box:two"} {
		var archive bytes.Buffer
		if err := imagetest.WriteDocker(&archive, map[string]imagetest.Built{name: built}); err != nil {
			t.Fatal(err)
		}
		got, err := s.Import(t.Context(), "cli", &archive, core.ImportOptions{})
		if err != nil || len(got) != 1 || !slices.Equal(got[0].Names, []string{name}) {
			t.Errorf("imported %+v, %v, want %s", got, err, name)
		}
	}
	if all, err := s.List(t.Context(), "cli"); err != nil || len(all) != 1 || len(all[0].Names) != 2 {
		t.Errorf("images %+v, %v", all, err)
	}
}

package nodetest

import (
	"os"
	"path/filepath"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/beneath/beneathtest"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// DanglingImage serves an image of busybox with the links of beneathtest.DanglingLinks from a
// registry, and returns its name and a directory with the file to mount. When the test ends, nothing
// may exist outside of the containers' roots where the links would lead to.
func DanglingImage(t *testing.T) (image, dir string) {
	t.Helper()
	files, err := imagetest.Busybox("/bin/busybox", Applets...)
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	for _, d := range beneathtest.DanglingLinks() {
		for _, l := range d.Links {
			files = append(files, imagetest.File{Name: l[0], Link: l[1]})
		}
	}
	image = imagetest.NewRegistry(t).Push("dangling", "latest", imagetest.Image{Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Env: []string{"PATH=/bin"}}}.Build())
	return image, DanglingSource(t)
}

// DanglingSource returns a directory with the file to mount, and checks at the test's end that nothing
// was made outside of a root.
func DanglingSource(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), []byte("mounted\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(beneathtest.Outside, 0o777); err != nil { // there it could be made
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(beneathtest.Outside)
		if err != nil || len(left) > 0 {
			t.Errorf("made outside of the root: %v, %v", left, err)
		}
		for _, d := range beneathtest.DanglingLinks() {
			if _, err := os.Lstat(d.Visible()); err == nil && d.At != "" {
				t.Errorf("%s: %s was made on the host", d.Name, d.Visible())
			}
		}
	})
	return dir
}

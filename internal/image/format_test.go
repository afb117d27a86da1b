package image_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	bolt "go.etcd.io/bbolt"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
)

// formatImage is the image that the stores in testdata have under formatName.
func formatImage() imagetest.Built {
	return imagetest.Image{Raw: [][]byte{imagetest.Tar([]imagetest.File{{Name: "etc/", UID: 1, GID: 1}})}, Compression: imagetest.None}.Build()
}

const formatName = "registry.example/team/app:v1"

// TestOpensEveryFormat opens the names.db of every released format. The content is not stored
// with them, so the image counts as damaged. LONGSHORE_WRITE_FORMAT=path writes the present
// format.
func TestOpensEveryFormat(t *testing.T) {
	if path := os.Getenv("LONGSHORE_WRITE_FORMAT"); path != "" {
		writeFormat(t, path)
	}
	files, err := filepath.Glob("testdata/names-v*.db")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		write(t, filepath.Join(dir, "names.db"), string(data))
		s := open(t, dir)
		list, err := s.List(t.Context(), "cri")
		if err != nil || len(list) != 1 {
			t.Errorf("%s: %+v, %v", file, list, err)
			continue
		}
		if img := list[0]; img.ID != formatImage().ID || len(img.Names) != 1 || img.Names[0] != formatName || !img.Pinned {
			t.Errorf("%s: %+v", file, img)
		}
		_, err = s.Checkout(t.Context(), core.CheckoutRequest{Container: "c1", Image: list[0].ID})
		if !errdefs.IsDataLoss(err) {
			t.Errorf("%s: checkout: %v", file, err)
		}
	}
}

func writeFormat(t *testing.T, path string) {
	t.Helper()
	dir := t.TempDir()
	s := openWith(t, image.Options{Root: dir, InProcess: true})
	var archive bytes.Buffer
	if err := imagetest.WriteOCI(&archive, map[string]imagetest.Built{formatName: formatImage()}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Import(t.Context(), "cri", &archive, core.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.Pin(t.Context(), "cri", formatName, true); err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(filepath.Join(dir, "names.db"))
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, string(data))
}

func TestNewerFormatIsRefusedAndLeftAlone(t *testing.T) {
	dir := t.TempDir()
	if err := open(t, dir).Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "names.db")
	db, err := bolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bolt.Tx) error { return tx.Bucket([]byte("meta")).Put([]byte("version"), []byte("2")) })
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
	before, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	_, err = image.New(image.Options{Root: dir})
	if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "format is version 2, this program supports version 1") {
		t.Errorf("got %v", err)
	}
	after, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(before, after) {
		t.Error("the newer store was changed")
	}
}

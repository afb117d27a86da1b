package programs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/containerd/errdefs"
)

func nameOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "sha256:" + hex.EncodeToString(sum[:])
}

// TestAProgramIsItsDigest: the name says the content, at the import and whenever it is verified.
func TestAProgramIsItsDigest(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "programs")
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if p, err := s.Import(t.Context(), strings.NewReader("text")); err != nil || p.Name != nameOf("text") || p.Size != 4 {
			t.Fatal(p, err)
		}
	}
	file := filepath.Join(dir, nameOf("text"))
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o555 {
		t.Error(st, err)
	}
	if err := s.Verify(t.Context(), nameOf("text")); err != nil {
		t.Error(err)
	}
	// A change of the content that keeps size and time of modification is seen.
	st, err := os.Stat(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(file, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("TEXT"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chtimes(file, st.ModTime(), st.ModTime()); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), nameOf("text")); !errdefs.IsDataLoss(err) {
		t.Error(err)
	}
	if err := s.Remove(nameOf("text")); err != nil {
		t.Error(err)
	}
	if err := s.Remove(nameOf("text")); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, nameOf("by hand")), []byte("by hand"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.Verify(t.Context(), nameOf("by hand")); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "chmod 0555") {
		t.Error(err)
	}
}

// TestWhatIsNoProgram: other files are not listed, and no name leads elsewhere.
func TestWhatIsNoProgram(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{temporary + "1", "notes", nameOf("x") + "0", strings.ToUpper(nameOf("x"))} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/bin/sh", filepath.Join(dir, nameOf("link"))); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(dir, nameOf("directory")), 0o700); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if all, err := s.List(); err != nil || len(all) > 0 {
		t.Error(all, err)
	}
	if _, err := os.Stat(filepath.Join(dir, temporary+"1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an unfinished import stays: %v", err)
	}
	for _, name := range []string{nameOf("link"), nameOf("directory"), "../" + nameOf("x"), "sha256:..", "", nameOf("x") + "\x00"} {
		if s.Has(name) || !errdefs.IsNotFound(s.Verify(t.Context(), name)) || !errdefs.IsNotFound(s.Remove(name)) {
			t.Errorf("%q is a program", name)
		}
	}
	if (*Store)(nil).Has(nameOf("x")) {
		t.Error("nothing has it")
	}
}

// TestAnImportThatFails leaves nothing.
func TestAnImportThatFails(t *testing.T) {
	dir := t.TempDir()
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for what, c := range map[string]struct {
		ctx  context.Context
		from io.Reader
	}{
		"a reader that fails": {t.Context(), io.MultiReader(bytes.NewReader(make([]byte, 1<<20)), iotest.ErrReader(io.ErrUnexpectedEOF))},
		"nothing":             {t.Context(), strings.NewReader("")},
		"a client that left":  {ended, strings.NewReader("x")},
	} {
		if _, err := s.Import(c.ctx, c.from); err == nil {
			t.Errorf("%s is imported", what)
		}
	}
	if _, err := (*Store)(nil).Import(t.Context(), strings.NewReader("x")); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "face.cri.alpha.enabled") {
		t.Error(err)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Error(list, err)
	}
}

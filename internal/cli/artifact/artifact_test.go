package artifact

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
)

func write(t *testing.T, path, body string) string {
	t.Helper()
	if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestArchiveIsImportedAndExtracted makes an archive, which the agent's store imports, and extracts the store's archive.
func TestArchiveIsImportedAndExtracted(t *testing.T) {
	dir := t.TempDir()
	m := making{
		name: "localhost/team/model:v1", kind: "application/vnd.example", created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), annotations: map[string]string{"a": "b"},
		paths: []string{write(t, filepath.Join(dir, "a.json"), "{}"), write(t, filepath.Join(dir, "b"), "text"), write(t, filepath.Join(dir, "c"), "text")},
	}
	if err := m.read(); err != nil {
		t.Fatal(err)
	}
	var archive bytes.Buffer
	if err := m.write(&archive); err != nil {
		t.Fatal(err)
	}
	s, err := image.New(image.Options{Root: t.TempDir(), InProcess: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	list, err := s.Import(t.Context(), "cli", &archive, core.ImportOptions{})
	if err != nil || len(list) != 1 {
		t.Fatalf("%+v, %v", list, err)
	}
	img := list[0]
	if img.ID != digest.FromBytes(m.manifest) || img.Artifact != m.kind || !slices.Equal(img.Names, []string{m.name}) || !img.Config.Created.Equal(m.created) ||
		len(img.Files) != 3 || img.Files[1].MediaType != "text/plain; charset=utf-8" {
		t.Errorf("%+v", img)
	}
	var doc ocispec.Manifest
	if err := json.Unmarshal(m.manifest, &doc); err != nil || doc.Layers[2].Annotations["a"] != "b" {
		t.Errorf("%+v, %v", doc, err)
	}

	var all []file
	for _, f := range img.Files {
		all = append(all, file{Name: f.Name, Digest: f.Digest})
	}
	target := t.TempDir()
	for _, x := range []struct {
		extraction
		to    string
		files []string
	}{
		{extraction{}, target, []string{"a.json", "b", "c"}},
		{extraction{title: "b"}, filepath.Join(target, "new"), []string{"new"}},
		{extraction{digest: digest.FromString("{}").String()}, target, []string{"sha256-" + digest.FromString("{}").Encoded()}},
	} {
		var out bytes.Buffer
		if err := s.Export(t.Context(), "cli", []string{m.name}, &out); err != nil {
			t.Fatal(err)
		}
		at, files, err := x.choose(all, m.name, x.to)
		if err != nil || at != target {
			t.Fatal(at, err)
		}
		root, err := os.OpenRoot(at)
		if err != nil {
			t.Fatal(err)
		}
		err = unpack(&out, root, files)
		_ = root.Close()
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range x.files {
			want := "text"
			if strings.HasPrefix(name, "a") || strings.HasPrefix(name, "sha256-") {
				want = "{}"
			}
			if got, err := os.ReadFile(filepath.Join(target, name)); err != nil || string(got) != want {
				t.Errorf("%s: %q, %v", name, got, err)
			}
		}
	}
	if entries, err := os.ReadDir(target); err != nil || len(entries) != 5 {
		t.Errorf("%v, %v", entries, err)
	}
	if _, _, err := (extraction{}).choose(all, "x", filepath.Join(target, "b")); err == nil {
		t.Error("three files to one")
	}
	if _, _, err := (extraction{title: "none"}).choose(all, "x", target); err == nil {
		t.Error("a file that it does not have")
	}
}

func TestFilesThatAreRefused(t *testing.T) {
	dir := t.TempDir()
	a := write(t, filepath.Join(dir, "a"), "a")
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o700); err != nil {
		t.Fatal(err)
	}
	other := write(t, filepath.Join(dir, "d/a"), "b")
	for want, paths := range map[string][]string{
		"another file has the name": {a, other}, "no regular file": {filepath.Join(dir, "d")}, "no such file": {filepath.Join(dir, "none")},
	} {
		if err := (&making{paths: paths}).read(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", paths, err)
		}
	}
	m := making{paths: []string{a}}
	if err := m.read(); err != nil {
		t.Fatal(err)
	}
	write(t, a, "c")
	if err := m.write(&bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), "has changed") {
		t.Error(err)
	}
	for name, want := range map[string]string{"a": "a:latest", "h:5/a": "h:5/a:latest", "h:5/a:b": "h:5/a:b", "a@sha256:x": ""} {
		if got := named(name); got != want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// FuzzUnpack reads archives of any content: nothing is written but the files' names.
func FuzzUnpack(f *testing.F) {
	m := making{name: "a:b", kind: "x"}
	dir := f.TempDir()
	m.paths = []string{filepath.Join(dir, "a")}
	if err := os.WriteFile(m.paths[0], []byte("text"), 0o600); err != nil {
		f.Fatal(err)
	}
	var archive bytes.Buffer
	if err := m.read(); err != nil {
		f.Fatal(err)
	}
	if err := m.write(&archive); err != nil {
		f.Fatal(err)
	}
	f.Add(archive.Bytes())
	f.Fuzz(func(t *testing.T, data []byte) {
		root, err := os.OpenRoot(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = root.Close() }()
		err = unpack(bytes.NewReader(data), root, []file{{Digest: digest.FromString("text"), to: "d/x"}})
		got, rerr := root.ReadFile("d/x")
		if (err == nil) != (rerr == nil && string(got) == "text") {
			t.Errorf("%v, %q, %v", err, got, rerr)
		}
	})
}

package artifact_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/artifact"
)

const model = "application/vnd.cncf.model.weight.v1.raw"

func layer(mediaType, title, path, body string) ocispec.Descriptor {
	d := ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromString(body), Size: int64(len(body)), Annotations: map[string]string{}}
	if title != "" {
		d.Annotations[ocispec.AnnotationTitle] = title
	}
	if path != "" {
		d.Annotations["org.cncf.model.filepath"] = path
	}
	return d
}

func TestTypeTellsArtifactsFromImages(t *testing.T) {
	tar := layer(ocispec.MediaTypeImageLayer, "", "", "x")
	titled := layer(ocispec.MediaTypeImageLayer, "x", "", "x")
	raw := layer(model, "", "", "x")
	module := layer("application/wasm", "", "", "x")
	for _, c := range []struct {
		artifactType, config string
		layer                ocispec.Descriptor
		want                 string
	}{
		{"", ocispec.MediaTypeImageConfig, tar, ""},
		{"", "application/vnd.docker.container.image.v1+json", tar, ""},
		{"", "application/octet-stream", tar, ""},
		{"", "", tar, ""},
		{"", ocispec.MediaTypeImageConfig, titled, ""}, // an image with a stray annotation
		{"application/x", ocispec.MediaTypeImageConfig, tar, ""},
		{"application/x", ocispec.MediaTypeImageConfig, titled, "application/x"},
		{"application/x", ocispec.MediaTypeImageConfig, raw, "application/x"},
		{"application/x", ocispec.MediaTypeEmptyJSON, tar, "application/x"},
		{"", "application/vnd.cncf.model.config.v1+json", raw, "application/vnd.cncf.model.config.v1+json"},
		{"", "application/vnd.cncf.helm.config.v1+json", tar, "application/vnd.cncf.helm.config.v1+json"},
		{"application/x", ocispec.MediaTypeEmptyJSON, module, ""},
	} {
		if got := artifact.Type(c.artifactType, ocispec.Descriptor{MediaType: c.config}, []ocispec.Descriptor{c.layer}); got != c.want {
			t.Errorf("%+v: %q", c, got)
		}
	}
}

func names(files []core.ArtifactFile) (list []string) {
	for _, f := range files {
		list = append(list, f.Name)
	}
	return list
}

func TestFilesAreNamedByAnnotations(t *testing.T) {
	files, err := artifact.Files([]ocispec.Descriptor{
		layer(model, "title", "", "1"), layer(model, "", "models/a/path", "2"), layer(model, "both", "not this", "3"),
		layer(model, "", "", "4"), layer(ocispec.MediaTypeEmptyJSON, "", "", "{}"), layer(model, "./a//b", "", "5"),
		layer(model, "Title", "", "1"), layer(model, "space and ünïcode", "", "6"), layer(model, "...", "", "7"),
	})
	want := []string{"title", "models/a/path", "both", strings.Replace(digest.FromString("4").String(), ":", "-", 1), "a/b", "Title", "space and ünïcode", "..."}
	if err != nil || !slices.Equal(names(files), want) {
		t.Errorf("%q, %v, want %q", names(files), err, want)
	}
}

func TestNamesThatAreRefused(t *testing.T) {
	many := make([]ocispec.Descriptor, 0, artifact.MaxFiles+1)
	for i := range artifact.MaxFiles {
		many = append(many, layer(model, fmt.Sprint(i), "", "x"))
	}
	if files, err := artifact.Files(many); err != nil || len(files) != artifact.MaxFiles {
		t.Errorf("%d files: %v", len(files), err)
	}
	deep := func(n int) (list []ocispec.Descriptor) {
		for i := range n {
			list = append(list, layer(model, fmt.Sprintf("%d/%sx", i, strings.Repeat("d/", 30)), "", "x"))
		}
		return list
	}
	if _, err := artifact.Files(deep(100)); err != nil {
		t.Error(err)
	}
	for name, layers := range map[string][]ocispec.Descriptor{
		"at most 4096":        append(many, layer(model, "more", "", "x")),
		"more than 4096 dir":  deep(140),
		"lead out of the":     {layer(model, "../x", "", "x")},
		"out of the volume":   {layer(model, "a/../../x", "", "x")},
		"has a part ..":       {layer(model, "a/../x", "", "x")},
		"absolute":            {layer(model, "/etc/passwd", "", "x")},
		"control":             {layer(model, "a\nb", "", "x")},
		"characters":          {layer(model, "a\x00b", "", "x")},
		"UTF-8":               {layer(model, "\xff", "", "x")},
		"of a directory":      {layer(model, "a/", "", "x")},
		"that of a directory": {layer(model, ".", "", "x")},
		"a part of 256":       {layer(model, strings.Repeat("x", 256), "", "x")},
		"1025 bytes":          {layer(model, strings.Repeat("x/", 512)+"x", "", "x")},
		"32 directories":      {layer(model, strings.Repeat("x/", 32)+"x", "", "x")},
		"two files":           {layer(model, "a", "", "x"), layer(model, "./a", "", "y")},
		"directory of":        {layer(model, "a/b", "", "x"), layer(model, "a", "", "y")},
		"a directory of an":   {layer(model, "a", "", "x"), layer(model, "a/b/c", "", "y")},
		"model's":             nil,
	} {
		if layers == nil {
			layers, name = []ocispec.Descriptor{layer(model, "", "../../x", "x")}, "lead out"
		}
		if files, err := artifact.Files(layers); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), name) || files != nil {
			t.Errorf("%s: %v, %v", name, files, err)
		}
	}
}

// store has the blobs of bodies, and the artifact that they make.
func store(t *testing.T, bodies map[string]string) (artifact.Store, []core.ArtifactFile) {
	t.Helper()
	s := artifact.Store{Root: t.TempDir(), Blob: func(d digest.Digest) string { return "blobs/" + d.Encoded() }}
	for _, dir := range []string{"blobs", "l"} {
		if err := os.Mkdir(filepath.Join(s.Root, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	var layers []ocispec.Descriptor
	for name, body := range bodies {
		l := layer(model, name, "", body)
		layers = append(layers, l)
		if err := os.WriteFile(filepath.Join(s.Root, s.Blob(l.Digest)), []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	files, err := artifact.Files(layers)
	if err != nil {
		t.Fatal(err)
	}
	return s, files
}

func TestLinkMakesOneCopyThatNobodyMayWrite(t *testing.T) {
	s, files := store(t, map[string]string{"a/b/one": "one", "a/two": "two", "three": "one"})
	if dirs, err := s.Link("l/1", files); err != nil || dirs != 3 {
		t.Fatal(dirs, err)
	}
	for _, f := range files {
		path := filepath.Join(s.Root, "l/1", f.Name)
		blob, err := os.Stat(filepath.Join(s.Root, s.Blob(f.Digest)))
		if err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Lstat(path); err != nil || !os.SameFile(fi, blob) || fi.Mode() != 0o444 {
			t.Errorf("%s: %v, %v", f.Name, fi.Mode(), err)
		}
	}
	if faults, err := s.Verify("l/1", files); err != nil || faults != nil {
		t.Error(faults, err)
	}
}

func TestVerifyFindsDamageAndRelinkMendsIt(t *testing.T) {
	bodies := map[string]string{"a/one": "one", "two": "two"}
	for name, c := range map[string]struct {
		damage func(dir string) error
		mends  bool
	}{
		"a missing file": {func(dir string) error { return os.Remove(dir + "/two") }, true},
		"another file":   {func(dir string) error { return os.WriteFile(dir+"/more", nil, 0o600) }, false},
		"other content": {func(dir string) error {
			return os.Rename(dir+"/a/one", dir+"/two")
		}, true},
		"another form": {func(dir string) error {
			if err := os.Remove(dir + "/two"); err != nil {
				return err
			}
			return os.Symlink("a/one", dir+"/two")
		}, true},
	} {
		t.Run(name, func(t *testing.T) {
			s, files := store(t, bodies)
			if _, err := s.Link("l/1", files); err != nil {
				t.Fatal(err)
			}
			if err := c.damage(filepath.Join(s.Root, "l/1")); err != nil {
				t.Fatal(err)
			}
			if faults, err := s.Verify("l/1", files); err != nil || faults == nil {
				t.Fatal(faults, err)
			}
			if err := s.Relink("l/1", files); err != nil {
				t.Fatal(err)
			}
			if faults, err := s.Verify("l/1", files); err != nil || (faults == nil) != c.mends {
				t.Error(faults, err)
			}
		})
	}
}

// TestVerifyReadsAFileWithoutItsBlob: the store removes a damaged blob, and the link to it has the
// damage too.
func TestVerifyReadsAFileWithoutItsBlob(t *testing.T) {
	s, files := store(t, map[string]string{"one": "one"})
	if _, err := s.Link("l/1", files); err != nil {
		t.Fatal(err)
	}
	blob := filepath.Join(s.Root, s.Blob(files[0].Digest))
	if err := os.Remove(blob); err != nil {
		t.Fatal(err)
	}
	if faults, err := s.Verify("l/1", files); err != nil || faults != nil {
		t.Error("the file is whole:", faults, err)
	}
	file := filepath.Join(s.Root, "l/1/one")
	if err := os.Chmod(file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("eno"), 0o600); err != nil {
		t.Fatal(err)
	}
	if faults, err := s.Verify("l/1", files); err != nil || len(faults) != 1 {
		t.Error(faults, err)
	}
}

// TestBlobWithAllItsLinks: a blob that artifacts of others have as often as the filesystem allows is copied.
func TestBlobWithAllItsLinks(t *testing.T) {
	s, files := store(t, map[string]string{"one": "one"})
	blob := filepath.Join(s.Root, s.Blob(files[0].Digest))
	full := false
	for i := 0; i < 70_000 && !full; i++ { // ext4 allows 65,000
		full = errors.Is(os.Link(blob, filepath.Join(s.Root, "blobs", fmt.Sprint(i))), syscall.EMLINK)
	}
	if !full {
		t.Skip("this filesystem allows more links")
	}
	if _, err := s.Link("l/1", files); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(filepath.Join(s.Root, "l/1/one")); err != nil || string(got) != "one" {
		t.Errorf("%q, %v", got, err)
	}
	if faults, err := s.Verify("l/1", files); err != nil || faults != nil {
		t.Error(faults, err)
	}
}

// FuzzFiles checks that Link makes the files of all accepted names, and none outside of its directory.
func FuzzFiles(f *testing.F) {
	f.Add("a", "b/c")
	f.Add("../x", "/etc/passwd")
	f.Add("a", "a/b")
	f.Add("a/./b", "a//b")
	f.Add("\xff", "a\x00")
	f.Fuzz(func(t *testing.T, a, b string) {
		layers := []ocispec.Descriptor{layer(model, a, "", "1"), layer(model, "", b, "2")}
		files, err := artifact.Files(layers)
		if err != nil {
			if !errdefs.IsInvalidArgument(err) {
				t.Fatal(err)
			}
			return
		}
		s, _ := store(t, map[string]string{"x": "1", "y": "2"})
		if _, err := s.Link("l/1", files); err != nil {
			t.Fatalf("%q: %v", names(files), err)
		}
		if faults, err := s.Verify("l/1", files); err != nil || faults != nil {
			t.Fatalf("%q: %q, %v", names(files), faults, err)
		}
		for _, file := range files {
			if !filepath.IsLocal(file.Name) {
				t.Fatalf("%q leads out", file.Name)
			}
			if _, err := os.Lstat(filepath.Join(s.Root, "l/1", file.Name)); err != nil {
				t.Fatal(err)
			}
		}
		if entries, err := os.ReadDir(filepath.Join(s.Root, "l")); err != nil || len(entries) != 1 {
			t.Fatal(entries, err)
		}
	})
}

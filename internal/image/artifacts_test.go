package image_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/trust"
)

const artifactType = "application/vnd.example.model.v1"

// model is an artifact of several files, one of them of 1 MiB.
func model() imagetest.Artifact {
	return imagetest.Artifact{
		Type: artifactType, Annotations: map[string]string{ocispec.AnnotationCreated: "2026-01-02T03:04:05Z"},
		Files: []imagetest.ArtifactFile{
			{Title: "config.json", MediaType: "application/json", Body: []byte("{}\n")},
			{Path: "weights/model.gguf", MediaType: "application/vnd.cncf.model.weight.v1.raw", Body: bytes.Repeat([]byte("weights\n"), 1<<17)},
			{Title: "weights/again", MediaType: "application/vnd.cncf.model.weight.v1.raw", Body: bytes.Repeat([]byte("weights\n"), 1<<17)},
		},
	}
}

func TestArtifactIsKeptOnceAndMountedReadOnly(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	b := model().Build()
	ref := reg.Push("team/model", "v1", b)
	dir := t.TempDir()
	s := open(t, dir)
	img, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range img.Files {
		names = append(names, f.Name)
	}
	if img.ID != b.Manifest.Digest || img.Artifact != artifactType || !slices.Equal(names, []string{"config.json", "weights/model.gguf", "weights/again"}) ||
		!slices.Equal(img.Names, []string{ref}) || img.Unpacked != 0 || img.Config.Created == nil || img.Config.Created.Year() != 2026 {
		t.Errorf("%+v", img)
	}
	if list, err := s.List(t.Context(), "cri"); err != nil || len(list) != 1 || list[0].Artifact != artifactType {
		t.Errorf("%+v, %v", list, err)
	}
	if _, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "c1", Image: img.ID}); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "it is an artifact ("+artifactType+")") {
		t.Errorf("as the root of a container: %v", err)
	}
	co, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "c1.0", Image: img.ID, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	lower, ok := strings.CutPrefix(co.Mounts[0].Options[0], "lowerdir=")
	if !ok || slices.ContainsFunc(co.Mounts[0].Options, func(o string) bool { return strings.HasPrefix(o, "upperdir=") }) {
		t.Fatalf("%+v", co.Mounts)
	}
	tree, _, _ := strings.Cut(lower, ":")
	for _, f := range img.Files {
		fi, err := os.Lstat(filepath.Join(tree, f.Name))
		if err != nil || fi.Mode() != 0o444 {
			t.Fatalf("%s: %v", f.Name, err)
		}
		if blob, err := os.Lstat(filepath.Join(dir, "content/blobs/sha256", f.Digest.Encoded())); err != nil || !os.SameFile(fi, blob) {
			t.Errorf("%s is not the blob: %v", f.Name, err)
		}
	}
	usage, err := s.Usage(t.Context())
	if err != nil || usage.Bytes > 1<<20+1<<16 {
		t.Errorf("%+v, %v: more than one copy", usage, err)
	}
	if found, err := s.Verify(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("%+v, %v", found, err)
	}

	// Its files stay as long as the checkout.
	if err := s.Remove(t.Context(), "cri", ref); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(tree, "config.json")); err != nil {
		t.Error(err)
	}
	if err := s.Discard(t.Context(), "c1.0"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prune(t.Context(), "", nil); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(tree); !os.IsNotExist(err) {
		t.Errorf("the directory after the last use: %v", err)
	}
	if usage, err := s.Usage(t.Context()); err != nil || usage.Bytes != 0 {
		t.Errorf("%+v, %v", usage, err)
	}
}

func TestArtifactsOutliveTheAgentAndAreMended(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	ref := reg.Push("team/model", "v1", model().Build())
	dir := t.TempDir()
	s := open(t, dir)
	img, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir)
	if got, err := s.Get(t.Context(), "cri", ref); err != nil || got.Artifact != artifactType || len(got.Files) != 3 {
		t.Fatalf("%+v, %v", got, err)
	}
	blob := filepath.Join(dir, "content/blobs/sha256", img.Files[1].Digest.Encoded())
	if err := os.Chmod(blob, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(blob, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("W"), 4096); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if found, err := s.Verify(t.Context()); err != nil || len(found) != 2 {
		t.Fatalf("%+v, %v; want the blob and the directory", found, err)
	}
	if _, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "c1.0", Image: img.ID, ReadOnly: true}); !errdefs.IsDataLoss(err) {
		t.Errorf("a damaged one: %v", err)
	}
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	if found, err := s.Verify(t.Context()); err != nil || len(found) != 0 {
		t.Errorf("%+v, %v", found, err)
	}

	// A blob that only was removed is fetched, and is the volume's file again.
	if err := os.Remove(blob); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	co, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: "c1.0", Image: img.ID, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	tree, _, _ := strings.Cut(strings.TrimPrefix(co.Mounts[0].Options[0], "lowerdir="), ":")
	a, err := os.Lstat(blob)
	if err != nil {
		t.Fatal(err)
	}
	if b, err := os.Lstat(filepath.Join(tree, img.Files[1].Name)); err != nil || !os.SameFile(a, b) {
		t.Errorf("two copies: %v", err)
	}
}

func TestArtifactIsSavedLoadedAndPushedUnchanged(t *testing.T) {
	from, to := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	b := model().Build()
	ref := from.Push("team/model", "v1", b)
	s := open(t, t.TempDir())
	if _, err := s.Pull(t.Context(), "cli", ref, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	var saved bytes.Buffer
	if err := s.Export(t.Context(), "cli", []string{ref}, &saved); err != nil {
		t.Fatal(err)
	}
	other := open(t, t.TempDir())
	list, err := other.Import(t.Context(), "cli", &saved, core.ImportOptions{})
	if err != nil || len(list) != 1 || list[0].ID != b.Manifest.Digest || list[0].Artifact != artifactType || len(list[0].Files) != 3 || !slices.Equal(list[0].Names, []string{ref}) {
		t.Fatalf("%+v, %v", list, err)
	}
	if err := other.Tag(t.Context(), "cli", ref, to.Host+"/copy:v2"); err != nil {
		t.Fatal(err)
	}
	if err := other.Push(t.Context(), "cli", to.Host+"/copy:v2", core.PushOptions{}); err != nil {
		t.Fatal(err)
	}
	got, err := open(t, t.TempDir()).Pull(t.Context(), "cli", to.Host+"/copy@"+b.Manifest.Digest.String(), core.PullOptions{})
	if err != nil || got.ID != b.Manifest.Digest || len(got.Files) != 3 {
		t.Errorf("%+v, %v", got, err)
	}
}

// TestLayoutsOfOtherTools say the type of an artifact in their index, and give it a bare tag.
func TestLayoutsOfOtherTools(t *testing.T) {
	b := model().Build()
	b.Manifest.ArtifactType = artifactType
	var layout bytes.Buffer
	if err := imagetest.WriteOCI(&layout, map[string]imagetest.Built{"": b}); err != nil {
		t.Fatal(err)
	}
	list, err := open(t, t.TempDir()).Import(t.Context(), "cli", &layout, core.ImportOptions{})
	if err != nil || len(list) != 1 || len(list[0].Files) != 3 {
		t.Errorf("%+v, %v", list, err)
	}
}

// TestManifestLargerThanAMessage: the worker's answer does not fit, and the pull ends all the same.
func TestManifestLargerThanAMessage(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	b := imagetest.Image{Layers: [][]imagetest.File{{{Name: "x"}}}}.Build()
	var doc ocispec.Manifest
	if err := json.Unmarshal(b.Blobs[b.Manifest.Digest], &doc); err != nil {
		t.Fatal(err)
	}
	doc.Layers[0].Annotations = map[string]string{"x": strings.Repeat("<", 1<<20)}
	raw, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	raw = bytes.ReplaceAll(raw, []byte(`\u003c`), []byte("<"))
	b.Manifest.Digest, b.Manifest.Size = digest.FromBytes(raw), int64(len(raw))
	b.Blobs[b.Manifest.Digest] = raw
	_, err = open(t, t.TempDir()).Pull(t.Context(), "cri", reg.Push("team/app", "v1", b), core.PullOptions{})
	if !errdefs.IsResourceExhausted(err) {
		t.Errorf("%v", err)
	}
}

// TestArtifactsOfAnIndex: the platform selects an artifact as it selects an image. An artifact about
// an image is not taken for the image.
func TestArtifactsOfAnIndex(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	s := open(t, t.TempDir())
	entry := func(arch string) imagetest.Built {
		b := imagetest.Artifact{Type: artifactType, Files: []imagetest.ArtifactFile{{Title: arch, Body: []byte(arch)}}}.Build()
		b.Manifest.ArtifactType = artifactType
		b.Manifest.Platform = &ocispec.Platform{OS: "linux", Architecture: arch}
		return b
	}
	img, err := s.Pull(t.Context(), "cri", reg.Push("model", "all", imagetest.Index(entry("s390x"), entry("amd64"), entry("arm64"))), core.PullOptions{Platform: "linux/arm64"})
	if err != nil || len(img.Files) != 1 || img.Files[0].Name != "arm64" {
		t.Errorf("%+v, %v", img, err)
	}
	sbom := entry("any")
	sbom.Manifest.Platform = nil
	foreign := imagetest.Image{Platform: ocispec.Platform{OS: "linux", Architecture: "s390x"}, Layers: [][]imagetest.File{{{Name: "x"}}}}.Build()
	if _, err := s.Pull(t.Context(), "cri", reg.Push("model", "sbom", imagetest.Index(foreign, sbom)), core.PullOptions{}); !errdefs.IsNotFound(err) {
		t.Errorf("an image of another platform with a bill of materials: %v", err)
	}
}

func TestArtifactsThatAreRefusedLeaveNothing(t *testing.T) {
	file := func(names ...string) (a imagetest.Artifact) {
		a.Type = artifactType
		for _, name := range names {
			a.Files = append(a.Files, imagetest.ArtifactFile{Title: name, Body: []byte(name)})
		}
		return a
	}
	big := imagetest.Artifact{Type: artifactType, Annotations: map[string]string{"x": strings.Repeat("<", 1<<19)}, Files: []imagetest.ArtifactFile{{Title: "x", Body: []byte("x")}}}
	reg := imagetest.NewRegistry(t)
	cfg := image.Default()
	cfg.MaxLayerBytes = 100
	dir := t.TempDir()
	s, err := image.New(image.Options{Root: dir, Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	for want, a := range map[string]imagetest.Artifact{
		"which could lead out":        file("../../names.db"),
		"is an absolute path":         file("/etc/shadow"),
		"two files with the name":     file("a", "a"),
		"a directory of another":      file("a", "a/b"),
		"more than images.max_layer_": file(strings.Repeat("x", 101)),
	} {
		_, err := s.Pull(t.Context(), "cri", reg.Push("model", "v1", a.Build()), core.PullOptions{})
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	if img, err := s.Pull(t.Context(), "cri", reg.Push("model", "big", big.Build()), core.PullOptions{}); err != nil || len(img.Files) != 1 {
		t.Errorf("with a long annotation: %v", err)
	}
	if err := s.Remove(t.Context(), "cri", reg.Host+"/model:big"); err != nil {
		t.Fatal(err)
	}
	if list, err := s.List(t.Context(), ""); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	if entries, err := os.ReadDir(filepath.Join(dir, "l")); err != nil || len(entries) != 0 {
		t.Errorf("%v, %v", entries, err)
	}
}

// TestPolicyAppliesToArtifacts before any of their files is fetched.
func TestPolicyAppliesToArtifacts(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	cfg := image.Default()
	cfg.Policy.Default = trust.Reject
	s, err := image.New(image.Options{Root: t.TempDir(), Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	_, err = s.Pull(t.Context(), "cri", reg.Push("model", "v1", model().Build()), core.PullOptions{})
	if err == nil || !strings.Contains(err.Error(), "policy") {
		t.Errorf("%v", err)
	}
	for _, r := range reg.Requests() {
		if strings.Contains(r, "/blobs/") {
			t.Errorf("fetched although the policy rejects it: %s", r)
		}
	}
}

// TestConcurrentPullsOfArtifacts: several owners pull one artifact, and another that shares its files, at the same time. Each shared blob
// is fetched once.
func TestConcurrentPullsOfArtifacts(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	first, second := model(), model()
	second.Files = second.Files[1:]
	b := first.Build()
	refs := []string{reg.Push("team/first", "v1", b), reg.Push("team/second", "v1", second.Build())}
	for name, inProcess := range map[string]bool{"worker": false, "in process": true} {
		t.Run(name, func(t *testing.T) {
			reg.Requests()
			s := openWith(t, image.Options{Root: t.TempDir(), Config: image.Default(), InProcess: inProcess})
			var pulls sync.WaitGroup
			for i := range 8 {
				pulls.Go(func() {
					opts := core.PullOptions{Username: fmt.Sprint(i), Host: reg.Host} // other credentials make another pull
					if _, err := s.Pull(t.Context(), core.Owner(fmt.Sprint("owner", i)), refs[i%2], opts); err != nil {
						t.Error(err)
					}
				})
			}
			pulls.Wait()
			if found, err := s.Verify(t.Context()); err != nil || len(found) != 0 {
				t.Errorf("%+v, %v", found, err)
			}
			fetched := 0
			for _, r := range reg.Requests() {
				if strings.Contains(r, b.Layers[1].Digest.Encoded()) {
					fetched++
				}
			}
			if fetched != 1 {
				t.Errorf("the shared blob was fetched %d times", fetched)
			}
		})
	}
}

// TestArtifactPullContinues after a broken transfer, and records nothing before it is complete.
func TestArtifactPullContinues(t *testing.T) {
	reg := imagetest.NewRegistry(t)
	b := model().Build()
	ref := reg.Push("team/model", "v1", b)
	large := b.Layers[1].Digest.Encoded()
	cfg := image.Default()
	cfg.Retries = 0
	s, err := image.New(image.Options{Root: t.TempDir(), Config: cfg})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	reg.Intercept(func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if strings.Contains(r.URL.Path, large) {
			http.Error(w, "no", http.StatusNotFound)
			return
		}
		next.ServeHTTP(w, r)
	})
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err == nil {
		t.Fatal("pulled without a blob")
	}
	if list, err := s.List(t.Context(), ""); err != nil || len(list) != 0 {
		t.Errorf("%+v, %v", list, err)
	}
	reg.Intercept(nil)
	reg.Requests()
	if _, err := s.Pull(t.Context(), "cri", ref, core.PullOptions{}); err != nil {
		t.Fatal(err)
	}
	if asked := strings.Join(reg.Requests(), "\n"); !strings.Contains(asked, large) {
		t.Errorf("%s", asked)
	}
}

package image_test

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/internal/turns"
)

// program returns a module that differs from those of other names.
func program(name string) []byte { return imagetest.Module("wasi_snapshot_preview1." + name) }

// cncf returns an artifact in the form of CNCF's TAG Runtime.
func cncf(module []byte) imagetest.Wasm {
	return imagetest.Wasm{
		Module: module, LayerType: "application/wasm", ConfigType: wasm.ConfigType,
		Config:   map[string]any{"architecture": "wasm", "os": "wasip1", "layerDigests": []digest.Digest{digest.FromBytes(module)}},
		Platform: &ocispec.Platform{OS: "wasip1", Architecture: "wasm"},
	}
}

// modules returns an image of each form of a lone module.
func modules() map[string]imagetest.Wasm {
	runwasi := program("runwasi")
	return map[string]imagetest.Wasm{
		"artifact": cncf(program("artifact")),
		"component-layer": {
			Module: runwasi, LayerType: "application/vnd.bytecodealliance.wasm.component.layer.v0+wasm", ConfigType: ocispec.MediaTypeImageConfig,
			Config: ocispec.Image{
				Platform: ocispec.Platform{OS: "wasip1", Architecture: "wasm"}, Config: ocispec.ImageConfig{Entrypoint: []string{"/app.wasm", "serve"}, Cmd: []string{"now"}, Env: []string{"A=1"}},
				RootFS: ocispec.RootFS{Type: "layers", DiffIDs: []digest.Digest{digest.FromBytes(runwasi)}},
			},
			Annotations: map[string]string{wasm.GrantsAnnotation: "log: !container_log", "org.example/other": "x"},
		},
		"content-layer": {
			Module: program("content"), LayerType: "application/vnd.module.wasm.content.layer.v1+wasm", ConfigType: "application/vnd.oci.empty.v1+json", Config: struct{}{},
		},
		"wasm-to-oci": {
			Module: program("to_oci"), LayerType: "application/vnd.wasm.content.layer.v1+wasm", ConfigType: "application/vnd.wasm.config.v1+json", Config: struct{}{},
		},
	}
}

// moduleOf returns the file that a container of the image would have as its program.
func moduleOf(t *testing.T, s *image.Store, img core.Image) []byte {
	t.Helper()
	id := core.ID("c" + img.ID.Encoded()[:12])
	co, err := s.Checkout(t.Context(), core.CheckoutRequest{Container: id, Image: img.ID, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := s.Discard(t.Context(), id); err != nil {
			t.Error(err)
		}
	}()
	var lower string
	for _, m := range co.Mounts {
		for _, o := range append(m.Options, "lowerdir="+m.Source) {
			if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok && lower == "" {
				lower, _, _ = strings.Cut(dirs, ":")
			}
		}
	}
	if !filepath.IsAbs(lower) {
		t.Fatalf("its mounts are %+v", co.Mounts)
	}
	entries, err := os.ReadDir(lower)
	if err != nil || len(entries) != 1 {
		t.Fatalf("its root has %v, %v", entries, err)
	}
	data, err := os.ReadFile(filepath.Join(lower, wasm.File))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestModulesAreImages(t *testing.T) {
	from, to := imagetest.NewRegistry(t), imagetest.NewRegistry(t)
	s, again := open(t, t.TempDir()), openWith(t, image.Options{Root: t.TempDir(), InProcess: true})
	ids := map[digest.Digest]bool{}
	var names []string
	for form, w := range modules() {
		b := w.Build()
		name := from.Push("lib/"+form, "v1", b)
		names = append(names, name)
		img, err := s.Pull(t.Context(), "cri", name, core.PullOptions{})
		if err != nil {
			t.Errorf("%s: %v", form, err)
			continue
		}
		if ids[img.ID] {
			t.Errorf("%s has the ID of another image", form)
		}
		ids[img.ID] = true
		if !img.Wasm || img.Config.Architecture != "wasm" || !slices.Equal(img.Config.Config.Entrypoint, []string{wasm.Entrypoint}) || img.Unpacked != 4096 || img.Size <= int64(len(w.Module)) {
			t.Errorf("%s is %+v", form, img)
		}
		if got := moduleOf(t, s, img); !bytes.Equal(got, w.Module) {
			t.Errorf("%s: its module has %d bytes, want %d", form, len(got), len(w.Module))
		}
		if err := s.Push(t.Context(), "cri", name, core.PushOptions{Target: to.Host + "/lib/" + form + ":v2"}); err != nil {
			t.Errorf("%s: %v", form, err)
		}
		copied, err := again.Pull(t.Context(), "cri", to.Host+"/lib/"+form+":v2", core.PullOptions{})
		if err != nil || copied.ID != img.ID || copied.Digest != img.Digest {
			t.Errorf("%s: the image that was pushed is %+v, %v", form, copied, err)
		}
		if form == "component-layer" {
			if cfg := img.Config.Config; !slices.Equal(cfg.Cmd, []string{"serve", "now"}) || !slices.Equal(cfg.Env, []string{"A=1"}) || len(img.Annotations) != 1 {
				t.Errorf("%s: %+v", form, img)
			}
		}
	}
	var archive bytes.Buffer
	if err := s.Export(t.Context(), "cri", names, &archive); err != nil {
		t.Fatal(err)
	}
	third := open(t, t.TempDir())
	list, err := third.Import(t.Context(), "cri", &archive, core.ImportOptions{})
	if err != nil || len(list) != len(names) {
		t.Fatalf("%d of %d images were imported: %v", len(list), len(names), err)
	}
	for _, img := range list {
		if !ids[img.ID] || !img.Wasm || len(img.Names) != 1 {
			t.Errorf("imported %+v", img)
		}
	}
	if damaged, err := s.Verify(t.Context()); err != nil || len(damaged) != 0 {
		t.Errorf("damaged: %v, %v", damaged, err)
	}
	for i, name := range names {
		if err := s.Pin(t.Context(), "cri", name, true); err != nil {
			t.Fatal(err)
		}
		if i > 0 {
			continue
		}
		if _, err := s.Prune(t.Context(), "cri", nil); err != nil {
			t.Fatal(err)
		}
		if img, err := s.Get(t.Context(), "cri", name); err != nil || !img.Pinned || len(moduleOf(t, s, img)) == 0 {
			t.Errorf("the pinned image is %+v, %v", img, err)
		}
		break
	}
	if err := s.Pin(t.Context(), "cri", names[0], false); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Prune(t.Context(), "cri", nil); err != nil {
		t.Fatal(err)
	}
	if l, err := s.List(t.Context(), "cri"); err != nil || len(l) != 0 {
		t.Errorf("left %v, %v", l, err)
	}
	if u, err := s.Usage(t.Context()); err != nil || u.Bytes != 0 || u.Inodes != 0 {
		t.Errorf("left %+v, %v", u, err)
	}
}

func TestAModuleIsChosenWhereNoProgramOfTheNodeIs(t *testing.T) {
	reg, s := imagetest.NewRegistry(t), openWith(t, image.Options{Root: t.TempDir(), InProcess: true})
	module := cncf(program("index")).Build()
	other := imagetest.Image{Layers: [][]imagetest.File{{{Name: "a"}}}, Platform: ocispec.Platform{OS: "linux", Architecture: "s390x"}}.Build()
	own := imagetest.Image{Layers: [][]imagetest.File{{{Name: "b"}}}}.Build()
	for _, c := range []struct {
		name string
		b    imagetest.Built
		want digest.Digest
	}{{"module", imagetest.Index(other, module), module.ID}, {"own", imagetest.Index(module, own), own.ID}} {
		img, err := s.Pull(t.Context(), "cri", reg.Push("index/"+c.name, "v1", c.b), core.PullOptions{})
		if err != nil || img.ID != c.want || img.Wasm != (c.name == "module") {
			t.Errorf("%s: %+v, %v", c.name, img, err)
		}
	}
}

func TestACompatImageIsOne(t *testing.T) {
	reg, s := imagetest.NewRegistry(t), openWith(t, image.Options{Root: t.TempDir(), InProcess: true})
	b := imagetest.Image{
		Layers: [][]imagetest.File{{{Name: "app.wasm", Body: program("compat")}}},
		Config: ocispec.ImageConfig{Entrypoint: []string{"/app.wasm"}, Labels: map[string]string{"module.wasm.image/variant": "compat"}},
	}.Build()
	img, err := s.Pull(t.Context(), "cri", reg.Push("lib/compat", "v1", b), core.PullOptions{})
	if err != nil || !img.Wasm || !slices.Equal(img.Config.Config.Entrypoint, []string{"/app.wasm"}) {
		t.Errorf("%+v, %v", img, err)
	}
}

func TestModulesThatCannotRunAreRefused(t *testing.T) {
	root := t.TempDir()
	reg, s := imagetest.NewRegistry(t), openWith(t, image.Options{Root: root, InProcess: true})
	foreign := cncf(program("named"))
	foreign.Config = map[string]any{"layerDigests": []digest.Digest{digest.FromString("another")}}
	beside := cncf(program("beside"))
	beside.Extra = []ocispec.Descriptor{{MediaType: "application/wasm", Digest: digest.FromString("more"), Size: 4}}
	for _, c := range []struct {
		name  string
		w     imagetest.Wasm
		want  string
		class func(error) bool
	}{
		{"component", cncf(imagetest.Component("wasi:cli/environment@0.2.0")), "is a component that imports wasi:cli/environment@0.2.0; only core modules for WASI preview 1 run here", errdefs.IsNotImplemented},
		{"preview2", cncf(imagetest.Module("wasi:cli/exit@0.2.0.exit")), "is a module for WASI preview 2 that imports wasi:cli/exit@0.2.0", errdefs.IsNotImplemented},
		{"truncated", cncf(program("x")[:20]), "malformed WebAssembly", errdefs.IsInvalidArgument},
		{"program", cncf([]byte("\x7fELF, not a module")), "this is no WebAssembly", errdefs.IsInvalidArgument},
		{"foreign", foreign, "it names the layers", errdefs.IsInvalidArgument},
		{"beside", beside, "a WebAssembly module and 1 other layers", errdefs.IsNotImplemented},
	} {
		name := reg.Push("bad/"+c.name, "v1", c.w.Build())
		for range 2 { // the second time from the first one's remains
			if img, err := s.Pull(t.Context(), "cri", name, core.PullOptions{}); err == nil || !strings.Contains(err.Error(), c.want) || !c.class(err) {
				t.Errorf("%s: %+v, %v", c.name, img, err)
			}
		}
	}
	if l, err := s.List(t.Context(), "cri"); err != nil || len(l) != 0 {
		t.Errorf("left %v, %v", l, err)
	}
	if left := layerDirs(t, root); len(left) != 0 {
		t.Errorf("directories are left: %v", left)
	}
}

// TestAModuleIsNoArchive pulls the same bytes as a module and as a layer: neither becomes the other.
func TestAModuleIsNoArchive(t *testing.T) {
	reg, s := imagetest.NewRegistry(t), openWith(t, image.Options{Root: t.TempDir(), InProcess: true})
	module := program("both")
	asLayer := imagetest.Image{Raw: [][]byte{module}, Compression: imagetest.None}.Build()
	_, lerr := s.Pull(t.Context(), "cri", reg.Push("as/layer", "v1", asLayer), core.PullOptions{})
	img, err := s.Pull(t.Context(), "cri", reg.Push("as/module", "v1", cncf(module).Build()), core.PullOptions{})
	if err != nil || !bytes.Equal(moduleOf(t, s, img), module) {
		t.Errorf("as a module: %+v, %v (as a layer: %v)", img, err, lerr)
	}
}

// slowModules compiles until its context ends.
type slowModules struct{ begun, ended chan string }

// Warm implements image.Modules.
func (m slowModules) Warm(ctx context.Context, _ string, by turns.Path) error {
	m.begun <- strings.Join(by, " ")
	<-ctx.Done()
	m.ended <- context.Cause(ctx).Error()
	return ctx.Err()
}

// Prune implements image.Modules.
func (slowModules) Prune(time.Duration, func(string) bool) (uint64, error) { return 0, nil }

// TestAModuleIsCompiledForItsOwnerUntilItsImageIsRemoved: and once, however often it is pulled.
func TestAModuleIsCompiledForItsOwnerUntilItsImageIsRemoved(t *testing.T) {
	m := slowModules{begun: make(chan string, 10), ended: make(chan string, 10)}
	s := openWith(t, image.Options{Root: t.TempDir(), InProcess: true, Modules: m})
	b := cncf(program("slow")).Build()
	name := imagetest.NewRegistry(t).Push("lib/slow", "v1", b)
	for _, owner := range []core.Owner{"nomad", "cri"} {
		if _, err := s.Pull(t.Context(), owner, name, core.PullOptions{Always: true}); err != nil {
			t.Fatal(err)
		}
	}
	if by := <-m.begun; by != "nomad  "+b.Manifest.Digest.String() {
		t.Errorf("it is compiled for %q", by)
	}
	if err := s.Remove(t.Context(), "nomad", name); err != nil {
		t.Fatal(err)
	}
	if len(m.ended) != 0 {
		t.Error("it has ended while an owner has the image")
	}
	if err := s.Remove(t.Context(), "cri", name); err != nil {
		t.Fatal(err)
	}
	if why := <-m.ended; why != "the image was removed" || len(m.begun) != 0 {
		t.Errorf("it has ended because %s; %d more were begun", why, len(m.begun))
	}
}

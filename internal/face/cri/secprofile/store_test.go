package secprofile_test

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/cri/secprofile"
)

const good = `{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW"}]}`

// registry is a registry and an image store for tests: artifacts by reference.
type registry struct {
	files map[string][]string
	kept  map[string]core.Image
	asked int
	fail  error
}

func (r *registry) Pull(_ context.Context, ref string, opts core.PullOptions) (core.Image, error) {
	r.asked++
	if r.fail != nil {
		return core.Image{}, r.fail
	}
	if !opts.Always {
		return core.Image{}, errors.New("the registry was not to be asked")
	}
	files, ok := r.files[ref]
	if !ok {
		return core.Image{}, fmt.Errorf("%s: %w", ref, errdefs.ErrNotFound)
	}
	img := core.Image{ID: digest.FromString(ref), Artifact: "application/vnd.example.profile"}
	for i, body := range files {
		img.Files = append(img.Files, core.ArtifactFile{Name: fmt.Sprint(i), Digest: digest.FromString(body), Size: int64(len(body))})
	}
	if len(files) == 0 {
		img.Artifact = ""
	}
	r.kept[string(img.ID)] = img
	return img, nil
}

func (r *registry) List(context.Context) (all []core.Image, err error) {
	for _, img := range r.kept {
		all = append(all, img)
	}
	return all, nil
}

func (r *registry) Remove(_ context.Context, id string) error {
	delete(r.kept, id)
	return nil
}

func (r *registry) export(_ context.Context, id string, w io.Writer) error {
	t := tar.NewWriter(w)
	for ref, files := range r.files {
		for _, body := range files {
			if string(digest.FromString(ref)) == id {
				if err := t.WriteHeader(&tar.Header{Name: "blobs/sha256/" + digest.FromString(body).Encoded(), Size: int64(len(body)), Mode: 0o644}); err != nil {
					return err
				}
				if _, err := io.WriteString(t, body); err != nil {
					return err
				}
			}
		}
	}
	return t.Close()
}

func open(t *testing.T, dir string, r *registry, policy string) *secprofile.Store {
	t.Helper()
	s, err := secprofile.Open(t.Context(), secprofile.Options{Dir: dir, Images: r, Export: r.export, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func pinned(name string) string { return name + "@" + string(digest.FromString(name)) }

func TestProfilesAreKept(t *testing.T) {
	dir, a, b := t.TempDir(), pinned("r.example/a"), pinned("r.example/b")
	r := &registry{files: map[string][]string{a: {good}, b: {good}}, kept: map[string]core.Image{}}
	s := open(t, dir, r, "")
	pull := func(ref string, cached bool) {
		t.Helper()
		if got, err := s.Pull(t.Context(), ref, core.PullOptions{}); err != nil || got != cached {
			t.Errorf("pull %s: cached %v, %v", ref, got, err)
		}
	}
	if _, err := s.Get(a); !errdefs.IsNotFound(err) {
		t.Errorf("before the pull: %v", err)
	}
	pull(a, false)
	pull(a, true)
	pull(b, false)
	if r.asked != 2 || len(r.kept) != 0 {
		t.Errorf("the registry was asked %d times, %d artifacts are left", r.asked, len(r.kept))
	}
	want := []secprofile.Info{{Digest: digest.FromString(good), Refs: []string{a, b}, Size: int64(len(good))}}
	if d := cmp.Diff(want, s.List()); d != "" {
		t.Error(d)
	}
	// A later agent has the profile still. It removes other files and artifacts.
	r.kept["sha256:left"] = core.Image{ID: "sha256:left"}
	if err := os.WriteFile(filepath.Join(dir, strings.Repeat("0", 64)+".json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	s = open(t, dir, r, "")
	if body, err := s.Get(b); err != nil || string(body) != good || len(r.kept) != 0 {
		t.Errorf("%q, %v, left %v", body, err, r.kept)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 2 {
		t.Errorf("%v, %v", left, err)
	}
	// Another policy must see the artifact.
	s = open(t, dir, r, "signed")
	pull(a, false)
	pull(a, true)
	for range 2 {
		if err := s.Remove(digest.FromString(good)); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Get(a); !errdefs.IsNotFound(err) || len(s.List()) != 0 {
		t.Errorf("after the removal: %v, %v", err, s.List())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("%v, %v", left, err)
	}
	if err := s.Remove("sha256:../x"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a digest that is none: %v", err)
	}
}

func TestDamagedProfilesArePulledAgain(t *testing.T) {
	dir, ref := t.TempDir(), pinned("r.example/a")
	r := &registry{files: map[string][]string{ref: {good}}, kept: map[string]core.Image{}}
	s := open(t, dir, r, "")
	damage := func() {
		t.Helper()
		if _, err := s.Pull(t.Context(), ref, core.PullOptions{}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, digest.FromString(good).Encoded()+".json"), []byte(`{"defaultAction":"SCMP_ACT_ALLOW"}`), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damage()
	if _, err := s.Get(ref); !errdefs.IsDataLoss(err) {
		t.Errorf("read: %v", err)
	}
	if cached, err := s.Pull(t.Context(), ref, core.PullOptions{}); cached || err != nil {
		t.Errorf("pull: cached %v, %v", cached, err)
	}
	damage()
	if s = open(t, dir, r, ""); len(s.List()) != 0 {
		t.Errorf("%v", s.List())
	}
}

func TestArtifactsThatAreNoProfiles(t *testing.T) {
	for name, c := range map[string]struct {
		ref   string
		files []string
		want  string
	}{
		"no digest":  {"r.example/p:1", []string{good}, "needs a digest"},
		"nothing":    {"", nil, "no reference"},
		"bad digest": {"r.example/p@sha256:0", []string{good}, "needs a digest"},
		"an image":   {pinned("i"), nil, "no artifact"},
		"two files":  {pinned("i"), []string{good, good}, "has 2 files"},
		"large":      {pinned("i"), []string{good + strings.Repeat(" ", 1<<20)}, "at most 1048576"},
		"no JSON":    {pinned("i"), []string{"apiVersion: v1"}, "seccomp profile"},
		"no profile": {pinned("i"), []string{`{"a":1}`}, "no default action"},
		"a listener": {pinned("i"), []string{`{"defaultAction":"SCMP_ACT_NOTIFY","listenerPath":"/x"}`}, "listenerPath"},
		"bad action": {pinned("i"), []string{`{"defaultAction":"ALLOW","syscalls":[]}`}, `action "ALLOW"`},
	} {
		r := &registry{files: map[string][]string{c.ref: c.files}, kept: map[string]core.Image{}}
		s := open(t, t.TempDir(), r, "")
		_, err := s.Pull(t.Context(), c.ref, core.PullOptions{})
		if !errors.Is(err, secprofile.ErrInvalid) || !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v; want %q", name, err, c.want)
		}
		if len(s.List()) > 0 || len(r.kept) > 0 {
			t.Errorf("%s: it left %v, %v", name, s.List(), r.kept)
		}
	}
	r := &registry{fail: fmt.Errorf("no route: %w", errdefs.ErrUnavailable), kept: map[string]core.Image{}}
	if _, err := open(t, t.TempDir(), r, "").Pull(t.Context(), pinned("i"), core.PullOptions{}); errors.Is(err, secprofile.ErrInvalid) || !errdefs.IsUnavailable(err) {
		t.Errorf("without a registry: %v", err)
	}
}

package ocispec_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/ocispec"
)

func TestHeadTakesFromRequestImageAndRoot(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"passwd": "app:x:7:8::/home/app:/bin/sh\n", "group": "app:x:8:\n"} {
		if err := os.MkdirAll(filepath.Join(dir, "etc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	outside := t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "leads")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = root.Close() }()
	img := &imagespec.ImageConfig{
		User: "app", Env: []string{"A=image", "B=image"}, Volumes: map[string]struct{}{"/data/db": {}, "/leads/away": {}},
	}
	s := ocispec.New()
	s.Process.Terminal = true
	ocispec.AddMounts(s, []specs.Mount{ocispec.ImageMount("/x/y", 1), {Destination: "/x", Type: "bind", Source: "image 7"}})
	head := ocispec.Head{
		User:       ocispec.UserNamed(""),
		Args:       func(*imagespec.ImageConfig) ([]string, error) { return []string{"run"}, nil },
		DefaultDir: "/work", Hostname: "node", Env: [][]string{{"A=one", "C=one"}, {"C=two"}},
		Program: func(p *specs.Process, _ *os.Root, u ocispec.User) { p.Args = append(p.Args, u.Home) },
	}
	user, err := head.Finish(s, core.Rootfs{FS: root, Image: img, Images: []string{"/zero", "/one"}})
	if err != nil {
		t.Fatal(err)
	}
	p := s.Process
	if user.UID != 7 || p.User.GID != 8 || !slices.Equal(p.Args, []string{"run", "/home/app"}) || p.Cwd != "/work" {
		t.Errorf("user %+v, args %q, directory %s", p.User, p.Args, p.Cwd)
	}
	if len(p.Capabilities.Effective) != 0 {
		t.Errorf("a user that is not root has the capabilities %q", p.Capabilities.Effective)
	}
	want := []string{"PATH=" + ocispec.DefaultPath, "HOME=/home/app", "HOSTNAME=node", "TERM=xterm", "B=image", "A=one", "C=two"}
	if !slices.Equal(p.Env, want) {
		t.Errorf("environment %q, want %q", p.Env, want)
	}
	if st, err := os.Stat(filepath.Join(dir, "data/db")); err != nil || !st.IsDir() {
		t.Errorf("a volume of the image is no directory: %v", err)
	}
	if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
		t.Errorf("a volume was made outside of the root: %v, %v", left, err)
	}
	last := s.Mounts[len(s.Mounts)-2:]
	if last[0].Destination != "/x" || last[0].Source != "image 7" || last[1].Destination != "/x/y" || last[1].Source != "/one" {
		t.Errorf("mounts %+v", last)
	}
}

// TestVolumesUnderAReadOnlyRoot: those that nothing else covers can be written to, and mounts in
// them come after them.
func TestVolumesUnderAReadOnlyRoot(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"etc", "data", "real/place"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for name, to := range map[string]string{"link": "real/place", "away": "/etc", "up": "../../.."} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	img := &imagespec.ImageConfig{Volumes: map[string]struct{}{}}
	for _, v := range []string{"/data", "/data/inner", "/made/here", "/link", "/away", "/up", "/file", "/proc/x", "/asked/below", "/asked"} {
		img.Volumes[v] = struct{}{}
	}
	for _, readOnly := range []bool{false, true} {
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = root.Close() }()
		s := ocispec.New()
		ocispec.AddMounts(s, []specs.Mount{{Destination: "/data/conf", Type: "bind", Source: "/srv"}, {Destination: "/asked", Type: "bind", Source: "/srv"}})
		before := len(s.Mounts)
		r := core.Rootfs{FS: root, Image: img, ReadOnly: readOnly}
		shown := ocispec.ImageVolumes(s, r)
		head := ocispec.Head{User: ocispec.UserNamed("0"), Args: func(*imagespec.ImageConfig) ([]string, error) { return []string{"run"}, nil }}
		if _, err := head.Finish(s, r); err != nil {
			t.Fatal(err)
		}
		want := []specs.Mount{}
		for _, v := range []struct{ at, from string }{{"/data", "data"}, {"/link", "real/place"}, {"/made/here", "made/here"}} {
			want = append(want, specs.Mount{Destination: v.at, Type: "bind", Source: filepath.Join(dir, v.from), Options: []string{"bind", "rprivate", "rw"}})
		}
		if d := cmp.Diff(want, shown); d != "" {
			t.Error(d)
		}
		at := func(p string) int {
			return slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == p })
		}
		if !readOnly {
			if len(s.Mounts) != before {
				t.Errorf("mounts %+v", s.Mounts)
			}
			continue
		}
		if len(s.Mounts) != before+len(want) || at("/data") < 0 || at("/data") > at("/data/conf") || at("/link") < 0 || at("/made/here") < 0 {
			t.Errorf("mounts %+v", s.Mounts)
		}
	}
}

func TestHeadEndsWithTheUsersError(t *testing.T) {
	refused := errors.New("refused")
	_, err := ocispec.Head{
		User: func(*os.Root, string) (ocispec.User, error) { return ocispec.User{}, refused },
	}.Finish(ocispec.New(), core.Rootfs{})
	if !errors.Is(err, refused) {
		t.Errorf("got %v", err)
	}
}

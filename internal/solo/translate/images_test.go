package translate

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
)

// files are those of an artifact with these names. The content of each is its name.
func files(names ...string) (list []core.ArtifactFile) {
	for _, n := range names {
		list = append(list, core.ArtifactFile{Name: n, Digest: digest.FromString(n)})
	}
	return list
}

// TestArtifactBinds follows podman's rules for the place of an artifact's files.
func TestArtifactBinds(t *testing.T) {
	dir := t.TempDir()
	for _, d := range []string{"tmp", "full/sub"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("full", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = root.Close() })
	a := "sha256-" + digest.FromString("a").Encoded()
	one, two, many := files("a"), files("a", "d/b"), []string{}
	for i := range maxArtifactBinds + 1 {
		many = append(many, fmt.Sprint(i))
	}
	for _, c := range []struct {
		mount *longshorev1.ImageMount
		files []core.ArtifactFile
		want  string // FILE:TARGET…, or a part of the error
	}{
		{&longshorev1.ImageMount{Target: "/new/x"}, one, "a:/new/x"},
		{&longshorev1.ImageMount{Target: "/file"}, one, "a:/file"},
		{&longshorev1.ImageMount{Target: "/tmp"}, one, "a:/tmp/a"},
		{&longshorev1.ImageMount{Target: "/full", Name: "n"}, one, "a:/full/n"},
		{&longshorev1.ImageMount{Target: "/link", Name: "n"}, one, "a:/link/n"},
		{&longshorev1.ImageMount{Target: "/new", Name: "n"}, one, "a:/new"},
		{&longshorev1.ImageMount{Target: "/new"}, two, ":/new"},
		{&longshorev1.ImageMount{Target: "/tmp"}, two, ":/tmp"},
		{&longshorev1.ImageMount{Target: "/full"}, two, "a:/full/a d/b:/full/d/b"},
		{&longshorev1.ImageMount{Target: "/new", Name: "n"}, two, "a:/new/n-0 d/b:/new/n-1"},
		{&longshorev1.ImageMount{Target: "/new", Title: "d/b"}, two, "d/b:/new"},
		{&longshorev1.ImageMount{Target: "/full", Title: "d/b"}, two, "d/b:/full/d/b"},
		{&longshorev1.ImageMount{Target: "/tmp", Digest: digest.FromString("a").String()}, two, "a:/tmp/" + a},
		{&longshorev1.ImageMount{Target: "/new", Digest: digest.FromString("a").String()}, two, "a:/new"},
		{&longshorev1.ImageMount{Target: "/new"}, nil, ":/new"},
		{&longshorev1.ImageMount{Target: "/file"}, two, "it is a file"},
		{&longshorev1.ImageMount{Target: "/new", Title: "c"}, two, `it has 2, among them "a", "d/b"`},
		{&longshorev1.ImageMount{Target: "/full"}, files(many...), "at most 100"},
	} {
		binds, err := artifactBinds(c.mount, c.files, root)
		var got []string
		for _, b := range binds {
			got = append(got, b.file+":"+b.target)
		}
		if text := strings.Join(got, " "); text != c.want && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%v: %q, %v", c.mount, text, err)
		}
	}
}

func TestImageMountsThatContradictThemselves(t *testing.T) {
	for want, m := range map[string]*longshorev1.ImageMount{
		"a source is needed":    {Target: "/a"},
		"leads out":             {Image: "x", Target: "/a", SubPath: "../b"},
		"its type is image":     {Image: "x", Target: "/a", Title: "t"},
		"needs the type image":  {Image: "x", Target: "/a", Artifact: true, SubPath: "s"},
		"cannot be combined":    {Image: "x", Target: "/a", Artifact: true, Title: "t", Digest: "d"},
		"no name of a file":     {Image: "x", Target: "/a", Artifact: true, Name: "../n"},
		"not an absolute path":  {Image: "x", Target: "a"},
		"path below /":          {Image: "x", Target: "/"},
		"an image and no artif": {Image: "x", Target: "/a", Artifact: true},
	} {
		req := &longshorev1.CreateRequest{Image: "busybox", Images: []*longshorev1.ImageMount{m}}
		err := Check(req)
		if err == nil {
			_, err = Container(req, "c", core.Image{}, []core.Image{{ID: "sha256:x"}})
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
	req := &longshorev1.CreateRequest{Image: "busybox", Images: []*longshorev1.ImageMount{{Image: "x", Target: "/a"}}, Tmpfs: []*longshorev1.Tmpfs{{Target: "/a"}}}
	if err := Check(req); err == nil || !strings.Contains(err.Error(), "set twice") {
		t.Errorf("two at one target: %v", err)
	}
	cfg, err := Container(&longshorev1.CreateRequest{Image: "busybox", Images: []*longshorev1.ImageMount{{Image: "x", Target: "/a", SubPath: "s"}}}, "c", core.Image{}, []core.Image{{ID: "sha256:x"}})
	if want := []core.ImageMount{{Image: "sha256:x", SubPath: "s"}}; err != nil || !slices.Equal(cfg.Images, want) {
		t.Errorf("%+v, %v", cfg.Images, err)
	}
}

package image_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/layout"
	"github.com/longshore/longshore/internal/roottest"
)

func TestArtifactsWithOtherTools(t *testing.T) { roottest.Run(t, artifactsWithOtherTools) }

// artifactsWithOtherTools sends an artifact to Debian's registry, pulls it from there, and has skopeo copy it to a layout that is
// imported.
func artifactsWithOtherTools(t *testing.T) {
	t.Helper()
	need(t, "skopeo", "docker-registry")
	reg := startRegistry(t, false, false)
	ref := reg.host + "/team/model:v1"
	b := model().Build()
	var archive bytes.Buffer
	do(t, imagetest.WriteOCI(&archive, map[string]imagetest.Built{ref: b}))
	s := open(t, t.TempDir())
	if _, err := s.Import(t.Context(), "cli", &archive, core.ImportOptions{}); err != nil {
		t.Fatal(err)
	}
	do(t, s.Push(t.Context(), "cli", ref, core.PushOptions{}))
	dir := t.TempDir()
	out := run(t, dir, "skopeo", "inspect", "--tls-verify=false", "--no-tags", "--raw", "docker://"+ref)
	if out != string(b.Blobs[b.Manifest.Digest]) {
		t.Errorf("the registry has another manifest: %s", out)
	}
	pulled, err := open(t, t.TempDir()).Pull(t.Context(), "cli", ref, core.PullOptions{})
	if err != nil || pulled.ID != b.Manifest.Digest {
		t.Errorf("%+v, %v", pulled, err)
	}
	run(t, dir, "skopeo", "copy", "--quiet", "--insecure-policy", "--src-tls-verify=false", "docker://"+ref, "oci:"+dir+"/layout:v1")
	list, err := open(t, t.TempDir()).Import(t.Context(), "cli", layout.Archive(dir+"/layout"), core.ImportOptions{})
	if err != nil || len(list) != 1 || list[0].ID != b.Manifest.Digest || !slices.Equal(list[0].Files, pulled.Files) {
		t.Errorf("%+v, %v", list, err)
	}
}

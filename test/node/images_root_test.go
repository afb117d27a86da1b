package node

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestImagesOfDirectoriesAndOtherPlatforms: images of an OCI layout's directory run, the steps
// of a start are listed, before and after the agent's death, and an image of another platform
// is refused.
func TestImagesOfDirectoriesAndOtherPlatforms(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		cli := func(args ...string) string {
			t.Helper()
			out, err := n.CLI(args...)
			if err != nil {
				t.Fatalf("longshore %s: %v\n%s", strings.Join(args, " "), err, out)
			}
			return out
		}
		refused := func(says []string, args ...string) {
			t.Helper()
			out, err := n.CLI(args...)
			for _, want := range says {
				if err == nil || !strings.Contains(out+err.Error(), want) {
					t.Errorf("longshore %s: %v\n%s\nwant it to say %q", strings.Join(args, " "), err, out, want)
				}
			}
		}
		built, err := nodetest.BusyboxImage()
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		var archive bytes.Buffer
		if err := imagetest.WriteOCI(&archive, map[string]imagetest.Built{"registry.example/team/box:v1": built, "registry.example/team/box:v2": built}); err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(t.TempDir(), "layout")
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		untar := exec.CommandContext(t.Context(), "tar", "-x", "-C", dir)
		untar.Stdin = &archive
		if out, err := untar.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		names := strings.Fields(cli("import", dir))
		if len(names) != 2 || !strings.HasPrefix(names[0]+names[1], "registry.example/team/box:v") || names[0] == names[1] {
			t.Errorf("imported %q", names)
		}
		if out := cli("run", "--rm", "registry.example/team/box:v1", "echo", "it runs"); !strings.Contains(out, "it runs") {
			t.Errorf("it says %q", out)
		}
		reg := imagetest.NewRegistry(t)
		ref := reg.Push("team/box", "v1", built)
		cli("run", "-d", "--name", "web", ref, "sleep", "100000")
		why := cli("why", "--start", "web")
		for _, want := range []string{"web: started", "pull of its image", "asked by cli", "resolve", "fetch", "unpack", "sandbox", "network", "container", "root", "launch"} {
			if !strings.Contains(why, want) {
				t.Errorf("why --start lacks %q:\n%s", want, why)
			}
		}
		t.Logf("\n%s", why)
		n.Kill()
		n.Up()
		if again := cli("why", "--start", "web"); again != why {
			t.Errorf("after the agent's restart:\n%s\nbefore:\n%s", again, why)
		}
		cli("rm", "-f", "web")

		foreign := imagetest.Image{
			Layers: [][]imagetest.File{{{Name: "bin/sh", Body: []byte("\x7fELF"), Mode: 0o755}}}, Config: ocispec.ImageConfig{Cmd: []string{"/bin/sh"}},
			Platform: ocispec.Platform{OS: "linux", Architecture: "mips64le"},
		}.Build()
		foreign.Manifest.Platform = nil
		other := reg.Push("team/foreign", "v1", foreign)
		refused([]string{"linux/mips64le", "this node is linux/", "--platform linux/mips64le"}, "pull", other)
		refused([]string{"linux/mips64le", "this node is linux/"}, "run", "--rm", other)
		_, err = n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: other}})
		if err == nil || !strings.Contains(err.Error(), "the image is for linux/mips64le, and this node is linux/") {
			t.Errorf("CRI's PullImage: %v", err)
		}
		cli("pull", "--platform", "linux/mips64le", other)
		refused([]string{"linux/mips64le", "this node is linux/", "qemu-user-static"}, "run", "--rm", "--platform", "linux/mips64le", other)
		if left := strings.TrimSpace(cli("ps", "-a", "-q")); left != "" {
			t.Errorf("containers are left: %s", left)
		}
		clean(t, n)
	})
}

package node

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/beneath/beneathtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestMountsOntoLinksOfAnImageThatLeadNowhere: a container's usual files and its user's mounts work there, by CLI and
// CRI.
func TestMountsOntoLinksOfAnImageThatLeadNowhere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		files, err := imagetest.Busybox("/bin/busybox", nodetest.Applets...)
		if err != nil {
			t.Skipf("no busybox-static: %v", err)
		}
		files = slices.DeleteFunc(files, func(f imagetest.File) bool { return f.Name == "run/" })
		for name, target := range map[string]string{
			"etc/resolv.conf": "../run/systemd/resolve/stub-resolv.conf", "etc/hostname": "/nowhere/hostname", "etc/localtime": "/zoneinfo/UTC", "var/run": "/run",
		} {
			files = append(files, imagetest.File{Name: name, Link: target})
		}
		built := imagetest.Image{Layers: [][]imagetest.File{files}, Config: ocispec.ImageConfig{Env: []string{"PATH=/bin"}}}.Build()
		image := imagetest.NewRegistry(t).Push("linked", "latest", built)
		if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "UTC")
		if err := os.WriteFile(file, []byte("zone\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		const script = "cat /zoneinfo/UTC /run/secrets/token; [ -f /etc/resolv.conf ] && grep -q . /etc/hosts && echo ok"
		const want = "zone\nzone\nok\n"
		for name, args := range map[string][]string{"cli": nil, "cli in a user namespace": {"--userns", "auto"}, "cli with a tmpfs": {"--tmpfs", "/run"}} {
			args := append([]string{"run", "--rm", "-v", file + ":/etc/localtime:ro", "-v", file + ":/var/run/secrets/token:ro"}, args...)
			if out, err := n.CLI(append(args, image, "/bin/sh", "-c", script)...); err != nil || out != want {
				t.Errorf("%s: %q, %v", name, out, err)
			}
		}
		pod := n.RunPod(t, n.PodConfig("links"))
		cfg := nodetest.ContainerConfig("c", image, "/bin/sh", "-c", script)
		for _, to := range []string{"/etc/localtime", "/var/run/secrets/token"} {
			cfg.Mounts = append(cfg.Mounts, &runtimeapi.Mount{ContainerPath: to, HostPath: file, Readonly: true})
		}
		c := pod.Run(t, cfg)
		c.WaitExited(t)
		log, err := os.ReadFile(c.Log)
		for _, text := range []string{" zone\n", " ok\n"} {
			if err != nil || !strings.Contains(string(log), text) {
				t.Errorf("cri: %q, %v", log, err)
			}
		}
		pod.Remove(t)
		clean(t, n)
	})
}

// TestEachMountOntoALinkThatLeadsNowhere: the table of such links, by CLI and CRI.
func TestEachMountOntoALinkThatLeadsNowhere(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		image, dir := nodetest.DanglingImage(t)
		if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil {
			t.Fatal(err)
		}
		list, script, want := beneathtest.DanglingMounts()
		typed := func(list []beneathtest.Dangling, script string) (string, error) {
			args := []string{"run", "--rm"}
			for _, d := range list {
				args = append(args, "-v", d.Source(dir)+":"+d.Mount+":ro")
			}
			return n.CLI(append(args, image, "/bin/sh", "-c", script)...)
		}
		if out, err := typed(list, script); err != nil || out != want {
			t.Errorf("cli: %q, %v, want %q", out, err, want)
		}
		pod := n.RunPod(t, n.PodConfig("links"))
		config := func(list []beneathtest.Dangling, script string) *runtimeapi.ContainerConfig {
			cfg := nodetest.ContainerConfig("c", image, "/bin/sh", "-c", script)
			for _, d := range list {
				cfg.Mounts = append(cfg.Mounts, &runtimeapi.Mount{ContainerPath: d.Mount, HostPath: d.Source(dir), Readonly: true})
			}
			return cfg
		}
		c := pod.Run(t, config(list, script))
		c.WaitExited(t)
		for line := range strings.Lines(want) {
			if log := c.ReadLog(t); !strings.Contains(log, line) {
				t.Errorf("cri: %q lacks %q", log, line)
			}
		}
		for _, d := range beneathtest.DanglingRefused() {
			if out, err := typed([]beneathtest.Dangling{d}, "true"); err == nil {
				t.Errorf("cli: %s was not refused: %q", d.Name, out)
			}
			cfg := config([]beneathtest.Dangling{d}, "true")
			cfg.Metadata.Name = "refused"
			if r, err := n.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: cfg, SandboxConfig: pod.Config}); err == nil {
				t.Errorf("cri: %s was not refused: %v", d.Name, r)
			}
		}
		pod.Remove(t)
		clean(t, n)
	})
}

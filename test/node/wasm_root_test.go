package node

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// saying is a module that writes a text to its standard output: (fd_write 1 (iovec "text\n")).
func saying(text string) []byte {
	text += "\n"
	section := func(id byte, body string) string { return string([]byte{id, byte(len(body))}) + body }
	const at = 16
	return []byte("\x00asm\x01\x00\x00\x00" +
		section(1, "\x02\x60\x04\x7f\x7f\x7f\x7f\x01\x7f\x60\x00\x00") +
		section(2, "\x01\x16wasi_snapshot_preview1\x08fd_write\x00\x00") +
		section(3, "\x01\x01") + section(5, "\x01\x00\x01") +
		section(7, "\x02\x06_start\x00\x01\x06memory\x02\x00") +
		section(10, "\x01\x0d\x00\x41\x01\x41\x00\x41\x01\x41\x08\x10\x00\x1a\x0b") +
		section(11, "\x01\x00\x41\x00\x0b"+string([]byte{byte(at + len(text))})+
			string([]byte{at, 0, 0, 0, byte(len(text)), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})+text))
}

// TestAModuleHoldsWhatItIsGranted runs WebAssembly from an artifact and from an image of ordinary layers, beside an ordinary sidecar.
func TestAModuleHoldsWhatItIsGranted(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		busybox, registry := n.Busybox(t), imagetest.NewRegistry(t)
		module := saying("said by a module")
		images := map[string]imagetest.Built{
			"artifact": imagetest.Wasm{
				Module: module, LayerType: "application/wasm", ConfigType: wasm.ConfigType,
				Config:   map[string]any{"architecture": "wasm", "os": "wasip1", "layerDigests": []digest.Digest{digest.FromBytes(module)}},
				Platform: &ocispec.Platform{OS: "wasip1", Architecture: "wasm"},
			}.Build(),
			"compat": imagetest.Image{
				Layers: [][]imagetest.File{{{Name: "app.wasm", Body: module}}},
				Config: ocispec.ImageConfig{Entrypoint: []string{"/app.wasm"}, Labels: map[string]string{"module.wasm.image/variant": "compat"}},
			}.Build(),
			"component-layer": imagetest.Wasm{
				Module: module, LayerType: "application/vnd.bytecodealliance.component.layer.v0+wasm", ConfigType: "application/vnd.oci.image.config.v1+json",
				Config: map[string]any{"architecture": "wasm", "os": "wasip1"}, Platform: &ocispec.Platform{OS: "wasip1", Architecture: "wasm"},
			}.Build(),
			"content-layer": imagetest.Wasm{
				Module: module, LayerType: "application/vnd.wasm.content.layer.v1+wasm", ConfigType: "application/vnd.wasm.config.v1+json", Config: map[string]any{"name": "x"},
				Annotations: map[string]string{wasm.GrantsAnnotation: "{log: !container_log }"},
			}.Build(),
		}
		pod := n.RunPod(t, n.PodConfig("modules"))
		sidecar := pod.Run(t, nodetest.ContainerConfig("sidecar", busybox, "sleep", "1000"))
		for form, built := range images {
			ref := registry.Push(form, "v1", built)
			if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
				t.Fatal(err)
			}
			for document, want := range map[string]bool{"{log: !container_log }": true, "{}": false} {
				name := form + map[bool]string{true: "-log", false: "-nothing"}[want]
				cfg := nodetest.ContainerConfig(name, ref)
				cfg.Command, cfg.Annotations = nil, map[string]string{core.GrantAnnotation: document}
				c := pod.Run(t, cfg)
				st := c.WaitExited(t)
				if said := strings.Contains(c.ReadLog(t), "stdout F said by a module\n"); st.GetExitCode() != 0 || said != want {
					t.Errorf("%s: it ended with %d, log %q", name, st.GetExitCode(), c.ReadLog(t))
				}
			}
		}
		if r, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: sidecar.ID, Cmd: []string{"true"}, Timeout: 30}); err != nil || r.GetExitCode() != 0 {
			t.Errorf("the sidecar: %v, %v", r, err)
		}
		pod.Remove(t)
		n.Check()
		for form := range images {
			if form == "artifact" {
				continue
			}
			if _, err := n.Images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: registry.Host + "/" + form + ":v1"}}); err != nil {
				t.Fatal(err)
			}
		}
		t.Run("compiled", func(t *testing.T) { compiledOnce(t, n, registry, images["artifact"]) })
	})
}

// compiledOnce: the compiled code of a module is kept while its image exists, and made again if it is damaged.
func compiledOnce(t *testing.T, n *nodetest.Node, registry *imagetest.Registry, built imagetest.Built) {
	t.Helper()
	dir := filepath.Join(n.Root, "wasm")
	entries := func() (paths []string) {
		t.Helper()
		list, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if !strings.HasPrefix(e.Name(), ".") {
				paths = append(paths, filepath.Join(dir, e.Name()))
			}
		}
		return paths
	}
	ref := registry.Push("artifact", "v1", built)
	kept := entries()
	if len(kept) != 1 {
		t.Fatalf("all images are of one module, and the cache has %v", kept)
	}
	if st, err := os.Stat(dir); err != nil || st.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", st, err)
	}
	whole, err := os.ReadFile(kept[0])
	if err != nil {
		t.Fatal(err)
	}
	damaged := bytes.Clone(whole)
	damaged[len(damaged)/2] ^= 1
	if err := os.WriteFile(kept[0], damaged, 0o600); err != nil {
		t.Fatal(err)
	}
	pod := n.RunPod(t, n.PodConfig("again"))
	cfg := nodetest.ContainerConfig("damaged", ref)
	cfg.Command, cfg.Annotations = nil, map[string]string{core.GrantAnnotation: "{log: !container_log }"}
	c := pod.Run(t, cfg)
	if st := c.WaitExited(t); st.GetExitCode() != 0 || !strings.Contains(c.ReadLog(t), "said by a module") {
		t.Errorf("with a damaged entry it ended with %d, log %q", st.GetExitCode(), c.ReadLog(t))
	}
	if mended, err := os.ReadFile(kept[0]); err != nil || !bytes.Equal(mended, whole) {
		t.Errorf("the damaged entry stays: %v", err)
	}
	pod.Remove(t)
	if _, err := n.Images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	if left := entries(); len(left) != 0 {
		t.Errorf("after the image's removal the cache has %v", left)
	}
	// Nobody starts anything of it: it is compiled at the pull.
	if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	nodetest.Eventually(t, "the module is compiled after the pull", func() bool { return len(entries()) == 1 })
	if said := n.Finding(t, "wasm"); !strings.HasPrefix(said, "1 compiled modules of ") || !strings.Contains(said, "seccomp, 0 capabilities, no new privileges") {
		t.Errorf("doctor says: %s", said)
	}
}

// TestABusyModuleObeysAStop: on its only processor it makes no calls, and ends by the stop's signal within the grace.
func TestABusyModuleObeysAStop(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		busy := []byte("\x00asm\x01\x00\x00\x00\x01\x04\x01\x60\x00\x00\x03\x02\x01\x00\x07\x0a\x01\x06_start\x00\x00\x0a\x09\x01\x07\x00\x03\x40\x0c\x00\x0b\x0b")
		ref := imagetest.NewRegistry(t).Push("busy", "v1", imagetest.Image{Layers: [][]imagetest.File{{{Name: "busy.wasm", Body: busy}}}}.Build())
		if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
		pod := n.RunPod(t, n.PodConfig("busy"))
		cfg := nodetest.ContainerConfig("busy", ref, "/busy.wasm")
		cfg.Annotations = map[string]string{core.GrantAnnotation: "{}"}
		cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{CpusetCpus: "0"}
		c := pod.Run(t, cfg)
		nodetest.Eventually(t, "it is busy", func() bool {
			r, err := n.CRI.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: c.ID})
			return err == nil && r.GetStats().GetCpu().GetUsageCoreNanoSeconds().GetValue() > 1e9
		})
		if _, err := n.CRI.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: 10}); err != nil {
			t.Fatal(err)
		}
		if st := c.WaitExited(t); st.GetExitCode() != 128+15 {
			t.Errorf("it ended with %d (%s)", st.GetExitCode(), st.GetReason())
		}
		pod.Remove(t)
	})
}

package node

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAStopDoesNotWaitForTheCompilationOfAModule: a pod is stopped while a container in it waits for the
// compilation of its module, which takes up to a minute.
func TestAStopDoesNotWaitForTheCompilationOfAModule(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		module := imagetest.SlowModule(100, "stopped")
		image := imagetest.NewRegistry(t).Push("slow", "v1", imagetest.Wasm{
			Module: module, LayerType: "application/wasm", ConfigType: wasm.ConfigType,
			Config:   map[string]any{"architecture": "wasm", "os": "wasip1", "layerDigests": []digest.Digest{digest.FromBytes(module)}},
			Platform: &ocispec.Platform{OS: "wasip1", Architecture: "wasm"},
		}.Build())
		if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil {
			t.Fatal(err)
		}
		pod := n.RunPod(t, n.PodConfig("slow"))
		cfg := nodetest.ContainerConfig("slow", image)
		cfg.Command, cfg.Annotations = nil, map[string]string{core.GrantAnnotation: "{}"}
		created := make(chan error, 1)
		go func() {
			_, err := n.CRI.CreateContainer(t.Context(), &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: cfg, SandboxConfig: pod.Config})
			created <- err
		}()
		nodetest.Eventually(t, "the create waits for the module", func() bool {
			began := slices.ContainsFunc(n.Events(), func(e nodetest.Event) bool { return e.Kind == "container.creating" })
			return began && !strings.Contains(n.Finding(t, "wasm"), " 0 being compiled")
		})
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		begun := time.Now()
		if _, err := n.CRI.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.ID}); err != nil {
			t.Errorf("StopPodSandbox after %s: %v", time.Since(begun), err)
		}
		t.Logf("stopped in %s", time.Since(begun))
		if err := <-created; status.Code(err) != codes.Aborted {
			t.Errorf("CreateContainer: %v", err)
		}
		pod.Remove(t)
		if _, err := n.Images.RemoveImage(t.Context(), &runtimeapi.RemoveImageRequest{Image: &runtimeapi.ImageSpec{Image: image}}); err != nil { // it ends the compilation
			t.Error(err)
		}
		clean(t, n)
	})
}

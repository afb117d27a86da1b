package attack

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/test/nodetest"
)

// moduleAttempts are those of makers of WebAssembly modules.
func moduleAttempts() []attempt {
	return []attempt{{name: "modules that take long to compile", actor: jobAuthor, weak: weaken.CompileTurns, run: slowModules}}
}

// moduleImage is an image that is a module.
func moduleImage(module []byte) imagetest.Built {
	return imagetest.Wasm{
		Module: module, LayerType: "application/wasm", ConfigType: wasm.ConfigType,
		Config:   map[string]any{"architecture": "wasm", "os": "wasip1", "layerDigests": []digest.Digest{digest.FromBytes(module)}},
		Platform: &ocispec.Platform{OS: "wasip1", Architecture: "wasm"},
	}.Build()
}

// firstStart is how long a neighbour's first start may take: a start waits ten seconds for its turn at most.
const firstStart = 25 * time.Second

// slowModules pulls and starts modules that take a minute each to compile. Meanwhile a neighbour in another namespace starts a
// module of some 50 bytes for the first time.
func slowModules(t *testing.T, w *world) result {
	reg := imagetest.NewRegistry(t)
	pod := w.moduleSandbox(t, "slow-modules", "attacker")
	defer pod.Remove(t)
	neighbour := w.moduleSandbox(t, "small-module", "neighbour")
	defer neighbour.Remove(t)
	ctx, end := context.WithCancel(t.Context())
	var refs []string
	var attack sync.WaitGroup
	defer func() {
		end()
		attack.Wait()
		for _, ref := range refs {
			w.forget(t, ref) // it ends the compilation
		}
	}()
	for i := range 6 {
		name := fmt.Sprint("slow", i)
		ref := reg.Push(name, "v1", moduleImage(imagetest.SlowModule(100, name)))
		if err := w.pull(t, ref); err != nil {
			return is(unmade, "%v", err)
		}
		refs = append(refs, ref)
		attack.Go(func() {
			_, _ = w.CRI.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: pod.ID, Config: moduleConfig(name, ref), SandboxConfig: pod.Config})
		})
	}
	nodetest.Eventually(t, "a module is compiled, and others wait", func() bool {
		said := w.Finding(t, "wasm")
		return !strings.Contains(said, " 0 being compiled") && !strings.Contains(said, " 0 waiting")
	})
	ref := reg.Push("small", "v1", moduleImage(imagetest.Module("wasi_snapshot_preview1.fd_close")))
	if err := w.pull(t, ref); err != nil {
		return is(unmade, "%v", err)
	}
	refs = append(refs, ref)
	begin := time.Now()
	patient, cancel := context.WithTimeout(t.Context(), firstStart)
	defer cancel()
	_, err := w.CRI.CreateContainer(patient, &runtimeapi.CreateContainerRequest{PodSandboxId: neighbour.ID, Config: moduleConfig("small", ref), SandboxConfig: neighbour.Config})
	took := time.Since(begin).Round(time.Millisecond)
	switch {
	case expired(patient):
		return is(reached, "a neighbour's module of 50 bytes has not started after %s; %s", took, w.Finding(t, "wasm"))
	case err != nil:
		return is(unmade, "%v", err)
	}
	return is(bounded, "a neighbour's module has started after %s, beside %d slow ones; %s", took, len(refs)-1, w.Finding(t, "wasm"))
}

func (w *world) moduleSandbox(t *testing.T, name, namespace string) *nodetest.Pod {
	t.Helper()
	cfg := w.PodConfig(name)
	cfg.Metadata.Namespace = namespace
	return w.RunPod(t, cfg)
}

func moduleConfig(name, ref string) *runtimeapi.ContainerConfig {
	c := nodetest.ContainerConfig(name, ref)
	c.Command, c.Annotations = nil, map[string]string{core.GrantAnnotation: "{}"}
	return c
}

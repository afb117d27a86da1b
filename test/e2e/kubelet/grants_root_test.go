package kubelet

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/test/nodetest"
)

// module is a web server as WebAssembly, as a registry has it.
func module(t *testing.T) imagetest.Built {
	t.Helper()
	path := filepath.Join(t.TempDir(), "module.wasm")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", path, "./test/node/testdata/wasip1")
	cmd.Dir, cmd.Env = "../../..", append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm", "GOFLAGS=")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return imagetest.Wasm{
		Module: text, LayerType: "application/wasm", ConfigType: wasm.ConfigType, Config: map[string]any{"architecture": "wasm", "os": "wasip1"},
		Platform: &ocispec.Platform{OS: "wasip1", Architecture: "wasm"},
	}.Build()
}

// grantedPods: the image and the annotation of a static pod make one of its programs a granted one. The kubelet asks it
// by HTTP whether it is ready and lives, stops it by its grant, and restarts one that has no listener.
func grantedPods(t *testing.T, n *node) {
	const image = "registry.example/server:1"
	n.Registry.Push("server", "1", module(t))
	server := func(name, document string) *corev1.Pod {
		h := corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Port: intstr.FromInt32(8080), Path: "/"}}
		c := corev1.Container{Name: "server", Image: image, ImagePullPolicy: corev1.PullIfNotPresent, ReadinessProbe: probe(h, 3), LivenessProbe: probe(h, 30), StartupProbe: probe(h, 600)}
		p := pod(name, c, shell("sidecar", idle))
		p.Annotations = map[string]string{core.GrantAnnotation + "/server": document}
		return p
	}
	n.run(t, server("granted", "{log: !container_log , listen: !listen {tcp: 8080}, shutdown: !shutdown , greeting: hello from a static pod}"))
	if out := n.exec(t, "granted", "sidecar", "wget -qO- http://127.0.0.1:8080/"); out != "hello from a static pod" {
		t.Errorf("it answers %q", out)
	}
	if s := status(n.pod(t, "granted"), "server"); s.RestartCount != 0 || !s.Ready {
		t.Errorf("%+v", s)
	}
	n.remove(t, "granted")
	n.add(t, server("ungranted", "{log: !container_log }"))
	n.wait(t, "ungranted", "has been started again, and is not ready", func(p *corev1.Pod) bool {
		s := status(p, "server")
		return !s.Ready && s.RestartCount > 0 && s.LastTerminationState.Terminated != nil && s.LastTerminationState.Terminated.ExitCode == 3
	})
	nodetest.Eventually(t, "it says why", func() bool {
		return strings.Contains(n.output(t, "ungranted", "server", "previous=true"), "failed: open /fd/5: ")
	})
}

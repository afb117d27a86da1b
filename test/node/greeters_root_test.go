package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTheGuidesFirstPrograms: the greeters of contrib/grants, in Go and, where there is a compiler, C and Rust,
// answer, log and stop when asked to, with the document beside them. Without a listener each reports a permission
// error.
func TestTheGuidesFirstPrograms(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		const contrib = "../../contrib/grants/"
		n := nodetest.Start(t, nodetest.Options{})
		busybox, registry, document := n.Busybox(t), imagetest.NewRegistry(t), nodetest.Example(t)
		pod := n.RunPod(t, n.PodConfig("greeters"))
		sidecar := pod.Run(t, nodetest.ContainerConfig("sidecar", busybox, "sleep", "1000"))
		for language, build := range map[string][]string{
			"go":   {"go", "build", "-ldflags=-s -w", "-o", "", contrib + "greeter"},
			"c":    {"gcc", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o", "", contrib + "greeter.c"},
			"rust": {"rustc", "-O", "-D", "warnings", "-C", "target-feature=+crt-static", "-o", "", contrib + "greeter.rs"},
		} {
			if _, err := exec.LookPath(build[0]); err != nil {
				t.Logf("%s: no compiler: %v", language, err)
				continue
			}
			path := filepath.Join(t.TempDir(), "greeter")
			build[len(build)-2] = path
			cmd := exec.CommandContext(t.Context(), build[0], build[1:]...)
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%s: %v\n%s", language, err, out)
			}
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			ref := registry.Push(language, "v1", imagetest.Image{
				Layers: [][]imagetest.File{{{Name: "greeter", Body: text, Mode: 0o755}}}, Config: ocispec.ImageConfig{Entrypoint: []string{"/greeter"}},
			}.Build())
			if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
				t.Fatal(err)
			}
			run := func(name, document string) *nodetest.Container {
				t.Helper()
				cfg := nodetest.ContainerConfig(language+name, ref)
				cfg.Annotations = map[string]string{core.GrantAnnotation: document}
				return pod.Run(t, cfg)
			}
			c, said := run("", document), ""
			nodetest.Eventually(t, "the greeter in "+language+" answers", func() bool {
				r, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: sidecar.ID, Cmd: []string{"wget", "-qO-", "http://127.0.0.1:8080/"}, Timeout: 30})
				said = string(r.GetStdout())
				return err == nil && r.GetExitCode() == 0
			})
			if said != "hello\n" {
				t.Errorf("%s: it answers %q", language, said)
			}
			if _, err := n.CRI.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: 600}); err != nil {
				t.Error(err)
			}
			if st := c.Status(t); st.GetExitCode() != 0 || !strings.Contains(c.ReadLog(t), "serving\n") {
				t.Errorf("%s: it ended with %d: %s", language, st.GetExitCode(), c.ReadLog(t))
			}
			c = run("-nothing", "{greeting: hello}")
			if st := c.WaitExited(t); st.GetExitCode() != 1 || !strings.Contains(strings.ToLower(c.ReadLog(t)), "operation not permitted") {
				t.Errorf("%s without a listener ended with %d: %s", language, st.GetExitCode(), c.ReadLog(t))
			}
		}
		pod.Remove(t)
		n.Check()
	})
}

package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// wasip1 builds a program of testdata for WebAssembly.
func wasip1(t *testing.T, program string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), "module.wasm")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", path, "./testdata/"+program)
	cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestAModuleServesThePod: a web server in Go as WebAssembly has the pod's port, beside an ordinary container, in a pod of each
// handler for modules. It is asked to stop by its grant.
func TestAModuleServesThePod(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		busybox := n.Busybox(t)
		ref := imagetest.NewRegistry(t).Push("server", "v1", imagetest.Wasm{
			Module: wasip1(t, "wasip1"), LayerType: "application/wasm", ConfigType: wasm.ConfigType, Config: map[string]any{"architecture": "wasm", "os": "wasip1"},
			Platform: &ocispec.Platform{OS: "wasip1", Architecture: "wasm"},
		}.Build())
		if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
		for _, handler := range append(core.WasmHandlers(), "") {
			cfg := n.PodConfig("modules-" + handler)
			r, err := n.CRI.RunPodSandbox(t.Context(), &runtimeapi.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
			if err != nil {
				t.Fatal(err)
			}
			pod := n.Pod(r.GetPodSandboxId(), cfg)
			data := t.TempDir()
			server := nodetest.ContainerConfig("server", ref)
			server.Command, server.Args = nil, []string{"an argument"}
			server.Envs = []*runtimeapi.KeyValue{{Key: "HOME", Value: []byte("/home")}, {Key: "PASSWORD", Value: []byte("secret")}}
			server.Mounts = []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: data}}
			server.Annotations = map[string]string{core.GrantAnnotation: "{log: !container_log , data: !mount /data, listen: !listen {tcp: 8080}, shutdown: !shutdown , home: !env HOME, clock: !clock , random: !random , greeting: hello from a module}"}
			c := pod.Run(t, server)
			sidecar := pod.Run(t, nodetest.ContainerConfig("sidecar", busybox, "sleep", "1000"))
			get := func(path, want string) {
				t.Helper()
				nodetest.Eventually(t, path+" is answered", func() bool {
					r, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: sidecar.ID, Cmd: []string{"wget", "-qO-", "http://127.0.0.1:8080" + path}, Timeout: 30})
					if err == nil && r.GetExitCode() == 0 && string(r.GetStdout()) != want {
						t.Errorf("%s: %q, want %q", path, r.GetStdout(), want)
					}
					return err == nil && r.GetExitCode() == 0
				})
			}
			get("/", "hello from a module")
			get("/write?text=written", "<nil>")
			if b, err := os.ReadFile(filepath.Join(data, "written")); err != nil || string(b) != "written" {
				t.Errorf("%q, %v", b, err)
			}
			if _, err := n.CRI.ExecSync(t.Context(), &runtimeapi.ExecSyncRequest{ContainerId: c.ID, Cmd: []string{"/module.wasm"}}); err == nil || !strings.Contains(err.Error(), "holds only its descriptors") {
				t.Errorf("exec: %v", err)
			}
			stats, err := n.CRI.ContainerStats(t.Context(), &runtimeapi.ContainerStatsRequest{ContainerId: c.ID})
			if err != nil || stats.GetStats().GetMemory().GetWorkingSetBytes().GetValue() == 0 {
				t.Errorf("stats %v, %v", stats, err)
			}
			if _, err := n.CRI.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: c.ID, Timeout: 60}); err != nil {
				t.Fatal(err)
			}
			log := c.ReadLog(t)
			for _, want := range []string{"environment [\"HOME=/home\"], arguments [\"an argument\"]\n", "stdout F asked to stop: <nil>\n"} {
				if !strings.Contains(log, want) {
					t.Errorf("the log lacks %q: %s", want, log)
				}
			}
			if st := c.WaitExited(t); st.GetExitCode() != 7 {
				t.Errorf("it ended with %d (%s)", st.GetExitCode(), st.GetReason())
			}
			nothing := nodetest.ContainerConfig("nothing", ref)
			nothing.Command, nothing.Annotations = nil, map[string]string{core.GrantAnnotation: "{log: !container_log }"}
			c = pod.Run(t, nothing)
			if st := c.WaitExited(t); st.GetExitCode() != 3 || strings.Contains(c.ReadLog(t), "not given") || !strings.Contains(c.ReadLog(t), "failed: open /fd/5: ") {
				t.Errorf("without grants it ended with %d: %s", st.GetExitCode(), c.ReadLog(t))
			}
			pod.Remove(t)
		}
		st, err := n.CRI.Status(t.Context(), &runtimeapi.StatusRequest{})
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, h := range st.GetRuntimeHandlers() {
			names = append(names, h.GetName())
		}
		for _, want := range append(core.WasmHandlers(), core.GrantHandler) {
			if !strings.Contains(" "+strings.Join(names, " ")+" ", " "+want+" ") {
				t.Errorf("the handlers are %q", names)
			}
		}
		n.Check()
	})
}

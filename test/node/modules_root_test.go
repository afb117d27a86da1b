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

// TestAModuleServesThePod: a web server in Go as WebAssembly has the pod's port, beside an ordinary container, in a
// pod of each handler for modules. A stop reaches it by its grant.
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

// TestModulesOfOtherLanguages: first programs in C and Rust run. LONGSHORE_WASM_CC and LONGSHORE_WASM_RUSTC name the
// compilers with their flags: "clang --target=wasm32-wasi", "rustc --target wasm32-wasip1".
func TestModulesOfOtherLanguages(t *testing.T) {
	compilers := map[string]string{"first.c": os.Getenv("LONGSHORE_WASM_CC"), "first.rs": os.Getenv("LONGSHORE_WASM_RUSTC")}
	if compilers["first.c"]+compilers["first.rs"] == "" {
		t.Skip("LONGSHORE_WASM_CC and LONGSHORE_WASM_RUSTC name no compilers")
	}
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		pod, registry := n.RunPod(t, n.PodConfig("languages")), imagetest.NewRegistry(t)
		for source, compiler := range compilers {
			if compiler == "" {
				continue
			}
			path := filepath.Join(t.TempDir(), "module.wasm")
			args := append(strings.Fields(compiler), "-o", path, "testdata/wasm/"+source)
			if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
				t.Fatalf("%q: %v\n%s", args, err, out)
			}
			module, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			name := strings.TrimPrefix(filepath.Ext(source), ".")
			ref := registry.Push(name, "v1", imagetest.Wasm{
				Module: module, LayerType: "application/wasm", ConfigType: wasm.ConfigType, Config: map[string]any{"architecture": "wasm", "os": "wasip1"},
			}.Build())
			if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
				t.Fatal(err)
			}
			data := t.TempDir()
			run := func(container, document string, status int32, want string) {
				t.Helper()
				cfg := nodetest.ContainerConfig(container, ref)
				cfg.Command, cfg.Args, cfg.Annotations = nil, []string{"last"}, map[string]string{core.GrantAnnotation: document}
				cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/data", HostPath: data}}
				c := pod.Run(t, cfg)
				if st := c.WaitExited(t); st.GetExitCode() != status || said(c.ReadLog(t)) != want {
					t.Errorf("%s: it ended with %d, log %q", container, st.GetExitCode(), c.ReadLog(t))
				}
			}
			run(name+"-nothing", "{log: !container_log , random: !random }", 3, "first of 2: last\nwithout the time\nno data\n")
			run(name+"-data", "{log: !container_log , random: !random , clock: !clock , data: !mount /data}", 5, "first of 2: last\n")
			if b, err := os.ReadFile(filepath.Join(data, "written")); err != nil || string(b) != "by a module" {
				t.Errorf("%s: %q, %v", name, b, err)
			}
			run(name+"-read", "{log: !container_log , random: !random , clock: !clock , data: !mount {path: /data, rights: [read]}}", 4, readOnly[source])
		}
		pod.Remove(t)
		n.Check()
	})
}

// readOnly is the programs' output where they may not write.
var readOnly = map[string]string{
	"first.c":  "first of 2: last\n/data/written: Read-only file system\n",
	"first.rs": "first of 2: last\nRead-only file system (os error 69)\n",
}

// said returns the text of a log's lines.
func said(log string) string {
	var b strings.Builder
	for line := range strings.Lines(log) {
		if f := strings.SplitN(line, " ", 4); len(f) == 4 {
			b.WriteString(f[3])
		}
	}
	return b.String()
}

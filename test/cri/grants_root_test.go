package cri

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/image/wasm"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// program builds a program of test/node.
func program(t *testing.T, name string, env ...string) []byte {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", path, "../node/testdata/"+name)
	cmd.Env = append(os.Environ(), append(env, "CGO_ENABLED=0")...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// grantedImages are images of one web server, as a native program and as WebAssembly in each form in which that comes.
func grantedImages(t *testing.T) map[string]imagetest.Built {
	t.Helper()
	module, platform := program(t, "wasip1", "GOOS=wasip1", "GOARCH=wasm"), &ocispec.Platform{OS: "wasip1", Architecture: "wasm"}
	config := map[string]any{"architecture": "wasm", "os": "wasip1"}
	return map[string]imagetest.Built{
		"native": imagetest.Image{
			Layers: [][]imagetest.File{{{Name: "program", Body: program(t, "granted"), Mode: 0o755}}}, Config: ocispec.ImageConfig{Entrypoint: []string{"/program"}},
		}.Build(),
		"artifact": imagetest.Wasm{Module: module, LayerType: "application/wasm", ConfigType: wasm.ConfigType, Config: config, Platform: platform}.Build(),
		"component-layer": imagetest.Wasm{
			Module: module, LayerType: "application/vnd.bytecodealliance.component.layer.v0+wasm", ConfigType: "application/vnd.oci.image.config.v1+json", Config: config, Platform: platform,
		}.Build(),
		"content-layer": imagetest.Wasm{
			Module: module, LayerType: "application/vnd.wasm.content.layer.v1+wasm", ConfigType: "application/vnd.wasm.config.v1+json", Config: map[string]any{"name": "x"},
		}.Build(),
		"compat": imagetest.Image{
			Layers: [][]imagetest.File{{{Name: "app.wasm", Body: module}}},
			Config: ocispec.ImageConfig{Entrypoint: []string{"/app.wasm"}, Labels: map[string]string{"module.wasm.image/variant": "compat"}},
		}.Build(),
	}
}

// TestCrictlRunsGrantedPods: with the real crictl, a pod of each form of image has a granted web server with a mount to read and one to
// write, and an ordinary sidecar, which it answers. Without its grants the same program gets an error, and nothing else happens.
func TestCrictlRunsGrantedPods(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		c, busybox, registry := newTool(t, n), n.Busybox(t), imagetest.NewRegistry(t)
		// The first create of a module waits until it is compiled.
		c.file("crictl.yaml", object{"runtime-endpoint": "unix://" + filepath.Join(n.State, "cri.sock"), "timeout": 600})
		site := t.TempDir()
		if err := os.WriteFile(filepath.Join(site, "index"), []byte("a page"), 0o644); err != nil {
			t.Fatal(err)
		}
		for form, built := range grantedImages(t) {
			ref := registry.Push(form, "v1", built)
			c.run("pull", ref)
			logs, data := filepath.Join(n.Dir, "logs", form), t.TempDir()
			pod := c.file(form+".json", object{
				"metadata": object{"name": form, "namespace": "default", "uid": form, "attempt": 1}, "log_directory": logs, "hostname": form,
				"annotations": object{core.GrantAnnotation + "/by-pod": "{log: !container_log }"}, "linux": object{},
			})
			container := func(name, image string, more object) string {
				config := object{"metadata": object{"name": name}, "image": object{"image": image}, "log_path": name + ".log", "linux": object{}}
				for k, v := range more {
					config[k] = v
				}
				return c.file(form+"-"+name+".json", config)
			}
			podID := c.run("runp", pod)
			server := c.run("create", podID, container("server", ref, object{
				"mounts":      []object{{"container_path": "/site", "host_path": site, "readonly": true}, {"container_path": "/data", "host_path": data}},
				"annotations": object{core.GrantAnnotation: "{log: !container_log , data: !mount /data, site: !mount {path: /site, rights: [read]}, listen: !listen {tcp: 8080}, greeting: hello from a grant}"},
			}), pod)
			sidecar := c.run("create", podID, container("sidecar", busybox, object{"command": []string{"sleep", "1000"}}), pod)
			c.run("start", server)
			c.run("start", sidecar)
			get := func(path, want string) {
				t.Helper()
				nodetest.Eventually(t, form+" answers "+path, func() bool {
					out, _, err := c.try("exec", "-s", sidecar, "wget", "-qO-", "http://127.0.0.1:8080"+path)
					if err == nil && !strings.HasPrefix(out, want) {
						t.Errorf("%s: %s: %q, want %q", form, path, out, want)
					}
					return err == nil
				})
			}
			get("/hello", "hello from a grant")
			get("/site", "a page, write: ")
			if b, err := os.ReadFile(filepath.Join(site, "index")); err != nil || string(b) != "a page" {
				t.Errorf("%s: the page is %q, %v", form, b, err)
			}
			get("/write?text=written", "<nil>")
			if b, err := os.ReadFile(filepath.Join(data, "written")); err != nil || string(b) != "written" {
				t.Errorf("%s: %q, %v", form, b, err)
			}
			var seen struct {
				Info struct{ Confinement core.Confinement }
			}
			c.json(&seen, "inspect", server)
			if k := seen.Info.Confinement; !k.Seccomp || !k.NoNewPrivileges || !k.NoCapabilities || len(k.Accepted) != 4 || k.Accepted[2].Grant != "!mount {path: /site, rights: [read]}" {
				t.Errorf("%s: inspect: %+v", form, k)
			}
			for _, kind := range []string{"by-pod", "by-itself"} {
				more := object{}
				if kind == "by-itself" {
					more["annotations"] = object{core.GrantAnnotation: "{log: !container_log }"}
				}
				id := c.run("create", podID, container(kind, ref, more), pod)
				c.run("start", id)
				var ended struct {
					Status struct {
						State    string
						ExitCode int
					}
				}
				nodetest.Eventually(t, form+" without grants has ended", func() bool {
					c.json(&ended, "inspect", id)
					return ended.Status.State == "CONTAINER_EXITED"
				})
				out, errs, _ := c.try("logs", id)
				if said := out + errs; ended.Status.ExitCode != 3 || !strings.Contains(said, "not permitted") && !strings.Contains(said, "failed: open /fd/5: ") || strings.Contains(said, "not given") {
					t.Errorf("%s without grants ended with %d: %s", form, ended.Status.ExitCode, said)
				}
			}
			c.run("rmp", "-f", podID)
		}
		n.Check()
	})
}

package cri

import (
	"maps"
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

// grantedImages are images of one web server, as a native program and as WebAssembly in each of its forms.
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

// grantedPods makes pods with the real crictl.
type grantedPods struct {
	tool
	registry      *imagetest.Registry
	busybox, site string
}

// grantedPod has a program that serves a page in the pod's network and a greeting on the board, and an ordinary
// sidecar.
type grantedPod struct {
	grantedPods
	form, ref, config         string // config is the file of crictl's pod
	id, server, sidecar, data string
}

func (g grantedPods) start(form string, built imagetest.Built) *grantedPod {
	p := &grantedPod{grantedPods: g, form: form, ref: g.registry.Push(form, "v1", built), data: g.t.TempDir()}
	p.run("pull", p.ref)
	p.config = p.file(form+".json", object{
		"metadata": object{"name": form, "namespace": "default", "uid": form, "attempt": 1}, "log_directory": filepath.Join(p.n.Dir, "logs", form), "hostname": form,
		"annotations": object{core.GrantAnnotation + "/by-pod": "{log: !container_log , ask: true}"}, "linux": object{},
	})
	p.id = p.run("runp", p.config)
	to := "{app: native}"
	if form == "native" {
		to = "{}" // the program says which one it wants
	}
	p.server = p.container("server", p.ref, object{
		"mounts": []object{{"container_path": "/site", "host_path": p.site, "readonly": true}, {"container_path": "/data", "host_path": p.data}},
		"annotations": object{core.GrantAnnotation: "{log: !container_log , data: !mount /data, site: !mount {path: /site, rights: [read]}, listen: !listen {tcp: 8080}, " +
			"serve: !server {app: " + form + "}, connect: !client " + to + ", greeting: hello from " + form + "}"},
	})
	p.sidecar = p.container("sidecar", p.busybox, object{"command": []string{"sleep", "1000"}})
	return p
}

// container starts a container in the pod.
func (p *grantedPod) container(name, image string, more object) (id string) {
	config := object{"metadata": object{"name": name}, "image": object{"image": image}, "log_path": name + ".log", "linux": object{}}
	maps.Copy(config, more)
	id = p.run("create", p.id, p.file(p.form+"-"+name+".json", config), p.config)
	p.run("start", id)
	return id
}

// answers asks the server for a path from the sidecar until it answers.
func (p *grantedPod) answers(path, want string) {
	p.t.Helper()
	nodetest.Eventually(p.t, p.form+" answers "+path, func() bool {
		out, _, err := p.try("exec", "-s", p.sidecar, "wget", "-qO-", "http://127.0.0.1:8080"+path)
		if err == nil && !strings.HasPrefix(out, want) {
			p.t.Errorf("%s: %s: %q, want %q", p.form, path, out, want)
		}
		return err == nil
	})
}

// usesMounts: the server reads the page and cannot change it, and it writes where it may.
func (p *grantedPod) usesMounts() {
	p.t.Helper()
	p.answers("/site", "a page, write: ")
	if b, err := os.ReadFile(filepath.Join(p.site, "index")); err != nil || string(b) != "a page" {
		p.t.Errorf("%s: the page is %q, %v", p.form, b, err)
	}
	p.answers("/write?text=written", "<nil>")
	if b, err := os.ReadFile(filepath.Join(p.data, "written")); err != nil || string(b) != "written" {
		p.t.Errorf("%s: %q, %v", p.form, b, err)
	}
	var seen struct {
		Info struct{ Confinement core.Confinement }
	}
	p.json(&seen, "inspect", p.server)
	if k := seen.Info.Confinement; !k.Seccomp || !k.NoNewPrivileges || !k.NoCapabilities || len(k.Accepted) != 6 || k.Accepted[2].Grant != "!mount {path: /site, rights: [read]}" {
		p.t.Errorf("%s: inspect: %+v", p.form, k)
	}
}

// endsWithout: the same program, without a listener and a client's handle, ends with an error of each.
func (p *grantedPod) endsWithout(kind, document string, errs ...string) {
	p.t.Helper()
	more := object{}
	if document != "" {
		more["annotations"] = object{core.GrantAnnotation: document}
	}
	id := p.container(kind, p.ref, more)
	var ended struct {
		Status struct {
			State    string
			ExitCode int
		}
	}
	nodetest.Eventually(p.t, p.form+" without grants has ended", func() bool {
		p.json(&ended, "inspect", id)
		return ended.Status.State == "CONTAINER_EXITED"
	})
	out, stderr, _ := p.try("logs", id)
	said := out + stderr
	if ended.Status.ExitCode != 3 || strings.Contains(said, "not given") {
		p.t.Errorf("%s %s ended with %d: %s", p.form, kind, ended.Status.ExitCode, said)
	}
	for _, err := range errs {
		if !strings.Contains(said, err) {
			p.t.Errorf("%s %s lacks %q: %s", p.form, kind, err, said)
		}
	}
}

// TestCrictlRunsGrantedPods: with the real crictl, a pod from each form of image runs a granted web server with a
// mount to read, one to write and a service on the board, and an ordinary sidecar, which it answers. The native one
// and each module reach each other over the board. Without its grants the same program gets an error, and nothing
// else happens.
func TestCrictlRunsGrantedPods(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{})
		g := grantedPods{newTool(t, n), imagetest.NewRegistry(t), n.Busybox(t), t.TempDir()}
		// The first create of a module waits until it is compiled.
		g.file("crictl.yaml", object{"runtime-endpoint": "unix://" + filepath.Join(n.State, "cri.sock"), "timeout": 600})
		if err := os.WriteFile(filepath.Join(g.site, "index"), []byte("a page"), 0o644); err != nil {
			t.Fatal(err)
		}
		const serves = "{log: !container_log , ask: true, serve: !server {app: nobody}}" // which is no right to connect
		images := grantedImages(t)
		native := g.start("native", images["native"])
		native.answers("/hello", "hello from native")
		native.usesMounts()
		native.answers("/board?app=artifact", "board: no server in cri/default matches")
		const noListener = "listen: listen tcp :8080: socket: operation not permitted"
		native.endsWithout("by-pod", "", "board: socket: operation not permitted", noListener)
		native.endsWithout("by-itself", serves, "board: not permitted: this handle makes no connections", noListener)
		delete(images, "native")
		for form, built := range images {
			p := g.start(form, built)
			p.answers("/hello", "hello from "+form)
			p.usesMounts()
			p.answers("/board", "hello from native to "+form)
			native.answers("/board?app="+form, "hello from "+form)
			p.endsWithout("by-pod", "", "board: open /svc/connect: ", "failed: open /fd/5: ")
			p.endsWithout("by-itself", serves, "board: open /svc/connect: ", "failed: open /fd/5: ")
			native.answers("/board?app="+form, "hello from "+form) // all of it is as before
			g.run("rmp", "-f", p.id)
		}
		g.run("rmp", "-f", native.id)
		n.Check()
	})
}

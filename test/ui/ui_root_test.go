package ui

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// hostile is a text that would run a script if any part of the page took it for markup.
const hostile = `<img src=x onerror=window.hacked=1><script>window.hacked=1</script>`

// browser returns the programs of the test, and skips it where they are absent.
func browser(t *testing.T) (chromium string) {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	if err != nil {
		t.Skip("no chromium: apt-get install chromium")
	}
	if _, err := exec.LookPath("node"); err != nil {
		t.Skip("no node")
	}
	if _, err := os.Stat("browser/node_modules/puppeteer-core"); err != nil {
		t.Skip("no puppeteer-core: run npm ci in test/ui/browser (make e2e-ui)")
	}
	return chromium
}

// serve runs longshore ui and returns the address that it prints.
func serve(t *testing.T, n *nodetest.Node, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, filepath.Join(nodetest.Bin(t), "longshore"), append([]string{"ui"}, args...)...)
	cmd.Env = append(os.Environ(), "LONGSHORE_SOCKET="+filepath.Join(n.State, "control.sock"))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(url)
}

// cli runs a command, which must succeed.
func cli(t *testing.T, n *nodetest.Node, args ...string) string {
	t.Helper()
	out, err := n.CLI(args...)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(out)
}

// docker makes a request of Docker's API, which must succeed.
func docker(t *testing.T, n *nodetest.Node, method, path, body string) string {
	t.Helper()
	client := overUnix(filepath.Join(n.State, "docker.sock"))
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://docker"+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	data, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= 300 {
		t.Fatalf("%s %s: %s %s", method, path, resp.Status, data)
	}
	return string(data)
}

// workloads makes containers of several owners, and returns their IDs by the names of the browser's checks.
func workloads(t *testing.T, n *nodetest.Node) map[string]string {
	t.Helper()
	image := n.Busybox(t)
	ids := map[string]string{}
	cli(t, n, "network", "create", "backend")
	cli(t, n, "volume", "create", "data")
	cli(t, n, "pull", image)
	run := func(name string, args ...string) {
		ids[name] = cli(t, n, append([]string{"run", "-d", "--name", name}, args...)...)
	}
	run("web", "-m", "64m", "-p", "18080:80", "-v", "data:/data", "-e", "PASSWORD=geheim", image, "sh", "-c", "i=0; while true; do i=$((i+1)); echo line $i; sleep 1; done")
	run("db", "--network", "backend", "--pids-limit", "50", "--cpus", "0.5", image, "sleep", "100000")
	run("greedy", "-m", "16m", image, "sh", "-c", "echo filling the memory; tail /dev/zero")
	run("failing", image, "sh", "-c", "echo cannot open the configuration >&2; exit 3")
	run("hostile", "-l", "evil="+hostile, "-e", "EVIL="+hostile, "--hostname", "evil", image, "sh", "-c", "echo '"+hostile+"'; printf '\\033[31mred\\033[0m\\n'; sleep 100000", hostile)

	pod := n.PodConfig("shop-7d9f")
	pod.Metadata.Name, pod.Metadata.Namespace = hostile, hostile
	pod.Labels = map[string]string{"io.kubernetes.pod.name": "shop-7d9f" + hostile, "io.kubernetes.pod.namespace": "default", "evil": hostile}
	p := n.RunPod(t, pod)
	front := nodetest.ContainerConfig("frontend", image, "sh", "-c", "echo '"+hostile+"'; sleep 100000")
	front.Labels = map[string]string{"io.kubernetes.container.name": "frontend" + hostile}
	ids["pod"] = p.Run(t, front).ID
	p.Run(t, nodetest.ContainerConfig("sidecar", image, "sleep", "100000"))

	pull := docker(t, n, http.MethodPost, "/images/create?fromImage="+image, "")
	if !strings.Contains(pull, "status") {
		t.Fatalf("pull: %s", pull)
	}
	for i := range 3 {
		var made struct{ ID string }
		body := fmt.Sprintf(`{"Image":%q,"Cmd":["sleep","100000"],"Labels":{"com.docker.compose.project":"shop","com.docker.compose.service":"api"}}`, image)
		if err := json.Unmarshal([]byte(docker(t, n, http.MethodPost, fmt.Sprintf("/containers/create?name=api-%d", i), body)), &made); err != nil {
			t.Fatal(err)
		}
		docker(t, n, http.MethodPost, "/containers/"+made.ID+"/start", "")
		ids["docker"] = made.ID
	}
	mesos(t, n, image)
	nomad(t, n, image)
	roottest.Eventually(t, "greedy ends", func() bool {
		out, err := n.CLI("why", "greedy")
		return err == nil && strings.Contains(out, "out of memory")
	})
	return ids
}

// slowPull pulls an image by CRI. Its registry sends half of the layer, and then nothing until the test ends.
func slowPull(t *testing.T, n *nodetest.Node) {
	t.Helper()
	built := imagetest.Image{Layers: [][]imagetest.File{{{Name: "large", Body: make([]byte, 1<<20)}}}, Compression: imagetest.None}.Build()
	layer := built.Layers[0]
	registry := imagetest.NewRegistry(t)
	ref := registry.Push("busybox", "slow", built)
	ctx, cancel := context.WithCancel(t.Context())
	registry.Intercept(func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if req.Method != http.MethodGet || !strings.HasSuffix(req.URL.Path, layer.Digest.String()) {
			next.ServeHTTP(w, req)
			return
		}
		w.Header().Set("Content-Length", strconv.FormatInt(layer.Size, 10))
		_, _ = w.Write(built.Blobs[layer.Digest][:layer.Size/2])
		_ = http.NewResponseController(w).Flush()
		<-ctx.Done()
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = n.Images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
}

// mesos launches a container by Mesos' agent API.
func mesos(t *testing.T, n *nodetest.Node, image string) {
	t.Helper()
	body := fmt.Sprintf(`{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"batch-1"},"command":{"value":"sleep 100000"},
		"container":{"type":"MESOS","mesos":{"image":{"type":"DOCKER","docker":{"name":%q}}}}}}`, image)
	client := overUnix(filepath.Join(n.State, "mesos.sock"))
	defer client.CloseIdleConnections()
	resp, err := client.Post("http://agent/api/v1", "application/json", strings.NewReader(body)) //nolint:noctx // it ends with the test
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if resp.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(resp.Body)
		t.Fatalf("LAUNCH_CONTAINER: %s %s", resp.Status, text)
	}
}

// nomad starts a task as Nomad's plugin.
func nomad(t *testing.T, n *nodetest.Node, image string) {
	t.Helper()
	const alloc = "5f0f0c4e-8d5c-4f3d-9a5d-000000000042"
	client := nomadtest.Plugin(t, filepath.Join(nodetest.Bin(t), "longshore"))
	client.Configure(t, map[string]any{"socket": filepath.Join(n.State, "nomad.sock")}, &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{{BaseSpeed: 2000}}})
	for _, dir := range []string{"alloc/logs", "alloc/data", "cache/local", "cache/secrets"} {
		if err := os.MkdirAll(filepath.Join(n.Dir, "alloc", alloc, dir), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	task := nomadtest.Task(filepath.Join(n.Dir, "alloc"), alloc, "cache", "aaaaaaaa", map[string]any{"image": image, "command": "/bin/sh", "args": []string{"-c", "sleep 100000"}})
	if _, err := client.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task}); err != nil {
		t.Fatal(err)
	}
}

// TestTheBrowser runs the checks of browser/checks.mjs. LONGSHORE_UI_PICTURES is a directory for pictures of the pages.
func TestTheBrowser(t *testing.T) {
	chromium := browser(t)
	roottest.Run(t, func(t *testing.T) {
		n := nodetest.Start(t, nodetest.Options{Config: "[face.docker]\nenabled = true\n[face.mesos]\nenabled = true\n"})
		ids := workloads(t, n)
		slowPull(t, n)
		pictures := os.Getenv("LONGSHORE_UI_PICTURES")
		if pictures == "" {
			pictures = t.TempDir()
		}
		want := map[string]any{
			"chromium": chromium, "pictures": pictures, "ids": ids, "hostile": hostile,
			"url": serve(t, n, "--actions"), "readOnly": serve(t, n), "least": 60,
		}
		check(t, "checks.mjs", want)
		var events string
		roottest.Eventually(t, "the event log has the forced stop", func() bool {
			events, _ = n.CLI("events", "--since", "0", "--no-follow")
			return strings.Contains(events, "forced")
		})
		if !strings.Contains(events, "forced") || !strings.Contains(events, "web page") {
			t.Errorf("the event log does not say that the page stopped another owner's container:\n%s", events)
		}
	})
}

// check runs a script. A line of its output has the result of a check, its name, and the reason of a failure.
func check(t *testing.T, script string, args map[string]any) {
	t.Helper()
	in, err := json.Marshal(args)
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	cmd := exec.CommandContext(t.Context(), "node", "browser/"+script, string(in))
	cmd.Env = append(os.Environ(), "HOME="+home, "XDG_CONFIG_HOME="+home)
	out, err := cmd.CombinedOutput()
	ok := 0
	for line := range strings.Lines(string(out)) {
		result, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch result {
		case "ok":
			ok++
			t.Log(rest)
		case "FAIL":
			t.Error(rest)
		default:
			t.Log(line)
		}
	}
	if err != nil {
		t.Errorf("%s: %v", script, err)
	}
	t.Logf("%d checks passed", ok)
	if least, _ := args["least"].(int); ok < least {
		t.Errorf("%d checks, want %d", ok, least)
	}
}

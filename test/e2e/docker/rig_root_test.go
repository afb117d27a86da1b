package docker

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/test/nodetest"
)

// hostIP is the address of the suite's machine besides loopback.
const hostIP = "10.96.0.1"

// logsEnv names a directory for the output of each suite; without it the output is lost.
const logsEnv = "LONGSHORE_E2E_LOGS"

// runEnv is a regular expression of the suite's tests, to run some of them by hand.
const runEnv = "SUITE_RUN"

// rig is a node with the Docker face and a registry of stand-ins that has the names of public ones.
type rig struct {
	t        *testing.T
	node     *nodetest.Node
	dir      string // the suite's home
	socket   string
	registry *imagetest.Registry
}

// handed returns the value of an environment variable as an absolute path. If the variable is not set,
// it skips the test. Call it outside of roottest.Run, so that go test shows the reason.
func handed(t *testing.T, variable, what string) string {
	t.Helper()
	name := os.Getenv(variable)
	if name == "" {
		t.Skipf("%s does not name %s", variable, what)
	}
	name, err := filepath.Abs(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(name); err != nil {
		t.Fatalf("%s: %v", variable, err)
	}
	return name
}

// start runs an agent that reaches our registry under these names, and docker.io. Its images are
// those of standIns.
func start(t *testing.T, names ...string) *rig {
	t.Helper()
	// Some tests look for a link of this name.
	nodetest.Bridge(t, "eth0", hostIP+"/24")
	dir, err := os.MkdirTemp("", "longshore-suite-") // t.TempDir's are too long for socket addresses
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{t: t, dir: dir, socket: filepath.Join(dir, "docker.sock")}
	r.registry = r.serve(append(names, "docker.io")...)
	r.standIns()
	r.node = nodetest.Start(t, nodetest.Options{Config: fmt.Sprintf(
		"[images]\nregistry_config = [%q]\n[face.docker]\nenabled = true\nsocket = %q\n", filepath.Join(dir, "certs"), r.socket)})
	return r
}

// serve starts a registry that the agent reaches under these names.
func (r *rig) serve(names ...string) *imagetest.Registry {
	r.t.Helper()
	l, err := new(net.ListenConfig).Listen(r.t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		r.t.Fatal(err)
	}
	registry, server := imagetest.Serve(l)
	r.t.Cleanup(func() { _ = server.Close() })
	for _, host := range names {
		name := filepath.Join(r.dir, "certs", host, "hosts.toml")
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			r.t.Fatal(err)
		}
		if err := os.WriteFile(name, fmt.Appendf(nil, "server = \"http://%s\"\n", registry.Host), 0o600); err != nil {
			r.t.Fatal(err)
		}
	}
	return registry
}

// standIns fills the registry with images that take the place of public ones, by their names: each
// is busybox, with a program of testdata/standin where its name wants one.
func (r *rig) standIns() {
	r.t.Helper()
	program := filepath.Join(r.dir, "standin")
	build := exec.CommandContext(r.t.Context(), "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./testdata/standin")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		r.t.Fatalf("build testdata/standin: %v\n%s", err, out)
	}
	body, err := os.ReadFile(program)
	if err != nil {
		r.t.Fatal(err)
	}
	list, err := exec.CommandContext(r.t.Context(), "/bin/busybox", "--list").Output()
	if err != nil {
		r.t.Skipf("no busybox-static: %v", err)
	}
	base, err := imagetest.Busybox("/bin/busybox", strings.Fields(strings.ReplaceAll(string(list), "busybox\n", ""))...)
	if err != nil {
		r.t.Fatal(err)
	}
	for i, f := range base {
		switch f.Name {
		case "etc/passwd":
			base[i].Body = append(f.Body, "daemon:x:1:1:daemon:/usr/sbin:/bin/false\nbin:x:2:2:bin:/bin:/bin/false\npostgres:x:70:70::/var/lib/postgresql:/bin/sh\nnginx:x:101:101::/:/bin/false\n"...)
		case "etc/group":
			base[i].Body = append(f.Body, "daemon:x:1:\nbin:x:2:\nsys:x:3:\nadm:x:4:\ntty:x:5:\ndisk:x:6:\nwheel:x:10:\nnginx:x:101:\ncdrom:x:24:\naudio:x:29:\nvideo:x:44:\nstaff:x:50:\nusers:x:100:\n"...)
		}
	}
	base = append(base, imagetest.File{Name: "usr/"}, imagetest.File{Name: "usr/bin/"}, imagetest.File{Name: "usr/sbin/"}, imagetest.File{Name: "usr/local/"},
		imagetest.File{Name: "home/"}, imagetest.File{Name: "var/log/"}, imagetest.File{Name: "var/opt/"}, imagetest.File{Name: "var/run", Link: "/run"},
		imagetest.File{Name: "etc/nsswitch.conf", Body: []byte("hosts: files dns\n")},
		imagetest.File{Name: "bin/bash", Body: []byte("#!/bin/sh\nexec sh \"$@\"\n"), Mode: 0o755}, imagetest.File{Name: "usr/bin/env", Link: "/bin/busybox"},
		imagetest.File{Name: "usr/bin/curl", Body: body, Mode: 0o755})
	env := []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	made := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	known := map[string]bool{"library/hello-world": true, "arm32v7/hello-world": true}
	push := func(repo, tag string, config ocispec.ImageConfig, files ...imagetest.File) {
		config.Env = append(env, config.Env...)
		layer := append(files, imagetest.File{Name: "etc/image", Body: []byte(repo + ":" + tag + "\n")}) //nolint:gocritic // a new list
		built := imagetest.Image{Layers: [][]imagetest.File{base, layer}, Config: config, Docker: true, Created: &made}.Build()
		r.registry.Push("library/"+repo, tag, built)
		r.registry.Push(repo, tag, built)
		known["library/"+repo], known[repo] = true, true
	}
	shell := ocispec.ImageConfig{Cmd: []string{"sh"}}
	for repo, tags := range map[string]string{
		"busybox": "latest glibc frozen 1.35.0", "debian": "trixie-slim bookworm-slim latest", "bash": "latest 5.2.26", "amazonlinux/amazonlinux": "2023",
		"alpine": "latest frozen 3.10 3.12 3.13 3.13.12 3.14 3.15 3.18 3.19 3.20 3.21 3.22 edge",
	} {
		for tag := range strings.FieldsSeq(tags) {
			push(repo, tag, shell)
		}
	}
	hello := imagetest.Image{Created: &made, Layers: [][]imagetest.File{{{Name: "hello", Body: body, Mode: 0o755}}}, Config: ocispec.ImageConfig{Cmd: []string{"/hello"}, Env: env}, Docker: true}
	for _, tag := range []string{"latest", "amd64"} {
		r.registry.Push("library/hello-world", tag, hello.Build())
	}
	hello.Platform = ocispec.Platform{OS: "linux", Architecture: "arm", Variant: "v7"}
	r.registry.Push("arm32v7/hello-world", "latest", hello.Build())
	hello.Platform = ocispec.Platform{OS: "linux", Architecture: "arm64", Variant: "v8"}
	r.registry.Push("library/hello-world", "arm64", hello.Build())
	servers(push, body)
	r.registry.Intercept(deny(known))
}

// manifest is the path of a manifest, or of a list of tags.
var manifest = regexp.MustCompile(`^/v2/(.+)/(?:manifests|tags)/[^/]+$`)

// deny answers requests for repositories that do not exist as Docker Hub does: with 401, so that nobody learns which exist.
func deny(known map[string]bool) func(http.ResponseWriter, *http.Request, http.Handler) {
	return func(w http.ResponseWriter, req *http.Request, next http.Handler) {
		if m := manifest.FindStringSubmatch(req.URL.Path); m == nil || known[m[1]] || req.Method == http.MethodPut {
			next.ServeHTTP(w, req)
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w, `{"errors":[{"code":"DENIED","message":"requested access to the resource is denied"}]}`)
	}
}

// post sends a request without a body and returns the answer's text.
func (r *rig) post(path string, query url.Values) string {
	r.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", r.socket)
	}}}
	req, err := http.NewRequestWithContext(r.t.Context(), http.MethodPost, "http://docker"+path+"?"+query.Encode(), nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		r.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode >= http.StatusMultipleChoices || strings.Contains(string(body), `"error"`) {
		r.t.Fatalf("POST %s: %s, %v: %s", req.URL.RequestURI(), resp.Status, err, body)
	}
	return string(body)
}

// foreign are the platforms of images that are not of this machine's.
var foreign = map[string]string{"hello-world:arm64": "linux/arm64", "arm32v7/hello-world:latest": "linux/arm/v7"} //nolint:gochecknoglobals // a constant table

// pull pulls images, "NAME:TAG", over the API.
func (r *rig) pull(images ...string) {
	r.t.Helper()
	for _, image := range images {
		at := strings.LastIndexByte(image, ':')
		name, tag := image[:at], image[at+1:]
		query := url.Values{"fromImage": {name}, "tag": {tag}}
		if p := foreign[image]; p != "" {
			query.Set("platform", p)
		}
		r.post("/images/create", query)
	}
}

// command is a program of the suite, with the node as its DOCKER_HOST and a home of its own. The
// context's end kills it and everything that it has started.
func (r *rig) command(dir, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(r.t.Context(), name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "DOCKER_HOST=unix://"+r.socket, "TMPDIR="+r.dir, "NO_PROXY=*", "no_proxy=*")
	return cmd
}

// log opens the file of a suite's output.
func (r *rig) log(name string) *os.File {
	r.t.Helper()
	dir := os.Getenv(logsEnv)
	if dir == "" {
		dir = r.dir
	}
	f, err := os.Create(filepath.Join(dir, name))
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = f.Close() })
	return f
}

// goTests runs a command that writes the stream of go test -json, and returns its tests' results.
// The command's exit status says no more than they do, unless it has no result.
func (r *rig) goTests(cmd *exec.Cmd, keep io.Writer) outcome {
	r.t.Helper()
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	cmd.Stderr = keep
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	o, err := readGoTest(out, keep)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := cmd.Wait(); len(o) == 0 && os.Getenv(runEnv) == "" {
		r.t.Fatalf("%q ran no test: %v", cmd.Args, err)
	}
	return o
}

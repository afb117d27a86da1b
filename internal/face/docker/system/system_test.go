package system

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// rig is a Server over an engine with fakes.
type rig struct {
	*enginetest.Node
	s   *Server
	mux *dockerhttp.Mux
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Node: enginetest.New(t)}
	r.s = &Server{
		Engine: r.As(core.OwnerDocker), Build: Build{Version: "28.5.2", Agent: "0.9", Commit: "abc"},
		Versions: dockerhttp.Range{Min: dockerhttp.MustParse("1.24"), Max: dockerhttp.MustParse("1.51")},
		Readers:  func() int { return 3 },
	}
	r.mux = &dockerhttp.Mux{Versions: r.s.Versions}
	r.s.Routes(r.mux)
	return r
}

func (r *rig) ask(method, target string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	r.mux.ServeHTTP(w, httptest.NewRequest(method, target, nil))
	return w
}

// get reads a JSON document.
func (r *rig) get(t *testing.T, target string, v any) string {
	t.Helper()
	w := r.ask(http.MethodGet, target)
	if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/json" {
		t.Fatalf("%s: %d %s", target, w.Code, w.Body)
	}
	if err := json.Unmarshal(w.Body.Bytes(), v); err != nil {
		t.Fatal(err)
	}
	return w.Body.String()
}

func TestPing(t *testing.T) {
	r := newRig(t)
	for method, body := range map[string]string{http.MethodGet: "OK", http.MethodHead: ""} {
		w := r.ask(method, "/_ping")
		if w.Code != http.StatusOK || w.Body.String() != body {
			t.Errorf("%s: %d %q", method, w.Code, w.Body)
		}
		for key, want := range map[string]string{
			"Api-Version": "1.51", "Swarm": "inactive", "Builder-Version": "1", "Pragma": "no-cache", "Cache-Control": "no-cache, no-store, must-revalidate", "Ostype": "linux",
		} {
			if got := w.Header().Get(key); got != want {
				t.Errorf("%s: %s is %q", method, key, got)
			}
		}
	}
	r.s.Swarm = func() dockertypes.Swarm { return dockertypes.Swarm{LocalNodeState: "active"} }
	if got := r.ask(http.MethodGet, "/_ping").Header().Get("Swarm"); got != "active/worker" {
		t.Errorf("worker: %q", got)
	}
}

func TestVersionOf(t *testing.T) {
	for _, version := range []string{"runc 1.1.5+ds1", "1.1.5+ds1"} {
		if got := versionOf(engine.RuntimeInfo{Name: "runc", Features: core.RuntimeFeatures{Version: version}}); got != "1.1.5+ds1" {
			t.Errorf("%q: %q", version, got)
		}
	}
}

func TestVersion(t *testing.T) {
	r := newRig(t)
	var v dockertypes.ServerVersion
	r.get(t, "/v1.30/version", &v)
	if v.Version != "28.5.2" || v.APIVersion != "1.51" || v.MinAPIVersion != "1.24" || v.Platform.Name != "Longshore" || v.Os != "linux" || v.GitCommit != "abc" {
		t.Errorf("version %+v", v)
	}
	if e := v.Components[0]; e.Name != "Engine" || e.Version != "28.5.2" || e.Details["ApiVersion"] != "1.51" || e.Details["MinAPIVersion"] != "1.24" {
		t.Errorf("engine %+v", e)
	}
	if c := v.Components[1]; c.Name != "longshore" || c.Version != "0.9" {
		t.Errorf("agent %+v", c)
	}
}

func TestInfo(t *testing.T) {
	r := newRig(t)
	img := r.AddImage("busybox", ocispec.ImageConfig{}, nil)
	sb := r.Pod(core.OwnerDocker, "pod")
	r.Running(sb, "a", img, "run")
	r.Container(sb, "b", img, "run")
	paused := r.Running(sb, "c", img, "run")
	if err := r.As(core.OwnerDocker).PauseContainer(t.Context(), paused.ID); err != nil {
		t.Fatal(err)
	}
	r.Running(r.Pod(core.OwnerCRI, "pod"), "other", img, "run")
	var doc dockertypes.SystemInfo
	text := r.get(t, "/info", &doc)
	if doc.Containers != 3 || doc.ContainersRunning != 1 || doc.ContainersPaused != 1 || doc.ContainersStopped != 1 || doc.Images != 1 {
		t.Errorf("counts of %s", text)
	}
	if !doc.LiveRestoreEnabled || doc.ServerVersion != "28.5.2" || doc.CgroupVersion != "2" || doc.CgroupDriver != "cgroupfs" || doc.NEventsListener != 3 ||
		doc.Swarm.LocalNodeState != "inactive" || doc.OSType != "linux" || doc.DefaultRuntime == "" || doc.MemTotal == 0 || doc.ID == "" {
		t.Errorf("info %s", text)
	}
	for _, want := range []string{`"DriverStatus":[]`, `"Labels":[]`, `"Warnings":null`, `"Authorization":null`, `"Log":["json-file","local"]`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	if strings.Contains(text, "BridgeNf") || strings.Contains(text, "driver-type") {
		t.Errorf("info %s", text)
	}
	var old map[string]any
	r.get(t, "/v1.24/info", &old)
	if _, ok := old["RegistryConfig"].(map[string]any)["AllowNondistributableArtifactsCIDRs"]; !ok {
		t.Errorf("1.24: %v", old["RegistryConfig"])
	}
	if _, ok := old["BridgeNfIp6tables"].(bool); !ok || !slices.Contains(old["SecurityOptions"].([]any), any("seccomp")) {
		t.Errorf("1.24: %v", old)
	}
}

func TestDiskUsage(t *testing.T) {
	r := newRig(t)
	eng := r.As(core.OwnerDocker)
	r.s.Images = func(_ context.Context, api dockerhttp.Version) (any, error) {
		return []string{"images of " + api.String()}, nil
	}
	r.s.Volumes = func(ctx context.Context) (list []*dockertypes.Volume, err error) {
		volumes, err := eng.Volumes.List(ctx)
		for _, v := range volumes {
			list = append(list, &dockertypes.Volume{Name: v.Name, Mountpoint: v.Path, Options: v.Options})
		}
		return list, err
	}
	for _, cfg := range []core.VolumeConfig{{Name: "free"}, {Name: "nfs", Options: map[string]string{"type": "nfs", "device": ":/x", "o": "addr=192.0.2.1"}}} {
		if _, err := eng.Volumes.Create(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	img := r.AddImage("busybox", ocispec.ImageConfig{}, nil)
	sb := r.Pod(core.OwnerDocker, "pod")
	_, err := eng.CreateContainer(t.Context(), core.ContainerConfig{
		Key: "a", Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("run"),
		Volumes: []core.VolumeMount{{Name: "used", Target: "/a"}, {Name: "used", Target: "/b"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	volumes, err := eng.Volumes.List(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range volumes {
		if v.Name == "used" {
			if err := os.WriteFile(filepath.Join(v.Path, "file"), make([]byte, 64<<10), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	var doc dockertypes.DiskUsage
	text := r.get(t, "/system/df", &doc)
	use := map[string]dockertypes.UsageData{}
	for _, v := range doc.Volumes {
		use[v.Name] = *v.UsageData
	}
	if u := use["used"]; u.RefCount != 1 || u.Size < 64<<10 {
		t.Errorf("used volume: %+v", u)
	}
	if use["free"].RefCount != 0 || len(use) != 2 { // not nfs
		t.Errorf("volumes %+v", use)
	}
	for _, want := range []string{`"BuildCache":[]`, `"Containers":[]`, `"Images":["images of 1.51"]`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in %s", want, text)
		}
	}
	if text := r.get(t, "/system/df?type=container&type=build-cache", &doc); !strings.Contains(text, `{"LayersSize":0,"Images":null,"Containers":[],"Volumes":null,"BuildCache":[]}`) {
		t.Errorf("types: %s", text)
	}
	if w := r.ask(http.MethodGet, "/system/df?type=foo"); w.Code != http.StatusBadRequest || !strings.Contains(w.Body.String(), `"unknown object type: foo"`) {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if text := r.get(t, "/v1.41/system/df?type=foo", &doc); !strings.Contains(text, `"Images":["images of 1.41"]`) {
		t.Errorf("1.41: %s", text)
	}
}

// TestDiskUsageIsShared shows that clients that ask at once wait for one measurement.
func TestDiskUsageIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		made, release := 0, make(chan struct{})
		r.s.Volumes = func(context.Context) ([]*dockertypes.Volume, error) {
			made++
			<-release
			return nil, nil
		}
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() {
				if w := r.ask(http.MethodGet, "/system/df"); w.Code != http.StatusOK {
					t.Errorf("%d %s", w.Code, w.Body)
				}
			})
		}
		synctest.Wait()
		close(release)
		wg.Wait()
		if made != 1 {
			t.Errorf("%d measurements", made)
		}
	})
}

func TestRefusals(t *testing.T) {
	r := newRig(t)
	check := func(method, target string, status int, message string) {
		t.Helper()
		w := r.ask(method, target)
		var body struct{ Message string }
		if err := json.Unmarshal(bytes.TrimSpace(w.Body.Bytes()), &body); err != nil || w.Code != status || !strings.HasPrefix(body.Message, message) {
			t.Errorf("%s %s: %d %s", method, target, w.Code, w.Body)
		}
	}
	for _, request := range managers() {
		method, path, _ := strings.Cut(request, "/")
		check(method, "/"+strings.ReplaceAll(path, "{id}", "x"), http.StatusServiceUnavailable, noManager)
	}
	check("POST", "/swarm/init", http.StatusNotImplemented, "this node can only be a worker")
	check("POST", "/swarm/join", http.StatusNotImplemented, "this API does not join a Swarm: use longshore swarm join")
	check("POST", "/swarm/leave", http.StatusServiceUnavailable, "This node is not part of a swarm")
	check("GET", "/plugins/a/b/json", http.StatusNotFound, `plugin "a/b" not found`)
	check("POST", "/plugins/pull?remote=x", http.StatusNotImplemented, "Longshore has no plugins")
	check("DELETE", "/plugins/a/b:c", http.StatusNotFound, `plugin "a/b:c" not found`)
	check("POST", "/plugins/a/enable?timeout=1", http.StatusNotFound, `plugin "a" not found`)
	for _, path := range []string{"/plugins", "/plugins/privileges?remote=x"} {
		if w := r.ask(http.MethodGet, path); w.Code != http.StatusOK || strings.TrimSpace(w.Body.String()) != "[]" {
			t.Errorf("%s: %d %s", path, w.Code, w.Body)
		}
	}
	r.s.Swarm = func() dockertypes.Swarm { return dockertypes.Swarm{LocalNodeState: "active"} }
	check("GET", "/services", http.StatusServiceUnavailable, worker)
	check("POST", "/swarm/leave", http.StatusNotImplemented, "this API does not leave a Swarm: use longshore swarm leave")
}

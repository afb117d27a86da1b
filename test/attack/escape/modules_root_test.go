//go:build amd64

package escape

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// The module's grants: few, or all that its attempts are after.
const (
	moduleGrants  = "log: !container_log\ndata: !mount /data\nread: !mount {path: /read, rights: [read]}\n"
	controlGrants = "log: !container_log\nall: !mount /all\nother: !mount /other\nmore: [!random , !random , !random , !random , !random , !random ]\nclock: !clock\nhome: !env HOME\n"
)

// leastModuleAttempts is the size of the suite of modules.
const leastModuleAttempts = 60

// TestAModuleReachesNothingThatWasNotGiven: each attempt of a module by WASI's own calls reaches its target with a
// grant for it, and not without.
func TestAModuleReachesNothingThatWasNotGiven(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "modules.wasm")
		cmd := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-o", path, "./testdata/modules")
		cmd.Env = append(os.Environ(), "GOOS=wasip1", "GOARCH=wasm")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("build: %v\n%s", err, out)
		}
		module, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		n := nodetest.Start(t, nodetest.Options{})
		ref := imagetest.NewRegistry(t).Push("modules", "latest", imagetest.Image{Layers: [][]imagetest.File{{{Name: "modules.wasm", Body: module}}}}.Build())
		if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
			t.Fatal(err)
		}
		pod := n.RunPod(t, n.PodConfig("modules"))
		control := moduleOutcomes(t, pod, moduleContainer(t, "control", ref, controlGrants))
		tried := moduleOutcomes(t, pod, moduleContainer(t, "granted", ref, moduleGrants))
		classes := map[string]int{}
		for name, how := range control {
			class, _, _ := strings.Cut(name, "/")
			classes[class]++
			if how != "reached" {
				t.Errorf("%s: the attempt proves nothing, for it does not reach what was given: %s", name, how)
			}
			if tried[name] == "reached" || tried[name] == "" {
				t.Errorf("%s: %q with grants", name, tried[name])
			}
		}
		for class, count := range classes {
			if count < leastOfClass {
				t.Errorf("%d attempts of class %s, want %d", count, class, leastOfClass)
			}
		}
		if len(control) < leastModuleAttempts || len(tried) != len(control) {
			t.Errorf("%d attempts, then %d, want %d", len(control), len(tried), leastModuleAttempts)
		}
		t.Logf("%d attempts of %d classes", len(control), len(classes))
		for name, bomb := range map[string]struct {
			mode   string
			limit  int64 // of memory, in bytes
			status int32
			reason string
			atMost int
		}{
			"much-memory":   {"memory", 1 << 30, 0, "Completed", 256}, // the bomb of the next line is one
			"little-memory": {"memory", 128 << 20, 137, "OOMKilled", 0},
			"descriptors":   {"descriptors", 1 << 30, 0, "Completed", 4096},
		} {
			cfg := moduleContainer(t, name, ref, moduleGrants)
			cfg.Command = []string{"/modules.wasm", bomb.mode}
			cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: bomb.limit}
			c := pod.Run(t, cfg)
			st := c.WaitExited(t)
			got := 0
			if _, said, ok := strings.Cut(c.ReadLog(t), "stdout F reached "); ok {
				_, _ = fmt.Sscan(said, &got)
			}
			if st.GetExitCode() != bomb.status || st.GetReason() != bomb.reason || got > bomb.atMost || got == 0 && bomb.atMost > 0 {
				t.Errorf("%s: it ended with %d (%s) and has got %d, log %q", name, st.GetExitCode(), st.GetReason(), got, last(c.ReadLog(t)))
			}
		}
		pod.Remove(t)
		n.Check()
	})
}

// moduleContainer is a config with the mounts, freshly filled.
func moduleContainer(t *testing.T, name, image, document string) *runtimeapi.ContainerConfig {
	t.Helper()
	dir := t.TempDir()
	fill := func(below string, names ...string) {
		t.Helper()
		for _, name := range names {
			path, link := filepath.Join(dir, below, name), ""
			if i := strings.Index(name, "->"); i >= 0 {
				path, link = filepath.Join(dir, below, name[:i]), name[i+2:]
			}
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			var err error
			switch {
			case link != "":
				err = os.Symlink(link, path)
			case strings.HasSuffix(name, "/"):
				err = os.Mkdir(path, 0o755)
			default:
				err = os.WriteFile(path, []byte("text of "+name), 0o644)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	fill("other", "secret", "written", "emptied", "appended", "sized", "removed", "removed2", "removed3", "moved", "link-written", "link-emptied", "link-appended", "link-sized", "removed-dir/", "removed-dir2/", "link->secret")
	fill("data", "kept", "sub/x", "link->../other/secret", "directory-link->../other", "twice->link", "dangling->../other/dangling", "link-written->../other/link-written", "link-emptied->../other/link-emptied",
		"link-appended->../other/link-appended", "link-sized->../other/link-sized")
	fill("read", "file", "emptied", "sized", "removed", "removed-dir/", "moved")
	cfg := nodetest.ContainerConfig(name, image, "/modules.wasm", name)
	cfg.Annotations = map[string]string{core.GrantAnnotation: document}
	cfg.Envs = []*runtimeapi.KeyValue{{Key: "HOME", Value: []byte("/home")}}
	cfg.Mounts = []*runtimeapi.Mount{{ContainerPath: "/all", HostPath: dir}}
	for _, m := range []string{"data", "read", "other"} {
		cfg.Mounts = append(cfg.Mounts, &runtimeapi.Mount{ContainerPath: "/" + m, HostPath: filepath.Join(dir, m)})
	}
	return cfg
}

// moduleOutcomes runs the module and returns each attempt's outcome.
func moduleOutcomes(t *testing.T, pod *nodetest.Pod, cfg *runtimeapi.ContainerConfig) map[string]string {
	t.Helper()
	c := pod.Run(t, cfg)
	st, out := c.WaitExited(t), map[string]string{}
	log := c.ReadLog(t)
	for line := range strings.Lines(log) {
		if _, said, ok := strings.Cut(strings.TrimSpace(line), " stdout F "); ok {
			if name, ok := strings.CutSuffix(said, " reached"); ok {
				out[name] = "reached"
			} else if name, why, ok := strings.Cut(said, " refused "); ok {
				out[name] = why
			}
		}
	}
	if st.GetExitCode() != 0 || !strings.Contains(log, fmt.Sprintf(" done %d\n", len(out))) {
		t.Fatalf("it ended with %d (%s %s) after %d attempts:\n%s", st.GetExitCode(), st.GetReason(), st.GetMessage(), len(out), last(log))
	}
	return out
}

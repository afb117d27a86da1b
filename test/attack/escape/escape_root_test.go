//go:build amd64

package escape

import (
	"errors"
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
	"github.com/longshore/longshore/internal/weaken"
	"github.com/longshore/longshore/test/nodetest"
)

// The suite's size: so many attempts, and so many mechanisms in each class.
const (
	leastAttempts = 150
	leastOfClass  = 3
)

// grants is the program's document. The readable directory is mounted writable: its rights are
// the document's.
const grants = "data: !mount /data\nread: !mount {path: /read, rights: [read]}\nlisten: !listen {tcp: 8080}\n"

// program is the built program, the names of its attempts, and the tool that they execute.
type program struct {
	text, tool []byte
	names      []string
}

func build(t *testing.T) program {
	t.Helper()
	path := filepath.Join(t.TempDir(), "attempts")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "./attempts")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	var p program
	var err error
	if p.text, err = os.ReadFile(path); err != nil {
		t.Fatal(err)
	}
	names, err := exec.CommandContext(t.Context(), path, "names").Output()
	if err != nil {
		t.Fatal(err)
	}
	p.names = strings.Split(strings.TrimSpace(string(names)), "\n")
	if p.tool, err = exec.CommandContext(t.Context(), path, "tool").Output(); err != nil {
		t.Fatal(err)
	}
	return p
}

// image puts the program and its targets into a registry.
func (p program) image(t *testing.T, n *nodetest.Node) string {
	t.Helper()
	files := []imagetest.File{{Name: "etc/"}, {Name: "bin/"}, {Name: "program", Body: p.text, Mode: 0o755}, {Name: "bin/tool", Body: p.tool, Mode: 0o755}, {Name: "etc/link", Link: "secret"}, {Name: "stand.wasm", Body: []byte("\x00asm\x01\x00\x00\x00")}}
	for _, name := range []string{"secret", "shrunk", "moved", "removed"} {
		files = append(files, imagetest.File{Name: "etc/" + name, Body: []byte("secret\n"), Mode: 0o644})
	}
	ref := imagetest.NewRegistry(t).Push("attempts", "latest", imagetest.Image{Layers: [][]imagetest.File{files}}.Build())
	if _, err := n.Images.PullImage(t.Context(), &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: ref}}); err != nil {
		t.Fatal(err)
	}
	return ref
}

// container is a config with the two mounts, freshly filled.
func (p program) container(t *testing.T, name, image string, args ...string) *runtimeapi.ContainerConfig {
	t.Helper()
	dir := t.TempDir()
	for path, text := range map[string][]byte{
		"data/kept": nil, "data/sub/x": nil, "read/file": []byte("text\n"), "read/moved": nil, "read/renamed": nil, "read/removed": nil, "read/tool": p.tool, "read/sub/x": nil,
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	cfg := nodetest.ContainerConfig(name, image, append([]string{"/program"}, args...)...)
	for _, m := range []string{"data", "read"} {
		cfg.Mounts = append(cfg.Mounts, &runtimeapi.Mount{ContainerPath: "/" + m, HostPath: filepath.Join(dir, m)})
	}
	return cfg
}

// toolStatus is how the tool exits that attempts execute.
const toolStatus = 93

// outcomes runs a container and returns each attempt's outcome: "reached", or why not.
func (p program) outcomes(t *testing.T, pod *nodetest.Pod, cfg *runtimeapi.ContainerConfig) map[string]string {
	t.Helper()
	c := pod.Run(t, cfg)
	st := c.WaitExited(t)
	log := c.ReadLog(t)
	out := map[string]string{}
	for line := range strings.Lines(log) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 4)
		if len(f) < 4 {
			continue
		}
		if name, ok := strings.CutSuffix(f[3], " reached"); ok {
			out[name] = "reached"
		} else if name, why, ok := strings.Cut(f[3], " refused "); ok {
			out[name] = why
		}
	}
	if st.GetExitCode() == 0 && strings.Contains(log, fmt.Sprintf(" done %d\n", len(p.names))) {
		return out
	}
	if st.GetExitCode() == toolStatus { // the next attempt has replaced the program
		for _, name := range p.names {
			if out[name] == "" {
				out[name] = "reached"
				return out
			}
		}
	}
	t.Fatalf("it ended with %d (%s %s) after %d of %d attempts:\n%s", st.GetExitCode(), st.GetReason(), st.GetMessage(), len(out), len(p.names), last(log))
	return nil
}

func last(log string) string { return log[max(0, len(log)-2000):] }

// pod runs a pod.
func (p program) pod(t *testing.T, n *nodetest.Node) *nodetest.Pod {
	t.Helper()
	cfg := n.PodConfig("the-pod")
	cfg.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	cfg.Linux.SecurityContext.Privileged = true
	return n.RunPod(t, cfg)
}

func (p program) granted(t *testing.T, pod *nodetest.Pod, name, image string) map[string]string {
	t.Helper()
	cfg := p.container(t, name, image)
	cfg.Annotations = map[string]string{core.GrantAnnotation: grants}
	return p.outcomes(t, pod, cfg)
}

// asWorker runs the attempts in the place of the program that runs modules, for a module with the same grants.
func (p program) asWorker(t *testing.T, pod *nodetest.Pod, name, image string) map[string]string {
	t.Helper()
	cfg := p.container(t, name, image)
	cfg.Command, cfg.Annotations = []string{"/stand.wasm"}, map[string]string{core.GrantAnnotation: grants}
	return p.outcomes(t, pod, cfg)
}

// workerFile is the program that runs modules.
const workerFile = "longshore-wasm"

// binaries returns a directory of copies of the agent's programs in dir, which may be replaced.
func binaries(t *testing.T, dir string) string {
	t.Helper()
	bin := t.TempDir()
	for _, name := range []string{"longshore", "longshore-keeper", workerFile} {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, os.ErrNotExist) && name == workerFile {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(bin, name), data, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return bin
}

// install puts the attempts into a program's place, which may be in use.
func (p program) install(t *testing.T, path string) {
	t.Helper()
	if err := os.WriteFile(path+".new", p.text, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

func TestNothingIsReachedThatWasNotGiven(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		p := build(t)
		classes := map[string]int{}
		for _, name := range p.names {
			class, _, _ := strings.Cut(name, "/")
			classes[class]++
		}
		if len(p.names) < leastAttempts {
			t.Errorf("%d attempts, want %d", len(p.names), leastAttempts)
		}
		for class, n := range classes {
			if n < leastOfClass {
				t.Errorf("%d attempts of class %s, want %d", n, class, leastOfClass)
			}
		}
		bin := binaries(t, nodetest.Bin(t))
		n := nodetest.Start(t, nodetest.Options{Bin: bin})
		image, pod := p.image(t, n), p.pod(t, n)
		plain := p.container(t, "plain", image, "plain")
		plain.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{
			Privileged: true, NamespaceOptions: &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_POD},
		}
		control := p.outcomes(t, pod, plain)
		tried := p.granted(t, pod, "granted", image)
		for _, name := range p.names {
			if control[name] != "reached" {
				t.Errorf("%s: the attempt proves nothing, for a plain program does not reach it: %s", name, control[name])
			}
			if tried[name] == "reached" || tried[name] == "" {
				t.Errorf("%s: %q with grants", name, tried[name])
			}
		}
		// The same attempts in the place of the program that runs modules: those of a module that has taken it over.
		p.install(t, filepath.Join(bin, workerFile))
		worker := p.asWorker(t, pod, "worker", image)
		for _, name := range p.names {
			if worker[name] == "reached" || worker[name] == "" {
				t.Errorf("%s: %q by what runs modules", name, worker[name])
			}
		}
		t.Logf("%d attempts of %d classes", len(p.names), len(classes))
	})
}

// TestABombStaysBounded: threads, memory and descriptors need no grant, and end at a limit of the
// container; processes cannot be made.
func TestABombStaysBounded(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		p := build(t)
		n := nodetest.Start(t, nodetest.Options{})
		image, pod := p.image(t, n), p.pod(t, n)
		run := func(name string, cfg *runtimeapi.ContainerConfig) (*runtimeapi.ContainerStatus, string) {
			cfg.Command = []string{"/program", "bomb", name}
			c := pod.Run(t, cfg)
			return c.WaitExited(t), c.ReadLog(t)
		}
		for name, bomb := range map[string]struct {
			all, wanted string // the last words of a plain program, and of a stopped one
			status      int32
			reason      string
		}{
			"threads":     {"reached 2000", "threads 1000", 2, "Error"},
			"memory":      {"reached 256", "", 137, "OOMKilled"},
			"descriptors": {"reached 10000", "reached 40", 0, "Completed"},
		} {
			plain := p.container(t, name+"-plain", image)
			plain.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{Privileged: true}
			if st, log := run(name, plain); st.GetExitCode() != 0 || !strings.Contains(log, bomb.all) {
				t.Errorf("%s proves nothing: a plain program ended with %d (%s):\n%s", name, st.GetExitCode(), st.GetReason(), last(log))
			}
			cfg := p.container(t, name, image)
			cfg.Annotations = map[string]string{core.GrantAnnotation: grants}
			cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: 64 << 20}
			st, log := run(name, cfg)
			if st.GetExitCode() != bomb.status || st.GetReason() != bomb.reason || strings.Contains(log, bomb.all) || !strings.Contains(log, bomb.wanted) {
				t.Errorf("%s: it ended with %d (%s):\n%s", name, st.GetExitCode(), st.GetReason(), last(log))
			}
		}
		pod.Remove(t)
		n.Check()
	})
}

// TestTheSuiteFindsWhatIsMissing: without any one of the defences some attempts reach.
func TestTheSuiteFindsWhatIsMissing(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		p := build(t)
		without := func(off weaken.Defence) []string { return []string{weaken.Env + "=" + string(off)} }
		bin := binaries(t, nodetest.Weakened(t))
		p.install(t, filepath.Join(bin, workerFile))
		n := nodetest.Start(t, nodetest.Options{Bin: bin, Env: without(weaken.GrantLandlock)})
		image, pod := p.image(t, n), p.pod(t, n)
		for _, off := range []weaken.Defence{weaken.GrantLandlock, weaken.GrantSeccomp, weaken.GrantNamespaces} {
			if off != weaken.GrantLandlock {
				n.SetEnv(without(off)...)
				n.Kill()
				n.Up()
			}
			for who, outcomes := range map[string]map[string]string{
				"a program": p.granted(t, pod, string(off), image), "what runs modules": p.asWorker(t, pod, "worker-"+string(off), image),
			} {
				var reached []string
				for name, how := range outcomes {
					if how == "reached" {
						reached = append(reached, name)
					}
				}
				if len(reached) == 0 {
					t.Errorf("without %s for %s the suite finds nothing missing", off, who)
				}
				t.Logf("without %s, %d attempts of %s reach, such as %q", off, len(reached), who, reached[:min(5, len(reached))])
			}
		}
	})
}

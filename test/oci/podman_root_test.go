package oci

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
)

// podman is Podman with directories of its own, which makes cgroups by systemd.
type podman struct {
	*machine

	dir string
}

func (p *podman) line(args []string) []string {
	line := []string{"podman", "--root", filepath.Join(p.dir, "root"), "--runroot", filepath.Join(p.dir, "run"), "--storage-driver", "vfs"}
	if args[0] == "run" {
		args = append([]string{"run", "--network", "none", "--cgroup-parent", p.parent}, args[1:]...)
	}
	return append(line, args...)
}

func (p *podman) does(t *testing.T, argv ...string) result {
	t.Helper()
	// conmon keeps the streams of the command, so pipes would stay open.
	out, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	complaints, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = complaints.Close() }()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF="+filepath.Join(p.dir, "containers.conf"), "HOME="+p.dir)
	cmd.Stdout, cmd.Stderr = out, complaints
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatalf("%v: %v", argv, err)
	}
	read := func(f *os.File) string {
		b, err := os.ReadFile(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	return result{read(out), read(complaints), cmd.ProcessState.ExitCode()}
}

func (p *podman) podman(t *testing.T, args ...string) result {
	t.Helper()
	return p.does(t, p.line(args)...)
}

// TestPodman: Podman runs containers by longshore-oci in units of systemd. TestPodman of internal/ocicli runs it without systemd.
func TestPodman(t *testing.T) {
	if !withSystemd() {
		t.Skip("pid 1 is not the systemd of a guest: hack/vm.sh systemd test/oci")
	}
	run(t, func(t *testing.T, m *machine) {
		dir, err := os.MkdirTemp("/var", "podman-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.RemoveAll(dir) })
		p := &podman{m, dir}
		for file, text := range map[string]string{
			"containers.conf": "[engine]\ncgroup_manager = \"systemd\"\nevents_logger = \"file\"\nruntime = \"longshore-oci\"\n[engine.runtimes]\nlongshore-oci = [\"" + m.runtime + "\"]\n",
			"policy.json":     `{"default":[{"type":"insecureAcceptAnything"}]}`,
		} {
			if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		succeeds(t, p.podman(t, "import", "--signature-policy", filepath.Join(dir, "policy.json"), archive(t), "busybox"))
		t.Run("run", func(t *testing.T) { podmanRun(t, p) })
		t.Run("a container's life", func(t *testing.T) { podmanLife(t, p) })
	})
}

func podmanRun(t *testing.T, p *podman) {
	for _, c := range []struct {
		args   []string
		status int
		out    string
	}{
		{[]string{"busybox", "echo", "hello"}, 0, "hello\n"},
		{[]string{"busybox", "sh", "-c", "exit 42"}, 42, ""},
		{[]string{"busybox", "nosuch"}, 127, ""},
		{[]string{"busybox", "/tmp"}, 126, ""},
	} {
		if r := p.podman(t, append([]string{"run", "--rm"}, c.args...)...); r.status != c.status || r.out != c.out {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
}

func podmanLife(t *testing.T, p *podman) {
	succeeds(t, p.podman(t, "run", "-d", "--name", "life", "--memory", "64m", "--pids-limit", "50", "--cpus", "0.5", "busybox",
		"sh", "-c", "trap 'exit 9' TERM; echo out; while :; do sleep 0.1; done"))
	inspect := func(format string) string {
		return succeeds(t, p.podman(t, "inspect", "--format", format, "life"))
	}
	cgroup := p.limited(t, inspect("{{.State.Pid}}"))
	t.Logf("cgroup: %s", cgroup)
	p.reloads(t)
	p.limited(t, inspect("{{.State.Pid}}"))
	roottest.Eventually(t, "podman logs shows the line", func() bool { return p.podman(t, "logs", "life").out == "out\n" })
	if r := p.podman(t, "exec", "life", "sh", "-c", "echo in; exit 3"); r.status != 3 || r.out != "in\n" {
		t.Errorf("exec: %+v", r)
	}
	if out := succeeds(t, p.podman(t, "stats", "--no-stream", "--format", "{{.MemUsage}} {{.PIDS}}", "life")); !strings.Contains(out, "/ 67.11MB ") || strings.HasPrefix(out, "0B") || strings.HasSuffix(out, " 0") {
		t.Errorf("stats: %q", out)
	}
	if out := succeeds(t, p.podman(t, "top", "life")); !strings.Contains(out, "trap 'exit 9' TERM") {
		t.Errorf("top: %q", out)
	}
	const state = "{{.State.Status}} {{.State.ExitCode}} {{.OCIRuntime}}"
	succeeds(t, p.podman(t, "pause", "life"))
	if s := inspect(state); s != "paused 0 longshore-oci" {
		t.Errorf("paused: %s", s)
	}
	succeeds(t, p.podman(t, "unpause", "life"))
	succeeds(t, p.podman(t, "stop", "life"))
	if s := inspect(state); s != "exited 9 longshore-oci" {
		t.Errorf("stopped: %s", s)
	}
	p.gone(t, cgroup)
	succeeds(t, p.podman(t, "start", "life"))
	cgroup = p.cgroupOf(t, inspect("{{.State.Pid}}"))
	succeeds(t, p.podman(t, "kill", "life"))
	if s := succeeds(t, p.podman(t, "wait", "life")); s != "137" {
		t.Errorf("killed: %s", s)
	}
	succeeds(t, p.podman(t, "rm", "life"))
	p.gone(t, cgroup)
}

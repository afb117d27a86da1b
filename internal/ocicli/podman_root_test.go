package ocicli_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
)

// TestPodman: Debian's Podman, with its own conmon, runs containers by us.
func TestPodman(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		for _, p := range []string{"podman", "conmon", "script", "tar"} {
			if _, err := exec.LookPath(p); err != nil {
				t.Skipf("%s is not installed", p)
			}
		}
		// Its locks and caches are not to be the machine's.
		for _, dir := range []string{"/dev/shm", "/var/tmp", "/var/lib"} {
			if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
				t.Fatal(err)
			}
		}
		p := &podman{newMachine(t)}
		p.setUp(t)
		for _, c := range []struct {
			name string
			test func(*testing.T, *podman)
		}{
			{"run", podmanRun},
			{"a container's life", podmanLife},
			{"a user of its own", podmanUser},
		} {
			t.Run(c.name, func(t *testing.T) { c.test(t, p) })
		}
		p.quiet(t)
	})
}

// quiet waits until Podman's monitors, which outlive its commands, have ended.
func (p *podman) quiet(t *testing.T) {
	t.Helper()
	roottest.Eventually(t, "Podman's monitors have ended", func() bool {
		files, _ := filepath.Glob("/sys/fs/cgroup/*" + p.cgroup + "/conmon/cgroup.procs")
		more, _ := filepath.Glob("/sys/fs/cgroup" + p.cgroup + "/conmon/cgroup.procs")
		busy := ""
		for _, f := range append(files, more...) {
			b, _ := os.ReadFile(f)
			busy += string(b)
		}
		return busy == ""
	})
}

type podman struct{ *machine }

const podmanConf = `[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "longshore-oci"
[engine.runtimes]
longshore-oci = ["/run/bin/longshore-oci"]
`

func (p *podman) setUp(t *testing.T) {
	t.Helper()
	for _, d := range []string{"/run/home", p.bundle + "/rootfs/run/lock"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file, text := range map[string]string{
		"/run/containers.conf": podmanConf, "/run/policy.json": `{"default":[{"type":"insecureAcceptAnything"}]}`, p.bundle + "/rootfs/run/lock/kept": "kept\n",
	} {
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(p.bundle+"/rootfs/tmp", 0o1777); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", p.bundle+"/rootfs", "-cf", "/run/image.tar", ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	p.succeeds(t, "import", "--signature-policy", "/run/policy.json", "/run/image.tar", "busybox")
}

func (p *podman) line(args []string) []string {
	line := []string{"podman", "--root", "/run/podman/root", "--runroot", "/run/podman/run", "--storage-driver", "vfs"}
	if args[0] == "run" {
		args = append([]string{"run", "--network", "none", "--cgroup-parent", p.cgroup}, args[1:]...)
	}
	return append(line, args...)
}

func (p *podman) command(t *testing.T, line []string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), line[0], line[1:]...)
	cmd.Env = append(os.Environ(), "CONTAINERS_CONF=/run/containers.conf", "HOME=/run/home")
	return cmd
}

func (p *podman) does(t *testing.T, args ...string) result {
	t.Helper()
	return p.run(t, p.command(t, p.line(args)))
}

func (p *podman) succeeds(t *testing.T, args ...string) string {
	t.Helper()
	r := p.does(t, args...)
	if r.status != 0 {
		t.Fatalf("podman %v: status %d: %s", args, r.status, r.err)
	}
	return r.out
}

// onTerminal runs podman with a terminal around it.
func (p *podman) onTerminal(t *testing.T, args ...string) result {
	t.Helper()
	return p.run(t, p.command(t, []string{"script", "-qec", strings.Join(p.line(args), " "), "/dev/null"}))
}

func podmanRun(t *testing.T, p *podman) {
	for _, c := range []struct {
		args   []string
		status int
		out    string
	}{
		{[]string{"run", "--rm", "busybox", "echo", "hello"}, 0, "hello\n"},
		{[]string{"run", "--rm", "busybox", "sh", "-c", "exit 42"}, 42, ""},
		{[]string{"run", "--rm", "busybox", "nosuch"}, 127, ""},
		{[]string{"run", "--rm", "busybox", "/tmp"}, 126, ""},
		{[]string{"run", "--rm", "--user", "1000:1000", "--read-only", "--tmpfs", "/tmp", "busybox", "sh", "-c", "id -u; echo x > /tmp/a && cat /tmp/a /run/lock/kept; echo y > /b; echo z > /dev/stdout"}, 0, "1000\nx\nkept\nz\n"},
	} {
		if r := p.does(t, c.args...); r.status != c.status || r.out != c.out {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
	if r := p.onTerminal(t, "run", "-t", "--rm", "busybox", "tty"); r.status != 0 || strings.TrimSpace(r.out) != "/dev/pts/0" {
		t.Errorf("-t: %+v", r)
	}
	if left, _ := os.ReadDir("/run/longshore-oci"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func podmanLife(t *testing.T, p *podman) {
	p.succeeds(t, "run", "-d", "--name", "c", "--memory", "64m", "--pids-limit", "50", "--cpus", "0.5", "busybox", "sh", "-c", "trap 'exit 9' TERM; echo out; while :; do sleep 0.1; done")
	for _, c := range []struct{ v1, v2, want string }{
		{"memory.limit_in_bytes", "memory.max", "67108864"},
		{"cpu.cfs_quota_us", "cpu.max", "50000"},
		{"pids.max", "pids.max", "50"},
	} {
		files, _ := filepath.Glob("/sys/fs/cgroup/*" + p.cgroup + "/libpod-*/" + c.v1)
		more, _ := filepath.Glob("/sys/fs/cgroup" + p.cgroup + "/libpod-*/" + c.v2)
		got := ""
		for _, f := range append(files, more...) {
			if strings.Contains(f, "conmon") {
				continue
			}
			b, _ := os.ReadFile(f)
			got, _, _ = strings.Cut(strings.TrimSpace(string(b)), " ")
		}
		if got != c.want {
			t.Errorf("%s: %q, want %s", c.v1, got, c.want)
		}
	}
	roottest.Eventually(t, "podman logs shows the line", func() bool { return p.succeeds(t, "logs", "c") == "out\n" })
	if r := p.does(t, "exec", "c", "sh", "-c", "echo in; exit 3"); r.status != 3 || r.out != "in\n" {
		t.Errorf("exec: %+v", r)
	}
	if r := p.does(t, "exec", "c", "nosuch"); r.status != 127 {
		t.Errorf("exec of nothing: %+v", r)
	}
	if r := p.onTerminal(t, "exec", "-t", "c", "tty"); r.status != 0 || strings.TrimSpace(r.out) != "/dev/pts/0" {
		t.Errorf("exec -t: %+v", r)
	}
	state := func() string {
		return strings.TrimSpace(p.succeeds(t, "inspect", "--format", "{{.State.Status}} {{.State.ExitCode}} {{.OCIRuntime}}", "c"))
	}
	p.succeeds(t, "pause", "c")
	if s := state(); s != "paused 0 longshore-oci" {
		t.Errorf("paused: %s", s)
	}
	p.succeeds(t, "unpause", "c")
	if s := state(); s != "running 0 longshore-oci" {
		t.Errorf("unpaused: %s", s)
	}
	p.succeeds(t, "stop", "c")
	if s := state(); s != "exited 9 longshore-oci" {
		t.Errorf("stopped: %s", s)
	}
	p.succeeds(t, "start", "c")
	p.succeeds(t, "kill", "c")
	if s := strings.TrimSpace(p.succeeds(t, "wait", "c")); s != "137" {
		t.Errorf("killed: %s", s)
	}
	p.succeeds(t, "rm", "c")
}

func podmanUser(t *testing.T, p *podman) {
	r := p.does(t, "run", "--rm", "--uidmap", "0:100000:65536", "--gidmap", "0:100000:65536", "busybox", "sh", "-c", "id -u; cat /proc/self/uid_map; touch /tmp/a; stat -c %u /tmp/a")
	if f := strings.Fields(r.out); r.status != 0 || strings.Join(f, " ") != "0 0 100000 65536 0" {
		t.Errorf("%+v", r)
	}
}

package oci

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/dockerd"
	"github.com/longshore/longshore/test/nodetest"
)

// engine is a dockerd with its containerd, and their command lines.
type engine struct {
	*machine

	packages, home string
}

func (e *engine) docker(t *testing.T, args ...string) result {
	t.Helper()
	argv := append(dockerd.CLI(e.packages), append([]string{"-H", "unix://" + filepath.Join(e.home, "sock")}, args...)...)
	return command(t, exec.CommandContext(t.Context(), argv[0], argv[1:]...))
}

func (e *engine) ctr(t *testing.T, args ...string) result {
	t.Helper()
	argv := append([]string{filepath.Join(e.packages, "usr/bin/ctr"), "-a", filepath.Join(e.home, "exec/containerd/containerd.sock"), "-n", "test"}, args...)
	return command(t, exec.CommandContext(t.Context(), argv[0], argv[1:]...))
}

// succeeds returns the output of a command that ends with 0.
func succeeds(t *testing.T, r result) string {
	t.Helper()
	if r.status != 0 {
		t.Fatalf("status %d: %s%s", r.status, r.out, r.err)
	}
	return strings.TrimSpace(r.out)
}

// startEngine starts dockerd with longshore-oci as its default runtime, and imports the image busybox.
func startEngine(t *testing.T, m *machine) *engine {
	t.Helper()
	packages, home := nodetest.DockerHome(t)
	flags := []string{
		"--storage-driver", "vfs", "--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false", "--group", "0",
		"--add-runtime", "longshore=" + m.runtime, "--default-runtime", "longshore", "--cgroup-parent", m.parent,
	}
	if m.systemd {
		flags = append(flags, "--exec-opt", "native.cgroupdriver=systemd")
	}
	d, err := dockerd.Start(dockerd.Options{Packages: packages, Home: home, Flags: flags})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Stop)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("dockerd's log:\n%s", d.LogTail())
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	if err := d.Answers(ctx); err != nil {
		if why := d.Lacks(); why != "" {
			t.Skipf("dockerd does not run on this machine: %s", why)
		}
		t.Fatal(err)
	}
	e := &engine{machine: m, packages: packages, home: home}
	succeeds(t, e.docker(t, "import", archive(t), "busybox"))
	return e
}

// TestDocker: dockerd runs containers by longshore-oci.
func TestDocker(t *testing.T) {
	run(t, func(t *testing.T, m *machine) {
		e := startEngine(t, m)
		t.Run("run", func(t *testing.T) { dockerRun(t, e) })
		t.Run("a container's life", func(t *testing.T) { dockerLife(t, e) })
	})
}

func dockerRun(t *testing.T, e *engine) {
	cases := []struct {
		args   []string
		status int
		out    string
	}{
		{[]string{"busybox", "echo", "hello"}, 0, "hello\n"},
		{[]string{"busybox", "sh", "-c", "exit 42"}, 42, ""},
		{[]string{"busybox", "nosuch"}, 127, ""},
		{[]string{"busybox", "/tmp"}, 126, ""},
		{[]string{"--user", "1000:1000", "--read-only", "--tmpfs", "/tmp", "busybox", "sh", "-c", "id -u; echo x >/tmp/a && cat /tmp/a; echo y >/b; echo z >/dev/stdout"}, 0, "1000\nx\nz\n"},
		{[]string{"--privileged", "busybox", "sh", "-c", "grep CapEff /proc/self/status >/dev/null && mount -t tmpfs none /tmp && echo mounted"}, 0, "mounted\n"},
	}
	for _, device := range []string{"/dev/fuse", "/dev/loop-control", "/dev/vdb"} {
		f, err := os.Open(device)
		if err != nil {
			continue // this machine has none, or may not use it
		}
		_ = f.Close()
		const script = "(: </dev/other) && echo read; (: >>/dev/other) 2>/dev/null || echo denied"
		for rights, out := range map[string]string{"r": "read\ndenied\n", "rw": "read\n"} {
			c := cases[0]
			c.args, c.out = []string{"--device", device + ":/dev/other:" + rights, "busybox", "sh", "-c", script}, out
			cases = append(cases, c)
		}
		break
	}
	if strings.Contains(succeeds(t, e.docker(t, "info", "-f", "{{.SecurityOptions}}")), "name=apparmor") {
		c := cases[0]
		c.args, c.out = []string{"busybox", "cat", "/proc/self/attr/current"}, "docker-default (enforce)\n"
		cases = append(cases, c)
	}
	for _, c := range cases {
		if r := e.docker(t, append([]string{"run", "--rm", "--network", "none"}, c.args...)...); r.status != c.status || r.out != c.out {
			t.Errorf("%v: %+v", c.args, r)
		}
	}
	if _, err := exec.LookPath("script"); err != nil {
		t.Logf("no terminal was tried: %v", err)
		return
	}
	argv := append(dockerd.CLI(e.packages), "-H", "unix://"+filepath.Join(e.home, "sock"), "run", "-t", "--rm", "--network", "none", "busybox", "tty")
	if r := command(t, exec.CommandContext(t.Context(), "script", "-qec", strings.Join(argv, " "), "/dev/null")); r.status != 0 || strings.TrimSpace(r.out) != "/dev/pts/0" {
		t.Errorf("-t: %+v", r)
	}
}

func dockerLife(t *testing.T, e *engine) {
	succeeds(t, e.docker(t, "run", "-d", "--name", "life", "--network", "none", "--memory", "64m", "--pids-limit", "50", "--cpus", "0.5", "busybox",
		"sh", "-c", "trap 'exit 9' TERM; echo out; while :; do sleep 0.1; done"))
	inspect := func(format string) string { return succeeds(t, e.docker(t, "inspect", "-f", format, "life")) }
	cgroup := e.limited(t, inspect("{{.State.Pid}}"))
	t.Logf("cgroup: %s", cgroup)
	e.reloads(t)
	e.limited(t, inspect("{{.State.Pid}}"))
	roottest.Eventually(t, "docker logs shows the line", func() bool { return e.docker(t, "logs", "life").out == "out\n" })
	if r := e.docker(t, "exec", "life", "sh", "-c", "echo in; exit 3"); r.status != 3 || r.out != "in\n" {
		t.Errorf("exec: %+v", r)
	}
	if r := e.docker(t, "exec", "life", "nosuch"); r.status != 127 && r.status != 126 {
		t.Errorf("exec of nothing: %+v", r)
	}
	if out := succeeds(t, e.docker(t, "stats", "--no-stream", "--format", "{{.MemUsage}} {{.PIDs}}", "life")); !strings.Contains(out, "/ 64MiB ") || strings.HasPrefix(out, "0B") || strings.HasSuffix(out, " 0") {
		t.Errorf("stats: %q", out)
	}
	if out := succeeds(t, e.docker(t, "top", "life")); !strings.Contains(out, "trap 'exit 9' TERM") {
		t.Errorf("top: %q", out)
	}
	succeeds(t, e.docker(t, "update", "--memory", "96m", "--memory-swap", "96m", "life"))
	if out := succeeds(t, e.docker(t, "stats", "--no-stream", "--format", "{{.MemUsage}}", "life")); !strings.HasSuffix(out, "/ 96MiB") {
		t.Errorf("stats after an update: %q", out)
	}
	const state = "{{.State.Status}} {{.State.ExitCode}} {{.HostConfig.Runtime}}"
	succeeds(t, e.docker(t, "pause", "life"))
	if s := inspect(state); s != "paused 0 longshore" {
		t.Errorf("paused: %s", s)
	}
	succeeds(t, e.docker(t, "unpause", "life"))
	succeeds(t, e.docker(t, "stop", "life"))
	if s := inspect(state); s != "exited 9 longshore" {
		t.Errorf("stopped: %s", s)
	}
	e.gone(t, cgroup)
	succeeds(t, e.docker(t, "start", "life"))
	cgroup = e.cgroupOf(t, inspect("{{.State.Pid}}"))
	succeeds(t, e.docker(t, "kill", "life"))
	if s := succeeds(t, e.docker(t, "wait", "life")); s != "137" {
		t.Errorf("killed: %s", s)
	}
	succeeds(t, e.docker(t, "rm", "life"))
	e.gone(t, cgroup)
}

// TestContainerd: containerd runs containers by longshore-oci, with its shim of runc.
func TestContainerd(t *testing.T) {
	run(t, func(t *testing.T, m *machine) {
		e := startEngine(t, m)
		saved := filepath.Join(t.TempDir(), "saved.tar")
		succeeds(t, e.docker(t, "save", "-o", saved, "busybox"))
		succeeds(t, e.ctr(t, "images", "import", "--snapshotter", "native", saved))
		const image = "docker.io/library/busybox:latest"
		runs := func(id string, options, argv []string) result {
			args := []string{"run", "--snapshotter", "native", "--runc-binary", m.runtime}
			if m.systemd {
				args = append(args, "--runc-systemd-cgroup", "--cgroup", slice+":ctr:"+id)
			} else {
				args = append(args, "--cgroup", m.parent+"/"+id)
			}
			return e.ctr(t, append(append(append(args, options...), image, id), argv...)...)
		}
		for _, c := range []struct {
			id, script string
			status     int
			out        string
		}{
			{"hello", "echo hello", 0, "hello\n"},
			{"status", "exit 42", 42, ""},
		} {
			if r := runs(c.id, []string{"--rm"}, []string{"sh", "-c", c.script}); r.status != c.status || r.out != c.out {
				t.Errorf("%s: %+v", c.id, r)
			}
		}
		if r := runs("none", []string{"--rm"}, []string{"nosuch"}); r.status == 0 || !strings.Contains(r.err, "nosuch") {
			t.Errorf("nothing to run: %+v", r)
		}
		succeeds(t, runs("c", []string{"-d", "--memory-limit", "67108864", "--cpus", "0.5"}, []string{"sh", "-c", "trap 'exit 9' TERM; while :; do sleep 0.1; done"}))
		fields := strings.Fields(succeeds(t, e.ctr(t, "tasks", "ls")))
		if len(fields) < 6 || fields[3] != "c" || fields[5] != "RUNNING" {
			t.Fatalf("tasks: %q", fields)
		}
		cgroup := e.cgroupOf(t, fields[4])
		t.Logf("cgroup: %s", cgroup)
		if r := e.ctr(t, "tasks", "exec", "--exec-id", "x", "c", "sh", "-c", "echo in; exit 3"); r.status != 3 || r.out != "in\n" {
			t.Errorf("exec: %+v", r)
		}
		if out := succeeds(t, e.ctr(t, "tasks", "metrics", "c")); !strings.Contains(out, "memory") {
			t.Errorf("metrics: %q", out)
		}
		succeeds(t, e.ctr(t, "tasks", "pause", "c"))
		if out := succeeds(t, e.ctr(t, "tasks", "ls")); !strings.Contains(out, "PAUSED") {
			t.Errorf("paused: %q", out)
		}
		succeeds(t, e.ctr(t, "tasks", "resume", "c"))
		succeeds(t, e.ctr(t, "tasks", "kill", "c"))
		roottest.Eventually(t, "the task is stopped", func() bool { return strings.Contains(e.ctr(t, "tasks", "ls").out, "STOPPED") })
		if r := e.ctr(t, "tasks", "rm", "c"); !strings.Contains(r.err, "exit code 9") {
			t.Errorf("rm: %+v", r)
		}
		succeeds(t, e.ctr(t, "containers", "rm", "c"))
		e.gone(t, cgroup)
	})
}

package oci

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// slice is the parent of the containers where systemd makes their cgroups.
const slice = "longshoretest.slice"

// withSystemd reports whether the first process is the systemd of a guest of hack/vm.sh.
func withSystemd() bool {
	cmdline, _ := os.ReadFile("/proc/cmdline")
	comm, _ := os.ReadFile("/proc/1/comm")
	return strings.TrimSpace(string(comm)) == "systemd" && strings.Contains(string(cmdline), "longshore.mode=systemd")
}

// machine is where the containers of a test run.
type machine struct {
	runtime string // longshore-oci
	parent  string // of the containers' cgroups
	systemd bool
}

// run runs body in namespaces of its own, or in the whole guest if that has systemd, which knows processes by their pids there.
func run(t *testing.T, body func(t *testing.T, m *machine)) {
	if withSystemd() && os.Getenv(roottest.Env) == "1" {
		body(t, &machine{runtime: filepath.Join(nodetest.Bin(t), "longshore-oci"), parent: slice, systemd: true})
		return
	}
	roottest.Run(t, func(t *testing.T) {
		body(t, &machine{runtime: filepath.Join(nodetest.Bin(t), "longshore-oci"), parent: roottest.Cgroup(t)})
	})
}

// result is the output and the status of a command.
type result struct {
	out, err string
	status   int
}

func command(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	err := cmd.Run()
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	return result{out.String(), complaints.String(), cmd.ProcessState.ExitCode()}
}

// limits has the files of cgroup v1 and v2, with their contents for a container with 64 MiB, half a processor and 50 processes.
var limits = []struct{ v1, v2, want string }{
	{"memory.limit_in_bytes", "memory.max", "67108864"},
	{"cpu.cfs_quota_us", "cpu.max", "50000"},
	{"pids.max", "pids.max", "50"},
}

// unified reports whether the machine has cgroup v2 alone.
func unified() bool {
	var fs unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
}

// cgroups returns the paths of a process's cgroups by controller; "" is that of cgroup v2.
func cgroups(t *testing.T, pid string) map[string]string {
	t.Helper()
	b, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	paths := map[string]string{}
	for line := range strings.Lines(string(b)) {
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, controller := range strings.Split(fields[1], ",") {
			paths[controller] = fields[2]
		}
	}
	return paths
}

// cgroupOf returns the path of a process's cgroup in the hierarchy of systemd, or of memory. It must be below the test's parent.
func (m *machine) cgroupOf(t *testing.T, pid string) string {
	t.Helper()
	paths := cgroups(t, pid)
	path := paths["memory"]
	switch {
	case unified():
		path = paths[""]
	case m.systemd:
		path = paths["name=systemd"]
	}
	if want := "/" + strings.Trim(m.parent, "/") + "/"; !strings.HasPrefix(path, want) {
		t.Errorf("the cgroup %s is not below %s", path, want)
	}
	return path
}

// limited compares the limits of the cgroup of a process, and returns the cgroup's path.
func (m *machine) limited(t *testing.T, pid string) string {
	t.Helper()
	paths := cgroups(t, pid)
	for _, l := range limits {
		file := filepath.Join("/sys/fs/cgroup", paths[""], l.v2)
		if !unified() {
			controller, _, _ := strings.Cut(l.v1, ".")
			file = filepath.Join("/sys/fs/cgroup", controller, paths[controller], l.v1)
		}
		b, err := os.ReadFile(file)
		if got, _, _ := strings.Cut(strings.TrimSpace(string(b)), " "); err != nil || got != l.want {
			t.Errorf("%s has %q, %v, want %s", file, b, err, l.want)
		}
	}
	return m.cgroupOf(t, pid)
}

// reloads makes systemd read its units again. systemd then writes the limits of its units.
func (m *machine) reloads(t *testing.T) {
	t.Helper()
	if !m.systemd {
		return
	}
	if r := command(t, exec.CommandContext(t.Context(), "systemctl", "daemon-reload")); r.status != 0 {
		t.Fatalf("daemon-reload: %+v", r)
	}
}

// gone waits for the removal of a cgroup. It fails the test if systemd still has a unit of a container.
func (m *machine) gone(t *testing.T, cgroup string) {
	t.Helper()
	roottest.Eventually(t, "the cgroup "+cgroup+" is gone", func() bool {
		for _, top := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/systemd"} {
			if _, err := os.Stat(top + cgroup); err == nil {
				return false
			}
		}
		return true
	})
	if !m.systemd {
		return
	}
	r := command(t, exec.CommandContext(t.Context(), "systemctl", "list-units", "--all", "--plain", "--no-legend"))
	for line := range strings.Lines(r.out) {
		if unit, _, _ := strings.Cut(line, " "); strings.HasPrefix(unit, "docker-") || strings.HasPrefix(unit, "libpod-") || strings.HasPrefix(unit, "ctr-") {
			t.Errorf("a unit is left: %s", line)
		}
	}
}

// archive writes a root with busybox as a tar, and returns its path.
func archive(t *testing.T) string {
	t.Helper()
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skip("busybox-static is not installed")
	}
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for _, d := range []string{"bin", "etc", "run", "proc", "dev", "sys"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(root, "tmp"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(root, "tmp"), 0o1777); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(root, "bin/busybox"), busybox, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, a := range nodetest.Applets {
		if err := os.Symlink("busybox", filepath.Join(root, "bin", a)); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	file := filepath.Join(dir, "image.tar")
	if out, err := exec.CommandContext(t.Context(), "tar", "-C", root, "-cf", file, ".").CombinedOutput(); err != nil {
		t.Fatalf("tar: %v: %s", err, out)
	}
	return file
}

package systemd

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/test/nodetest"
)

// TestOCI: the command line puts a container into a unit of systemd.
func TestOCI(t *testing.T) {
	g := newGuest(t)
	bundle, log := t.TempDir(), filepath.Join(t.TempDir(), "log")
	g.bundle(bundle)
	out, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	pidFile := filepath.Join(bundle, "pid")
	cmd := exec.CommandContext(t.Context(), "/usr/bin/longshore-oci", "--systemd-cgroup", "run", "--detach", "--pid-file", pidFile, "--bundle", bundle, "unit-test")
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log)
		t.Fatalf("run: %v: %s", err, said)
	}
	const unit = "test-one.service"
	const dir = "/sys/fs/cgroup/machine.slice/" + unit + "/tree"
	pid, err := os.ReadFile(pidFile)
	if err != nil {
		t.Fatal(err)
	}
	holds := func() {
		t.Helper()
		if b, err := os.ReadFile(dir + "/cgroup.procs"); err != nil || !strings.Contains("\n"+string(b), "\n"+strings.TrimSpace(string(pid))+"\n") {
			t.Errorf("%s holds %q, %v", dir, b, err)
		}
		if b, err := os.ReadFile(dir + "/memory.max"); err != nil || strings.TrimSpace(string(b)) != strconv.Itoa(48<<20) {
			t.Errorf("memory.max: %s, %v", b, err)
		}
		if state, delegate := g.property(unit, "ActiveState"), g.property(unit, "Delegate"); state != "active" || delegate != "yes" {
			t.Errorf("%s is %s, delegated: %s", unit, state, delegate)
		}
		// The flag is the one of the create: callers do not give it every time.
		if got := g.run("/usr/bin/longshore-oci", "exec", "unit-test", "/bin/sh", "-c", ociBeat); got != "read denied" {
			t.Errorf("an exec: %q", got)
		}
	}
	holds()
	g.run("systemctl", "daemon-reload")
	holds()
	nodetest.Eventually(t, "it goes on", func() bool {
		b, err := os.ReadFile(log)
		return err == nil && strings.Count(string(b), "\n") > 3
	})
	b, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if rest := strings.ReplaceAll(string(b), "read denied\n", ""); rest != "" {
		t.Errorf("it said %q", rest)
	}
	g.run("/usr/bin/longshore-oci", "delete", "--force", "unit-test")
	if state := g.property(unit, "LoadState"); state != "not-found" {
		t.Errorf("%s is %s", unit, state)
	}
	if _, err := os.Stat(filepath.Dir(dir)); !os.IsNotExist(err) {
		t.Errorf("its cgroup is there: %v", err)
	}
	g.run("systemctl", "stop", "machine.slice")
}

// ociBeat says which of the two devices may be read.
const ociBeat = `a=denied; (: </one) 2>/dev/null && a=read; b=denied; (: </two) 2>/dev/null && b=read; echo $a $b`

// bundle makes one: its container sees two devices and may read one.
func (g guest) bundle(dir string) {
	g.t.Helper()
	root := filepath.Join(dir, "rootfs")
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		g.t.Skipf("no busybox-static: %v", err)
	}
	for _, d := range []string{"bin", "proc", "dev"} {
		if err := os.MkdirAll(filepath.Join(root, d), 0o755); err != nil {
			g.t.Fatal(err)
		}
	}
	for _, name := range []string{"sh", "sleep"} {
		if err := os.WriteFile(filepath.Join(root, "bin", name), busybox, 0o755); err != nil {
			g.t.Fatal(err)
		}
	}
	one, two, limit := disk(g.t, "/one", "/dev/vda"), disk(g.t, "/two", "/dev/vdb"), int64(48<<20)
	spec := specs.Spec{
		Version: specs.Version,
		Root:    &specs.Root{Path: "rootfs"},
		Process: &specs.Process{Cwd: "/", Env: []string{"PATH=/bin"}, Args: []string{"/bin/sh", "-c", "while :; do " + ociBeat + "; sleep 0.2; done"}},
		Mounts: []specs.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "mode=755"}},
		},
		Linux: &specs.Linux{
			CgroupsPath: "machine.slice:test:one",
			Namespaces:  []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.CgroupNamespace}},
			Devices:     []specs.LinuxDevice{one, two},
			Resources: &specs.LinuxResources{
				Memory:  &specs.LinuxMemory{Limit: &limit},
				Devices: []specs.LinuxDeviceCgroup{{Access: "rwm"}, {Allow: true, Type: "b", Major: &one.Major, Minor: &one.Minor, Access: "r"}},
			},
		},
	}
	b, err := json.Marshal(spec)
	if err != nil {
		g.t.Fatal(err)
	}
	g.write(filepath.Join(dir, "config.json"), string(b))
}

// disk is a device of the guest's under another path; everybody may read its
// node, so that nothing but a device rule can deny it.
func disk(t *testing.T, path, host string) specs.LinuxDevice {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(host, &st); err != nil {
		t.Fatal(err)
	}
	mode := os.FileMode(0o666)
	return specs.LinuxDevice{Path: path, Type: "b", Major: int64(unix.Major(st.Rdev)), Minor: int64(unix.Minor(st.Rdev)), FileMode: &mode}
}

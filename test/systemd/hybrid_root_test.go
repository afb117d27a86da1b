package systemd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/test/nodetest"
)

// unified reports whether the machine has cgroup v2 alone.
func unified() bool {
	var fs unix.Statfs_t
	return unix.Statfs("/sys/fs/cgroup", &fs) == nil && fs.Type == unix.CGROUP2_SUPER_MAGIC
}

// cgroups returns the paths of a process's cgroups by controller; "" is that of cgroup v2.
func (g guest) cgroups(pid string) map[string]string {
	g.t.Helper()
	b, err := os.ReadFile("/proc/" + pid + "/cgroup")
	if err != nil {
		g.t.Fatal(err)
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

// limitsOf returns the cgroups of a process and their limits.
func (g guest) limitsOf(pid string) string {
	g.t.Helper()
	paths := g.cgroups(pid)
	files := []string{"memory.max", "cpu.max", "cpu.weight", "pids.max"}
	if !unified() {
		files = []string{"memory.limit_in_bytes", "cpu.cfs_quota_us", "cpu.shares", "pids.max", "devices.list"}
	}
	limits := ""
	for i, file := range files {
		dir := "/sys/fs/cgroup" + paths[""]
		if !unified() {
			controller, _, _ := strings.Cut(file, ".")
			dir = filepath.Join("/sys/fs/cgroup", controller, paths[controller])
		}
		b, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			g.t.Fatalf("a limit is gone: %v", err)
		}
		if i == 0 {
			limits = dir
		}
		limits += " " + strings.TrimSpace(string(b))
	}
	return limits
}

// TestDriverWithControllersOfV1: with engine.cgroup_driver = "systemd" where the controllers are those of cgroup v1, a pod's
// containers are below its slice in every hierarchy, and their limits hold over the restarts of systemd and of the agent.
func TestDriverWithControllersOfV1(t *testing.T) {
	g := newGuest(t)
	if unified() {
		t.Skip("the machine has cgroup v2 alone: LONGSHORE_VM_KERNEL=systemd.unified_cgroup_hierarchy=0 hack/vm.sh systemd")
	}
	g.run("systemctl", "start", agent)
	g.serves()
	image := g.Busybox(t)
	end := g.podSlice()
	cfg := g.PodConfig("pod")
	cfg.Linux.CgroupParent = "/kubepods.slice/" + pods + ".slice/" + slice
	pod := g.RunPod(t, cfg)
	c := pod.Run(t, g.counter(image, "limited"))
	nodetest.Eventually(t, "it writes", func() bool { return strings.Contains(c.ReadLog(t), "\n") })
	paths := g.cgroups(g.pid(c.ID))
	t.Logf("cgroups: %v", paths)
	for _, controller := range []string{"name=systemd", "memory", "cpu", "pids", "devices", "freezer", "cpuset", "blkio"} {
		if want := strings.TrimPrefix(below, "/sys/fs/cgroup") + "/longshore-" + pod.ID + ".service/"; !strings.HasPrefix(paths[controller], want) {
			t.Errorf("%s: %q is not below %s", controller, paths[controller], want)
		}
	}
	g.outOfMemory(pod, image)
	containers := running{c}
	for name, do := range map[string]func(){
		"daemon-reload": func() { g.run("systemctl", "daemon-reload") },
		"restart":       func() { g.run("systemctl", "restart", agent) },
		"kill":          g.kill,
		"set-property":  func() { g.run("systemctl", "set-property", "--runtime", slice, "CPUWeight=77") },
		"daemon-reexec": func() { g.run("systemctl", "daemon-reexec") },
	} {
		t.Run(name, func(t *testing.T) {
			g := g
			g.t = t
			was := containers.states(g)
			do()
			g.serves()
			containers.goOn(g, was)
		})
	}
	pod.Remove(t)
	end()
	g.Check()
	g.run("systemctl", "stop", "longshore.socket", "longshore-cri.socket", agent)
	// Where systemd has no units the slices' directories are kubelet's, which removes them.
	for _, pattern := range []string{"*/longshore*", "*/*/longshore*", "*/*/*/*/longshore*", "systemd/kubepods*", "memory/kubepods*"} {
		if dirs, err := filepath.Glob("/sys/fs/cgroup/" + pattern); err != nil || len(dirs) != 0 {
			t.Errorf("cgroups left: %v, %v", dirs, err)
		}
	}
}

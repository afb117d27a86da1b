package systemd

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/coreos/go-systemd/v22/dbus"
	godbus "github.com/godbus/dbus/v5"
	"google.golang.org/grpc"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

const (
	pods  = "kubepods-burstable"
	slice = "kubepods-burstable-pod6b1c3f00_0000_4000_8000_00000000beef.slice"
	below = "/sys/fs/cgroup/kubepods.slice/kubepods-burstable.slice/" + slice
)

// beats is the container's constant output: it may read the one device, may not write it, and
// may not open the other. Neither is one of those that every container has. It rests for a second: processes
// are expensive in an emulated guest.
const beats = `i=0; while :; do
  r=$(head -c 3 /dev/naught 2>/dev/null | wc -c)
  w=denied; (: >>/dev/naught) 2>/dev/null && w=written
  k=denied; (: </kmsg) 2>/dev/null && k=opened
  i=$((i+1)); echo "$i $r $w $k"; sleep 1
done`

const may = " 3 denied denied"

// TestUnit walks an installed agent through its life as a unit.
func TestUnit(t *testing.T) {
	g := newGuest(t)
	g.activation()
	g.watchdog()
	image := g.Busybox(t)
	end := g.podSlice()
	pod, containers := g.pod(image)
	g.outOfMemory(pod, image)
	for _, d := range []struct {
		name string
		do   func()
	}{
		{"daemon-reload", func() { g.run("systemctl", "daemon-reload") }},
		{"restart", func() { g.run("systemctl", "restart", agent) }},
		{"kill", g.kill},
		{"daemon-reload after that", func() { g.run("systemctl", "daemon-reload") }},
		{"set-property of the pod's slice", func() { g.run("systemctl", "set-property", "--runtime", slice, "CPUWeight=77") }},
		{"daemon-reexec", func() { g.run("systemctl", "daemon-reexec") }},
		{"stop and start", func() {
			g.run("systemctl", "stop", agent)
			g.run("systemctl", "start", agent)
		}},
	} {
		t.Run(d.name, func(t *testing.T) {
			g := g
			g.t = t
			was := containers.states(g)
			d.do()
			g.serves()
			containers.goOn(g, was)
			if again := g.keeperOutside(); again != "" {
				t.Error(again)
			}
		})
	}
	g.withoutParent(image)
	g.otherRuntimes(image)
	second := pod.Run(t, g.counter(image, "second")) // systemd has re-executed itself
	if out := g.exec(second.ID, "echo here"); out != "here\n" {
		t.Errorf("exec: %q", out)
	}
	g.removal(pod)
	end()
	g.nothingLeft()
}

// activation starts the agent by a call to one of its sockets.
func (g guest) activation() {
	g.t.Helper()
	g.run("systemctl", "start", "longshore.socket", "longshore-cri.socket")
	if state := g.property(agent, "ActiveState"); state != "inactive" {
		g.t.Fatalf("before the first call the agent is %s", state)
	}
	v, err := g.CRI.Version(g.t.Context(), &v1.VersionRequest{}, grpc.WaitForReady(true))
	if err != nil {
		g.t.Fatalf("the call that starts the agent: %v", err)
	}
	g.t.Logf("%s %s was started by its socket", v.GetRuntimeName(), v.GetRuntimeVersion())
	// Type=notify: this returns once READY=1 has come, and fails without.
	g.run("systemctl", "start", agent)
	if state, typ := g.property(agent, "ActiveState"), g.property(agent, "Type"); state != "active" || typ != "notify" {
		g.t.Fatalf("the agent is %s, of type %s", state, typ)
	}
	r, err := g.CRI.RuntimeConfig(g.t.Context(), &v1.RuntimeConfigRequest{})
	if err != nil || r.GetLinux().GetCgroupDriver() != v1.CgroupDriver_SYSTEMD {
		g.t.Fatalf("RuntimeConfig: %v, %v", r, err)
	}
}

// watchdog sees it fed twice.
func (g guest) watchdog() {
	g.t.Helper()
	pid := g.property(agent, "MainPID")
	for range 2 {
		was := g.property(agent, "WatchdogTimestampMonotonic")
		nodetest.Eventually(g.t, "the watchdog is fed", func() bool { return g.property(agent, "WatchdogTimestampMonotonic") != was })
	}
	if now := g.property(agent, "MainPID"); now != pid {
		g.t.Errorf("the agent was process %s and is %s", pid, now)
	}
}

// podSlice makes a pod's slice as kubelet does, and returns its removal.
func (g guest) podSlice() (end func()) {
	g.t.Helper()
	// Systemd ends its connections when it re-executes itself.
	with := func(do func(*dbus.Conn) error) {
		g.t.Helper()
		c, err := dbus.NewSystemdConnectionContext(g.t.Context())
		if err == nil {
			err = do(c)
			c.Close()
		}
		if err != nil {
			g.t.Fatal(err)
		}
	}
	with(func(c *dbus.Conn) error {
		properties := []dbus.Property{dbus.PropDescription("a pod"), dbus.PropWants(pods + ".slice")}
		for name, value := range map[string]any{
			"MemoryAccounting": true, "CPUAccounting": true, "IOAccounting": true, "TasksAccounting": true, "DefaultDependencies": false,
			"MemoryMax": uint64(256 << 20), "CPUWeight": uint64(50), "TasksMax": uint64(math.MaxUint64),
		} {
			properties = append(properties, dbus.Property{Name: name, Value: godbus.MakeVariant(value)})
		}
		done := make(chan string, 1)
		if _, err := c.StartTransientUnitContext(g.t.Context(), slice, "replace", properties, done); err != nil {
			return err
		}
		return result(<-done)
	})
	return func() {
		with(func(c *dbus.Conn) error {
			for _, unit := range []string{slice, pods + ".slice", "kubepods.slice"} {
				done := make(chan string, 1)
				if _, err := c.StopUnitContext(context.WithoutCancel(g.t.Context()), unit, "replace", done); err != nil {
					return err
				}
				if err := result(<-done); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func result(s string) error {
	if s != "done" {
		return fmt.Errorf("systemd's job: %s", s)
	}
	return nil
}

// running are containers that must run on.
type running []*nodetest.Container

// pod runs a pod in the slice.
func (g guest) pod(image string) (*nodetest.Pod, running) {
	g.t.Helper()
	cfg := g.PodConfig("pod")
	cfg.Linux.CgroupParent = "/kubepods.slice/" + pods + ".slice/" + slice
	cfg.Linux.SecurityContext.Privileged = true // as one of its containers is
	p := g.RunPod(g.t, cfg)
	c := p.Run(g.t, g.counter(image, "limited"))
	free := g.counter(image, "privileged")
	free.Linux.SecurityContext = &v1.LinuxContainerSecurityContext{Privileged: true}
	free.Command[2] = strings.ReplaceAll(free.Command[2], "/dev/naught", "/dev/vda")
	free.Devices = nil
	f := p.Run(g.t, free)
	for _, c := range []*nodetest.Container{c, f} {
		nodetest.Eventually(g.t, "it speaks", func() bool { return strings.Contains(c.ReadLog(g.t), "\n") })
	}
	if dirs, _ := filepath.Glob(below + "/longshore-*.service/tree/*/cgroup.procs"); len(dirs) != 2 {
		g.t.Errorf("containers below the pod's slice: %v", dirs)
	}
	return p, running{c, f}
}

func (g guest) counter(image, name string) *v1.ContainerConfig {
	cfg := nodetest.ContainerConfig(name, image, "/bin/sh", "-c", beats)
	cfg.Devices = []*v1.Device{{HostPath: "/dev/vda", ContainerPath: "/dev/naught", Permissions: "r"}}
	cfg.Mounts = []*v1.Mount{{HostPath: "/dev/kmsg", ContainerPath: "/kmsg"}}
	cfg.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: 64 << 20, CpuShares: 512, CpuPeriod: 100000, CpuQuota: 90000}
	return cfg
}

// outOfMemory kills a container of the pod by its limit: the others run on, and the pod's unit
// stays.
func (g guest) outOfMemory(pod *nodetest.Pod, image string) {
	g.t.Helper()
	cfg := nodetest.ContainerConfig("victim", image, "/bin/dd", "if=/dev/zero", "of=/dev/null", "bs=40M")
	cfg.Linux.Resources = &v1.LinuxContainerResources{MemoryLimitInBytes: 15 << 20, MemorySwapLimitInBytes: 15 << 20}
	c := pod.Run(g.t, cfg)
	if st := c.WaitExited(g.t); st.GetReason() != "OOMKilled" {
		g.t.Errorf("it ended with %d, %s", st.GetExitCode(), st.GetReason())
	}
	if _, err := g.CRI.RemoveContainer(g.t.Context(), &v1.RemoveContainerRequest{ContainerId: c.ID}); err != nil {
		g.t.Error(err)
	}
}

// kill ends the agent by a signal and waits until systemd has started another.
func (g guest) kill() {
	g.t.Helper()
	was := g.property(agent, "MainPID")
	g.run("systemctl", "kill", "-s", "KILL", "--kill-who=main", agent)
	nodetest.Eventually(g.t, "systemd starts another agent", func() bool {
		pid := g.property(agent, "MainPID")
		return pid != "0" && pid != was && g.property(agent, "ActiveState") == "active"
	})
}

// serves waits until the agent does.
func (g guest) serves() {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), roottest.Patience())
	defer cancel()
	for {
		if _, err := g.CRI.Version(ctx, &v1.VersionRequest{}, grpc.WaitForReady(true)); err == nil {
			return
		}
		if ctx.Err() != nil {
			g.t.Fatal("the agent does not serve")
		}
	}
}

func (g guest) exec(id, script string) string {
	g.t.Helper()
	r, err := g.CRI.ExecSync(g.t.Context(), &v1.ExecSyncRequest{ContainerId: id, Cmd: []string{"/bin/sh", "-c", script}, Timeout: 60})
	if err != nil {
		g.t.Fatalf("exec: %v", err)
	}
	return string(r.GetStdout())
}

// state must not change.
type state struct {
	pid, started string
	limits       string
	lines        int
}

func (r running) states(g guest) (states []state) {
	g.t.Helper()
	for _, c := range r {
		pid := g.pid(c.ID)
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			g.t.Fatalf("container %s: %v", c.ID, err)
		}
		_, after, _ := strings.Cut(string(stat), ") ")
		limits := g.limitsOf(pid)
		states = append(states, state{pid, strings.Fields(after)[19], limits, strings.Count(c.ReadLog(g.t), "\n")})
	}
	want := " " + strconv.Itoa(64<<20) + " 90000 100000 "
	if !unified() {
		want = " " + strconv.Itoa(64<<20) + " 90000 512 "
	}
	if !strings.Contains(states[0].limits, want) {
		g.t.Errorf("limits %s, wanted %s", states[0].limits, want)
	}
	return states
}

// goOn checks that the containers are unchanged, and have written without a pause.
func (r running) goOn(g guest, was []state) {
	g.t.Helper()
	for i, c := range r {
		nodetest.Eventually(g.t, "it goes on", func() bool { return strings.Count(c.ReadLog(g.t), "\n") > was[i].lines+2 })
	}
	for i, now := range r.states(g) {
		now.lines = was[i].lines
		if now != was[i] {
			g.t.Errorf("container %d was %+v, and is %+v", i, was[i], now)
		}
	}
	wants := []string{may, " 3 written opened"}
	for i, c := range r {
		lines := strings.Split(strings.TrimSuffix(c.ReadLog(g.t), "\n"), "\n")
		for k, line := range lines {
			if want := strconv.Itoa(k+1) + wants[i]; !strings.HasSuffix(line, " "+want) {
				g.t.Fatalf("line %d of container %d is %q, wanted %q", k, i, line, want)
			}
		}
		script := strings.NewReplacer("while :; do", "", "sleep 1\ndone", "").Replace(beats)
		if i == 1 {
			script = strings.ReplaceAll(script, "/dev/naught", "/dev/vda")
		}
		out := g.exec(c.ID, script)
		if out != "1"+wants[i]+"\n" {
			g.t.Errorf("an exec in container %d may %q", i, out)
		}
	}
	list, err := g.CRI.ListContainers(g.t.Context(), &v1.ListContainersRequest{})
	if err != nil || len(list.GetContainers()) != len(r) || slices.ContainsFunc(list.GetContainers(), func(c *v1.Container) bool { return c.GetState() != v1.ContainerState_CONTAINER_RUNNING }) {
		g.t.Errorf("the list: %v, %v", list, err)
	}
	g.Check()
}

// pid is that of a container's program.
func (g guest) pid(id string) string {
	g.t.Helper()
	st, err := g.CRI.ContainerStatus(g.t.Context(), &v1.ContainerStatusRequest{ContainerId: id, Verbose: true})
	if err != nil {
		g.t.Fatal(err)
	}
	_, after, _ := strings.Cut(st.GetInfo()["info"], `"pid":`)
	digits := strings.TrimLeft(after, " ")
	end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' })
	if end < 1 {
		g.t.Fatalf("no pid in %v", st.GetInfo())
	}
	return digits[:end]
}

// keeperOutside returns the fault when the keeper is in the agent's cgroup: at every start
// systemd would warn of left-over processes.
func (g guest) keeperOutside() string {
	for _, pid := range nodetest.Pair("") {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err == nil && strings.Contains(string(b), agent) {
			return fmt.Sprintf("keeper %d is in %s", pid, b)
		}
	}
	said := g.run("journalctl", "-b", "--no-pager", "-o", "cat", "-u", agent)
	for _, complaint := range []string{"left-over process", "Killing process", "remains running after", "Watchdog timeout"} {
		if strings.Contains(said, complaint) {
			return "systemd complains:\n" + said
		}
	}
	return ""
}

// otherRuntimes runs containers by programs in the slice: below a delegated unit they make
// plain cgroups.
func (g guest) otherRuntimes(image string) {
	g.t.Helper()
	for _, name := range []string{"crun", "runc"} {
		cfg := g.PodConfig(name)
		cfg.Linux.CgroupParent = slice
		r, err := g.CRI.RunPodSandbox(g.t.Context(), &v1.RunPodSandboxRequest{Config: cfg, RuntimeHandler: name})
		if err != nil {
			g.t.Errorf("%s: %v", name, err)
			continue
		}
		p := g.Pod(r.GetPodSandboxId(), cfg)
		c := p.Run(g.t, g.counter(image, name))
		g.run("systemctl", "daemon-reload")
		limits, err := filepath.Glob(below + "/longshore-" + r.GetPodSandboxId() + ".service/tree/" + c.ID + "/memory.max")
		if err != nil || len(limits) != 1 {
			g.t.Fatalf("%s: its cgroup: %v, %v", name, limits, err)
		}
		if b, err := os.ReadFile(limits[0]); err != nil || strings.TrimSpace(string(b)) != strconv.Itoa(64<<20) {
			g.t.Errorf("%s: memory.max %s, %v", name, b, err)
		}
		if out := g.exec(c.ID, strings.NewReplacer("while :; do", "", "sleep 1\ndone", "").Replace(beats)); out != "1"+may+"\n" {
			g.t.Errorf("%s: an exec may %q", name, out)
		}
		p.Remove(g.t)
	}
}

// withoutParent runs a pod without a slice.
func (g guest) withoutParent(image string) {
	g.t.Helper()
	p := g.RunPod(g.t, g.PodConfig("free"))
	c := p.Run(g.t, g.counter(image, "free"))
	const unit = "longshore-sandboxes.service"
	cgroup, err := os.ReadFile("/proc/" + g.pid(c.ID) + "/cgroup")
	if err != nil || !strings.HasPrefix(string(cgroup), "0::/system.slice/"+unit+"/") {
		g.t.Errorf("it is in %s, %v", cgroup, err)
	}
	if state := g.property(unit, "ActiveState"); state != "active" {
		g.t.Errorf("%s is %s", unit, state)
	}
	p.Remove(g.t)
}

func (g guest) removal(pod *nodetest.Pod) {
	g.t.Helper()
	pod.Remove(g.t)
	if dirs, err := filepath.Glob(below + "/*/cgroup.procs"); err != nil || len(dirs) != 0 {
		g.t.Errorf("left below the pod's slice: %v, %v", dirs, err)
	}
	g.Check()
}

// nothingLeft stops the agent, which takes its keeper along when nothing runs.
func (g guest) nothingLeft() {
	g.t.Helper()
	g.run("systemctl", "stop", "longshore.socket", "longshore-cri.socket", agent)
	nodetest.Eventually(g.t, "the keeper ends", func() bool { return len(nodetest.Pair("")) == 0 })
	units := g.run("systemctl", "list-units", "--no-legend", "--plain", "--type=service,scope,slice,socket", "longshore*", "kubepods*")
	if units != "" {
		g.t.Errorf("units left:\n%s", units)
	}
	for _, pattern := range []string{"longshore*", "*/longshore*", "kubepods*"} {
		if dirs, _ := filepath.Glob("/sys/fs/cgroup/" + pattern); len(dirs) != 0 {
			g.t.Errorf("cgroups left: %v", dirs)
		}
	}
}

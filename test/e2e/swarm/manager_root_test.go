package swarm

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// managerIP is where the manager is, on the bridge swarm0 of the test's own network.
const managerIP = "10.99.0.1"

// dirEnv names the directory with the unpacked packages docker.io and containerd.
const dirEnv = "LONGSHORE_DOCKER_DIR"

// manager is dockerd as the manager of a Swarm, on the test's machine.
type manager struct {
	t       *testing.T
	dir     string // of the packages
	home    string
	cmd     *exec.Cmd
	exited  chan struct{} // closed when cmd has ended
	address string        // host:port of the Swarm
	token   string        // of workers
}

// long skips a case that is too long for CI, which runs the others with -short.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		t.Skip("make e2e-swarm runs it")
	}
}

// startManager starts one that has a Swarm and runs nothing of it itself.
func startManager(t *testing.T) *manager {
	t.Helper()
	dir := os.Getenv(dirEnv)
	if dir == "" {
		t.Skipf("no dockerd: set %s to the directory of the unpacked packages (hack/dockerd.sh DIR)", dirEnv)
	}
	home, err := os.MkdirTemp("", "longshore-dockerd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { removeMounted(t, home) })
	m := &manager{t: t, dir: dir, home: home, address: managerIP + ":2377"}
	// An address that is not loopback's, which dockerd refuses to tell to others.
	nodetest.Lines(t, "ip", "link", "add", "swarm0", "type", "bridge")
	nodetest.Lines(t, "ip", "address", "add", managerIP+"/24", "dev", "swarm0")
	nodetest.Lines(t, "ip", "link", "set", "swarm0", "up")
	// dockerd counts a hybrid machine's second hierarchy among the first one's.
	_ = unix.Unmount("/sys/fs/cgroup/unified", unix.MNT_DETACH)
	m.up()
	t.Cleanup(m.down)
	m.docker("swarm", "init", "--advertise-addr", managerIP, "--listen-addr", m.address)
	m.docker("node", "update", "--availability", "drain", m.docker("info", "--format", "{{.Swarm.NodeID}}"))
	m.token = m.docker("swarm", "join-token", "-q", "worker")
	return m
}

// removeMounted removes a directory with what a dockerd that was killed has left mounted in it.
func removeMounted(t *testing.T, dir string) {
	t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(mounts)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, dir+"/") {
			_ = unix.Unmount(at, unix.MNT_DETACH)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		t.Errorf("remove dockerd's directory: %v", err)
	}
}

// up starts dockerd and waits until it answers.
func (m *manager) up() {
	m.t.Helper()
	log, err := os.OpenFile(filepath.Join(m.home, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	defer func() { _ = log.Close() }()
	cmd := exec.Command(filepath.Join(m.dir, "usr/sbin/dockerd"), //nolint:forbidigo // it outlives the contexts of subtests
		"--data-root", m.home+"/data", "--exec-root", m.home+"/exec", "--pidfile", m.home+"/pid", "--host", "unix://"+m.home+"/sock",
		"--storage-driver", "vfs", "--bridge", "none", "--iptables=false", "--ip6tables=false", "--ip-forward=false")
	cmd.Env = m.env()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		m.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	m.cmd, m.exited = cmd, exited
	answers := false
	roottest.Eventually(m.t, "dockerd answers", func() bool {
		select {
		case <-exited:
			return true
		default:
		}
		_, err := m.try(m.t.Context(), "version")
		answers = err == nil
		return answers
	})
	if answers {
		return
	}
	end := m.logTail()
	if why := lacks(end); why != "" {
		m.t.Skipf("dockerd cannot run on this kernel: %s", why)
	}
	m.t.Fatalf("dockerd has ended:\n%s", end)
}

// env is the environment of the unpacked programs.
func (m *manager) env() []string {
	libs, _ := filepath.Glob(m.dir + "/lib/*-linux-gnu")
	more, _ := filepath.Glob(m.dir + "/usr/lib/*-linux-gnu")
	libs = append(append(libs, more...), os.Getenv("LD_LIBRARY_PATH"))
	return append(os.Environ(), "HOME="+m.home, "LD_LIBRARY_PATH="+strings.Trim(strings.Join(libs, ":"), ":"),
		"PATH="+filepath.Join(m.dir, "usr/bin")+":"+filepath.Join(m.dir, "usr/sbin")+":"+os.Getenv("PATH"))
}

// lacks finds in dockerd's log the ability of the kernel without which it did not start;
// "" when it ended for another reason.
func lacks(log string) string {
	for line := range strings.Lines(log) {
		_, why, fatal := strings.Cut(line, "failed to start daemon: ")
		if !fatal {
			continue
		}
		for _, ability := range []string{"cgroup", "Cgroup", "operation not permitted", "not supported", "function not implemented", "no such device", "iptables"} {
			if strings.Contains(why, ability) {
				return strings.TrimSpace(why)
			}
		}
	}
	return ""
}

func (m *manager) logTail() string {
	data, _ := os.ReadFile(filepath.Join(m.home, "log"))
	return string(data[max(0, len(data)-4000):])
}

// kill ends dockerd as a power cut does, and waits until it is gone.
func (m *manager) kill() {
	_ = m.cmd.Process.Kill()
	<-m.exited
	// Its containerd dies with it. As nobody takes that exit here, the next dockerd would
	// take it for alive.
	if err := os.Remove(m.home + "/exec/containerd/containerd.pid"); err != nil {
		m.t.Fatal(err)
	}
}

func (m *manager) down() {
	if m.t.Failed() {
		m.t.Logf("dockerd's log, its end:\n%s", m.logTail())
	}
	_ = m.cmd.Process.Signal(syscall.SIGTERM)
	<-m.exited
}

// command is one of docker's.
func (m *manager) command(ctx context.Context, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(m.dir, "usr/bin/docker"), append([]string{"--host", "unix://" + m.home + "/sock"}, args...)...)
	cmd.Env = m.env()
	return cmd
}

// try runs a command of docker's.
func (m *manager) try(ctx context.Context, args ...string) (string, error) {
	cmd := m.command(ctx, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("docker %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(stdout.String()), nil
}

// docker is try of what must succeed.
func (m *manager) docker(args ...string) string {
	m.t.Helper()
	ctx, cancel := context.WithTimeout(m.t.Context(), roottest.Patience())
	defer cancel()
	out, err := m.try(ctx, args...)
	if err != nil {
		m.t.Fatal(err)
	}
	return out
}

// create creates a service and does not wait for it.
func (m *manager) create(name, image string, args ...string) {
	m.t.Helper()
	all := []string{"service", "create", "--detach", "--quiet", "--no-resolve-image", "--name", name}
	for i, a := range args {
		if a == "--" {
			m.docker(append(append(append(all, args[:i]...), image), args[i+1:]...)...)
			return
		}
	}
	m.docker(append(append(all, args...), image)...)
}

// psTask is one line of `docker service ps`.
type psTask struct{ ID, Name, Node, DesiredState, CurrentState, Error, Ports string }

// ps lists a service's tasks, the newest of each slot first.
func (m *manager) ps(service string) (list []psTask) {
	m.t.Helper()
	for line := range strings.Lines(m.docker("service", "ps", "--no-trunc", "--format", "{{json .}}", service)) {
		var p psTask
		if err := json.Unmarshal([]byte(line), &p); err != nil {
			m.t.Fatalf("%q: %v", line, err)
		}
		list = append(list, p)
	}
	return list
}

// eventually waits until a service's tasks are so.
func (m *manager) eventually(service, what string, ok func([]psTask) bool) (last []psTask) {
	m.t.Helper()
	defer func() {
		if m.t.Failed() {
			m.t.Logf("tasks of %s: %+v", service, last)
		}
	}()
	roottest.Eventually(m.t, service+": "+what, func() bool {
		last = m.ps(service)
		return ok(last)
	})
	return last
}

// in counts the tasks whose state begins so.
func in(list []psTask, state string) (n int) {
	for _, p := range list {
		if strings.HasPrefix(p.CurrentState, state) {
			n++
		}
	}
	return n
}

// running waits until n tasks of a service run, and no other.
func (m *manager) running(service string, n int) []psTask {
	m.t.Helper()
	return m.eventually(service, fmt.Sprintf("%d tasks run", n), func(l []psTask) bool { return in(l, "Running") == n })
}

// rig is a manager, a node that is to be its worker, and an image.
type rig struct {
	*manager
	t    *testing.T
	node *nodetest.Node
	ref  string // of busybox, in a registry of the test's
}

// newRig makes a rig. The lines of config go into the node's [face.swarm], or are
// sections of their own after it.
func newRig(t *testing.T, config ...string) *rig {
	t.Helper()
	return newRigWith(t, "[face.swarm]\nenabled = true\n"+strings.Join(config, "\n")+"\n")
}

// newRigWith is newRig with the node's whole configuration, which goes on in the section [engine].
func newRigWith(t *testing.T, config string) *rig {
	t.Helper()
	m := startManager(t)
	n := nodetest.Start(t, nodetest.Options{Config: config})
	built, err := nodetest.BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	r := &rig{manager: m, t: t, node: n, ref: imagetest.NewRegistry(t).Push("busybox", "latest", built)}
	t.Cleanup(func() {
		if _, err := n.CLI("swarm", "leave"); err != nil {
			t.Errorf("leave: %v", err)
		}
	})
	return r
}

// cli is a command of ours that must succeed.
func (r *rig) cli(args ...string) string {
	r.t.Helper()
	out, err := r.node.CLI(args...)
	if err != nil {
		r.t.Fatal(err)
	}
	return out
}

// join makes the node a worker and returns its id.
func (r *rig) join() string {
	r.t.Helper()
	r.cli("swarm", "join", r.address, "--token", r.token)
	var s struct{ Node string }
	if err := json.Unmarshal([]byte(r.cli("swarm", "status", "--json")), &s); err != nil || s.Node == "" {
		r.t.Fatalf("status: %+v, %v", s, err)
	}
	roottest.Eventually(r.t, "the node is ready", func() bool { return r.nodeState(s.Node) == "ready" })
	return s.Node
}

func (r *rig) nodeState(id string) string {
	r.t.Helper()
	return r.docker("node", "inspect", "--format", "{{.Status.State}}", id)
}

// container is one line of `longshore ps --json`.
type container struct {
	ID, Key, State, Owner string
	Pid                   int
}

// none waits until the node has no container any more.
func (r *rig) none() {
	r.t.Helper()
	roottest.Eventually(r.t, "nothing is left of the services", func() bool { return len(r.containers()) == 0 })
}

// containers are the node's.
func (r *rig) containers() (list []container) {
	r.t.Helper()
	if err := json.Unmarshal([]byte(r.cli("ps", "--all", "--json")), &list); err != nil {
		r.t.Fatal(err)
	}
	return list
}

// write writes a file into the manager's directory.
func (m *manager) write(name, text string) {
	m.t.Helper()
	if err := os.WriteFile(filepath.Join(m.home, name), []byte(text), 0o600); err != nil {
		m.t.Fatal(err)
	}
}

// TestWhatTheKernelLacks: only what the kernel cannot do is a reason to run nothing.
func TestWhatTheKernelLacks(t *testing.T) {
	for log, want := range map[string]string{
		"failed to start daemon: Devices cgroup isn't mounted\n":                          "Devices cgroup isn't mounted",
		"level=info msg=up\nfailed to start daemon: mount x: operation not permitted\n":   "mount x: operation not permitted",
		"failed to start daemon: error initializing graphdriver: no space left\n":         "",
		"level=warning msg=\"Your kernel does not support cgroup memory limit\"\npanic\n": "",
	} {
		if got := lacks(log); got != want {
			t.Errorf("%q: %q", log, got)
		}
	}
}

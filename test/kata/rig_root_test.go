package kata

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// agent is a running longshore-guest with a client, as a shim is one.
type agent struct {
	katav1.AgentServiceService
	health katav1.HealthService
	client *ttrpc.Client
	cmd    *exec.Cmd
	ended  chan error
	root   string // the containers' root
	state  string
	cgroup string
	socket string
}

// start runs the agent in the test's namespaces.
func start(t *testing.T, args ...string) *agent {
	t.Helper()
	return startAs(t, []string{filepath.Join(nodetest.Bin(t), "longshore-guest")}, args...)
}

// startAs runs a program that is an agent.
func startAs(t *testing.T, program []string, args ...string) *agent {
	t.Helper()
	dir := t.TempDir()
	a := &agent{state: filepath.Join(dir, "state"), ended: make(chan error, 1), root: rootfs(t), cgroup: "/" + strings.TrimPrefix(roottest.Cgroup(t), "/")}
	socket := filepath.Join(dir, "agent.sock")
	a.socket = socket
	a.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), program[0], append(append(slices.Clone(program[1:]), "--listen", "unix://"+socket, "--state", a.state, "--cgroup-root", a.cgroup, "--log-level", "debug"), args...)...)
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	a.cmd.Stderr = log
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { a.ended <- a.cmd.Wait() }()
	t.Cleanup(func() {
		_ = a.cmd.Process.Signal(unix.SIGTERM) // most often it has ended
		if err := <-a.ended; err != nil {
			t.Errorf("the agent's end: %v", err)
		}
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("the agent's log:\n%s", b)
		}
	})
	var conn net.Conn
	nodetest.Eventually(t, "the agent listens", func() bool {
		conn, err = net.Dial("unix", socket)
		return err == nil
	})
	a.client = ttrpc.NewClient(conn)
	t.Cleanup(func() { _ = a.client.Close() })
	a.AgentServiceService, a.health = katav1.NewAgentServiceClient(a.client), katav1.NewHealthClient(a.client)
	return a
}

// gone returns a channel that closes after the agent's own end.
func (a *agent) gone(t *testing.T) <-chan struct{} {
	t.Helper()
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := <-a.ended
		if err != nil {
			t.Errorf("after DestroySandbox the agent ended with %v", err)
		}
		a.ended <- nil // for the cleanup
	}()
	return done
}

// rootfs makes a directory with busybox.
func rootfs(t *testing.T) string {
	t.Helper()
	bb, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skip("busybox-static is not installed")
	}
	dir := t.TempDir()
	for _, d := range []string{"bin", "etc", "tmp", "proc", "dev", "sys"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "bin/busybox"), bb, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, applet := range nodetest.Applets {
		if err := os.Symlink("busybox", filepath.Join(dir, "bin", applet)); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// spec is a shim's spec for a container that runs a shell's script.
func (a *agent) spec(script string) *katav1.Spec {
	caps := []string{"CAP_CHOWN", "CAP_KILL", "CAP_SETUID", "CAP_SETGID"}
	return &katav1.Spec{
		Version: "1.1.0", Root: &katav1.Root{Path: a.root},
		Process: &katav1.Process{
			Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}, Cwd: "/", User: &katav1.User{},
			Capabilities: &katav1.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps}, NoNewPrivileges: true,
		},
		Mounts: []*katav1.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
			{Destination: "/dev/shm", Type: "bind", Source: "/run/kata-containers/sandbox/shm", Options: []string{"rbind"}},
			{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
		},
		Linux: &katav1.Linux{
			CgroupsPath: "/default/c", Resources: &katav1.LinuxResources{CPU: &katav1.LinuxCPU{Shares: 1024}},
			Namespaces: []*katav1.LinuxNamespace{{Type: "ipc"}, {Type: "uts"}, {Type: "mount"}}, MaskedPaths: []string{"/proc/kcore"}, ReadonlyPaths: []string{"/proc/sys"},
		},
	}
}

// sandbox makes the sandbox with the storage that every shim asks for, and others.
func (a *agent) sandbox(t *testing.T, more ...*katav1.Storage) {
	t.Helper()
	_, err := a.CreateSandbox(t.Context(), &katav1.CreateSandboxRequest{Hostname: "guest", SandboxId: "s1", Storages: append(more, &katav1.Storage{
		Driver: "ephemeral", Source: "shm", Fstype: "tmpfs", MountPoint: "/run/kata-containers/sandbox/shm", Options: []string{"noexec", "nosuid", "nodev", "mode=1777", "size=67108864"},
	})})
	if err != nil {
		t.Fatalf("CreateSandbox: %v", err)
	}
}

// run creates and starts a container.
func (a *agent) run(t *testing.T, id string, spec *katav1.Spec, storages ...*katav1.Storage) {
	t.Helper()
	if _, err := a.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: spec, Storages: storages}); err != nil {
		t.Fatalf("CreateContainer: %v", err)
	}
	if _, err := a.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatalf("StartContainer: %v", err)
	}
}

// stdout reads a process's output to its end.
func (a *agent) stdout(t *testing.T, id, exec string) string {
	t.Helper()
	return drain(t, func() ([]byte, error) {
		r, err := a.ReadStdout(t.Context(), &katav1.ReadStreamRequest{ContainerId: id, ExecId: exec, Len: 32768})
		return r.GetData(), err
	})
}

func (a *agent) stderr(t *testing.T, id, exec string) string {
	t.Helper()
	return drain(t, func() ([]byte, error) {
		r, err := a.ReadStderr(t.Context(), &katav1.ReadStreamRequest{ContainerId: id, ExecId: exec, Len: 32768})
		return r.GetData(), err
	})
}

func drain(t *testing.T, read func() ([]byte, error)) string {
	t.Helper()
	var all strings.Builder
	for {
		b, err := read()
		if err != nil {
			t.Fatalf("read: %v", err)
		}
		if len(b) == 0 {
			return all.String()
		}
		all.Write(b)
	}
}

// wait returns a process's status.
func (a *agent) wait(t *testing.T, id, exec string) int32 {
	t.Helper()
	r, err := a.WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: id, ExecId: exec})
	if err != nil {
		t.Fatalf("WaitProcess: %v", err)
	}
	return r.GetStatus()
}

func (a *agent) remove(t *testing.T, id string) {
	t.Helper()
	if _, err := a.RemoveContainer(t.Context(), &katav1.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatalf("RemoveContainer: %v", err)
	}
}

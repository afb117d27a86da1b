package guest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"

	katav1 "github.com/longshore/longshore/api/kata/v1"
)

// client calls an agent as a shim does.
type client struct {
	s    *server
	root string
}

func (c client) agent() katav1.AgentServiceService { return katav1.NewAgentServiceClient(c.s.client) }

func (c client) sandbox(ctx context.Context) error {
	_, err := c.agent().CreateSandbox(ctx, &katav1.CreateSandboxRequest{Hostname: "guest", SandboxId: "bench"})
	return err
}

// run creates and starts a container that sleeps.
func (c client) run(ctx context.Context, id string) error {
	namespaces := []*katav1.LinuxNamespace{{Type: "mount"}, {Type: "ipc"}, {Type: "uts"}, {Type: "pid"}}
	spec := &katav1.Spec{
		Version: specs.Version, Root: &katav1.Root{Path: c.root, Readonly: true}, Process: c.process("sleep", "100000"),
		Linux: &katav1.Linux{CgroupsPath: "/bench/" + id, Namespaces: namespaces},
	}
	for _, m := range mounts {
		spec.Mounts = append(spec.Mounts, &katav1.Mount{Destination: m.Destination, Type: m.Type, Source: m.Source, Options: m.Options})
	}
	if _, err := c.agent().CreateContainer(ctx, &katav1.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: spec}); err != nil {
		return fmt.Errorf("CreateContainer: %w", err)
	}
	if _, err := c.agent().StartContainer(ctx, &katav1.StartContainerRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("StartContainer: %w", err)
	}
	return nil
}

func (client) process(args ...string) *katav1.Process {
	return &katav1.Process{Args: args, Env: []string{"PATH=/bin"}, Cwd: "/", User: &katav1.User{}, NoNewPrivileges: true, Capabilities: &katav1.LinuxCapabilities{}}
}

// mounts are those of each container.
var mounts = []specs.Mount{
	{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
	{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
	{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620", "gid=5"}},
}

// cycle times a container's creation and start, and a program in it from the call to its
// status; and removes the container.
func (c client) cycle(ctx context.Context, id string) (run, exec time.Duration, err error) {
	began := time.Now()
	if err := c.run(ctx, id); err != nil {
		return 0, 0, err
	}
	run = time.Since(began)
	began = time.Now()
	if _, err := c.agent().ExecProcess(ctx, &katav1.ExecProcessRequest{ContainerId: id, ExecId: "exec", Process: c.process("true")}); err != nil {
		return 0, 0, fmt.Errorf("ExecProcess: %w", err)
	}
	r, err := c.agent().WaitProcess(ctx, &katav1.WaitProcessRequest{ContainerId: id, ExecId: "exec"})
	if err != nil || r.GetStatus() != 0 {
		return 0, 0, fmt.Errorf("WaitProcess: %w, status %d", err, r.GetStatus())
	}
	exec = time.Since(began)
	return run, exec, c.remove(ctx, id)
}

// remove kills a container and removes it.
func (c client) remove(ctx context.Context, id string) error {
	if _, err := c.agent().SignalProcess(ctx, &katav1.SignalProcessRequest{ContainerId: id, Signal: 9}); err != nil {
		return fmt.Errorf("SignalProcess: %w", err)
	}
	if _, err := c.agent().RemoveContainer(ctx, &katav1.RemoveContainerRequest{ContainerId: id}); err != nil {
		return fmt.Errorf("RemoveContainer: %w", err)
	}
	return nil
}

// runc runs the same container by runc's command line.
type runc struct {
	program, state, bundle string
	null                   *os.File
}

func newRunc(o Options, root string) (*runc, error) {
	r := &runc{program: o.Runc, state: filepath.Join(o.Dir, "runc"), bundle: filepath.Join(o.Dir, "bundle")}
	if err := os.Mkdir(r.bundle, 0o755); err != nil {
		return nil, err
	}
	spec := specs.Spec{
		Version: "1.0.2", Root: &specs.Root{Path: root, Readonly: true}, Mounts: mounts, Hostname: "guest",
		Process: &specs.Process{Args: []string{"sleep", "100000"}, Env: []string{"PATH=/bin"}, Cwd: "/", NoNewPrivileges: true, Capabilities: &specs.LinuxCapabilities{}},
		Linux: &specs.Linux{CgroupsPath: o.Cgroup + "/runc", Namespaces: []specs.LinuxNamespace{
			{Type: specs.MountNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.PIDNamespace},
		}},
	}
	b, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	if r.null, err = os.OpenFile(os.DevNull, os.O_RDWR, 0); err != nil {
		return nil, err
	}
	return r, os.WriteFile(filepath.Join(r.bundle, "config.json"), b, 0o600)
}

func (r *runc) call(ctx context.Context, args ...string) error {
	cmd := exec.CommandContext(ctx, r.program, append([]string{"--root", r.state}, args...)...)
	cmd.Stdin, cmd.Stdout = r.null, r.null // a pipe would wait for the container's end
	log, err := os.CreateTemp(filepath.Dir(r.state), "runc-log-")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(log.Name()); _ = log.Close() }()
	cmd.Stderr = log
	if err := cmd.Run(); err != nil {
		said, _ := os.ReadFile(log.Name()) // the error stands without it
		return fmt.Errorf("%s: %w: %s", args[0], err, said)
	}
	return nil
}

func (r *runc) cycle(ctx context.Context, id string) (run, exec time.Duration, err error) {
	began := time.Now()
	if err := r.call(ctx, "create", "--bundle", r.bundle, id); err != nil {
		return 0, 0, err
	}
	if err := r.call(ctx, "start", id); err != nil {
		return 0, 0, err
	}
	run = time.Since(began)
	began = time.Now()
	if err := r.call(ctx, "exec", id, "true"); err != nil {
		return 0, 0, err
	}
	exec = time.Since(began)
	return run, exec, r.call(ctx, "delete", "--force", id)
}

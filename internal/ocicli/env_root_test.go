package ocicli_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/ocicli"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/runtime/seizertest"
)

// attackEnv has this binary, run in a container as /proc/self/exe, keep a
// descriptor of itself and become a shell with it.
const attackEnv = "LONGSHORE_OCI_ATTACK"

// TestMain makes the test binary the command line under its name.
func TestMain(m *testing.M) {
	switch {
	case os.Getenv(attackEnv) != "":
		fd, err := unix.Open("/proc/self/exe", unix.O_PATH, 0)
		if err == nil {
			err = syscall.Exec("/bin/sh", []string{"sh", "-c", os.Getenv(attackEnv), "sh", strconv.Itoa(fd)}, []string{"PATH=/bin"})
		}
		_, _ = os.Stderr.WriteString(err.Error())
		os.Exit(9)
	case os.Getenv(seizertest.Env) != "":
		if err := seizertest.Main(); err != nil {
			_, _ = os.Stderr.WriteString(err.Error())
			os.Exit(1)
		}
		os.Exit(0)
	case filepath.Base(os.Args[0]) == ocicli.Name:
		ctx, stop := signalContext()
		status := ocicli.Main(ctx, ocicli.Options{Args: os.Args[1:], Version: "test"})
		stop()
		os.Exit(status)
	}
	os.Exit(m.Run())
}

// machine is where the commands of a test run.
type machine struct {
	bin    string
	bundle string
	cgroup string

	mu   sync.Mutex
	ours map[int]bool // pids of commands, which their starters wait for
}

// start starts a command. Its orphans fall to us, as they fall to conmon or a shim, and reap
// collects them.
func (m *machine) start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := cmd.Start(); err != nil {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	m.ours[cmd.Process.Pid] = true
}

// reap collects the orphans that end.
func (m *machine) reap(ended <-chan os.Signal) {
	for range ended {
		m.mu.Lock()
		all, _ := filepath.Glob("/proc/[0-9]*")
		for _, dir := range all {
			pid, err := strconv.Atoi(filepath.Base(dir))
			if err == nil && !m.ours[pid] {
				_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
			}
		}
		m.mu.Unlock()
	}
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	m := &machine{ours: map[int]bool{}, bin: "/run/bin/" + ocicli.Name, bundle: "/run/bundle", cgroup: roottest.Cgroup(t)}
	ended := make(chan os.Signal, 1)
	signal.Notify(ended, unix.SIGCHLD)
	t.Cleanup(func() { signal.Stop(ended); close(ended) })
	go m.reap(ended)
	self, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Skip("busybox-static is not installed")
	}
	for _, d := range []string{"/run/bin", m.bundle + "/rootfs/bin", m.bundle + "/rootfs/tmp"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for file, b := range map[string][]byte{m.bin: self, m.bundle + "/rootfs/bin/busybox": busybox} {
		if err := os.WriteFile(file, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, a := range []string{"sh", "cat", "echo", "sleep", "true", "false", "ls", "id", "env", "tty", "kill", "grep", "readlink", "stat", "touch"} {
		if err := os.Symlink("busybox", m.bundle+"/rootfs/bin/"+a); err != nil {
			t.Fatal(err)
		}
	}
	return m
}

// spec is an ordinary container that runs a shell script.
func (m *machine) spec(script string) *specs.Spec {
	s := ocispec.New()
	s.Version = specs.Version
	s.Root = &specs.Root{Path: "rootfs"}
	s.Hostname = "box"
	s.Process.Args = []string{"/bin/sh", "-c", script}
	s.Process.Env = []string{"PATH=/bin"}
	s.Linux.CgroupsPath = m.cgroup
	for _, kind := range []specs.LinuxNamespaceType{
		specs.PIDNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace, specs.MountNamespace, specs.CgroupNamespace,
	} {
		s.Linux.Namespaces = append(s.Linux.Namespaces, specs.LinuxNamespace{Type: kind})
	}
	return s
}

// write makes s the bundle's config.json.
func (m *machine) write(t *testing.T, s *specs.Spec) {
	t.Helper()
	b, err := json.Marshal(s)
	if err == nil {
		err = os.WriteFile(m.bundle+"/config.json", b, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// result is a command's output and status.
type result struct {
	out, err string
	status   int
}

func (m *machine) command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	args = roottest.Inheriting(append([]string{m.bin, "--root", "/run/oci"}, args...)...)
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Dir = m.bundle
	return cmd
}

// do runs a command.
func (m *machine) do(t *testing.T, args ...string) result {
	t.Helper()
	return m.run(t, m.command(t, args...))
}

// run runs a command with files as its standard streams: those of a detached container would keep a
// pipe open.
func (m *machine) run(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var r result
	for to, file := range map[*string]**os.File{&r.out: new(*os.File), &r.err: new(*os.File)} {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		*file = f
		if to == &r.out {
			cmd.Stdout = f
		} else {
			cmd.Stderr = f
		}
	}
	m.start(t, cmd)
	err := cmd.Wait()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("%v: %v", cmd.Args, err)
	}
	r.status = cmd.ProcessState.ExitCode()
	r.out, r.err = content(t, cmd.Stdout), content(t, cmd.Stderr)
	return r
}

func content(t *testing.T, w any) string {
	t.Helper()
	b, err := os.ReadFile(w.(*os.File).Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// must runs a command that succeeds and returns its output.
func (m *machine) must(t *testing.T, args ...string) string {
	t.Helper()
	r := m.do(t, args...)
	if r.status != 0 {
		t.Fatalf("%v: status %d: %s", args, r.status, r.err)
	}
	return r.out
}

// mustNot runs a command that fails, with want in its words.
func (m *machine) mustNot(t *testing.T, want string, args ...string) {
	t.Helper()
	if r := m.do(t, args...); r.status == 0 || !strings.Contains(r.err, want) {
		t.Errorf("%v: status %d, %q; want %q", args, r.status, r.err, want)
	}
}

// state returns the output of state.
func (m *machine) state(t *testing.T, id string) specs.State {
	t.Helper()
	var s specs.State
	if err := json.Unmarshal([]byte(m.must(t, "state", id)), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// until asks for the state until it is want.
func (m *machine) until(t *testing.T, id string, want specs.ContainerState) {
	t.Helper()
	roottest.Eventually(t, id+" is "+string(want), func() bool { return m.state(t, id).Status == want })
}

// gone checks that nothing is left of id.
func (m *machine) gone(t *testing.T, id string) {
	t.Helper()
	left, _ := filepath.Glob("/run/oci/" + id)
	half, _ := filepath.Glob("/run/oci/.new-*")
	v1, _ := filepath.Glob("/sys/fs/cgroup/*" + m.cgroup)
	v2, _ := filepath.Glob("/sys/fs/cgroup" + m.cgroup)
	if all := append(append(append(left, half...), v1...), v2...); len(all) > 0 {
		t.Errorf("left of %s: %v", id, all)
	}
	b, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(b, []byte(m.bundle)) {
		t.Errorf("mounts left in %s", m.bundle)
	}
}

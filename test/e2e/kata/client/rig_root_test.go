package client

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	kata "github.com/kata-containers/kata-containers/src/runtime/virtcontainers/pkg/agent/protocols/client"
	pb "github.com/kata-containers/kata-containers/src/runtime/virtcontainers/pkg/agent/protocols/grpc"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore/longshore/internal/roottest"
)

// shared is where CopyFile writes.
const shared = "/run/kata-containers/shared/containers"

// shim is Kata's client of a running agent, and remembers which calls had an answer.
type shim struct {
	t      *testing.T // the running (sub)test
	client *kata.AgentClient
	kernel *kernel         // that the agent on this host has; nil for a guest
	off    <-chan struct{} // closed when the guest is off
	execs  int             // that were started to see something
	ended  chan error
	root   string // of containers
	state  string // of the agent, a directory
	cgroup string // above those of containers
	done   map[string]codes.Code
}

// callTime is how long the shim waits for an answer.
const callTime = time.Minute

// newShim starts an agent in the test's namespaces, and connects Kata's client to it.
func newShim(t *testing.T) *shim {
	t.Helper()
	bin := os.Getenv("LONGSHORE_BIN")
	if bin == "" {
		t.Fatal("LONGSHORE_BIN is not set: make e2e-kata-client sets it")
	}
	dir := t.TempDir()
	socket := filepath.Join(dir, "agent.sock")
	s := &shim{t: t, ended: make(chan error, 1), root: files(t), state: filepath.Join(dir, "state"), cgroup: roottest.Cgroup(t), done: map[string]codes.Code{}}
	cmd, answering := asked(t, filepath.Join(bin, "longshore-guest"), "--listen", "unix://"+socket, "--state", s.state, "--cgroup-root", s.cgroup, "--log-level", "debug")
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { s.ended <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(unix.SIGTERM) // most often it has ended
		if err := <-s.ended; err != nil {
			t.Errorf("the agent's end: %v", err)
		}
		if t.Failed() {
			b, _ := os.ReadFile(log.Name())
			t.Logf("the agent's log:\n%s", b)
		}
	})
	s.kernel = answering()
	roottest.Eventually(t, "the agent listens", func() bool {
		c, err := net.Dial("unix", socket)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	})
	// The shim's scheme for the agents of its remote hypervisor.
	if s.client, err = kata.NewAgentClient(t.Context(), "remote://"+socket, 10); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.client.Close() })
	return s
}

// run makes s that of a subtest.
func (s *shim) run(name string, f func(*testing.T)) {
	outer := s.t
	defer func() { s.t = outer }()
	if !outer.Run(name, func(t *testing.T) {
		s.t = t
		f(t)
	}) {
		outer.FailNow() // later subtests build on it
	}
}

// services are the clients' interfaces: every call that Kata's runtime knows.
func services() []reflect.Type {
	return []reflect.Type{reflect.TypeFor[pb.AgentServiceService](), reflect.TypeFor[pb.HealthService]()}
}

// call makes the call of a name, as Kata's runtime does: with a time limit.
func (s *shim) call(rpc string, req any) (any, error) {
	s.t.Helper()
	m := reflect.ValueOf(s.client.AgentServiceClient).MethodByName(rpc)
	if !m.IsValid() {
		m = reflect.ValueOf(s.client.HealthClient).MethodByName(rpc)
	}
	if !m.IsValid() {
		s.t.Fatalf("there is no call %s", rpc)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), callTime)
	defer cancel()
	out := m.Call([]reflect.Value{reflect.ValueOf(ctx), reflect.ValueOf(req)})
	err, _ := out[1].Interface().(error)
	return out[0].Interface(), err
}

// ok makes a call that succeeds.
func (s *shim) ok(rpc string, req any) any {
	s.t.Helper()
	a, err := s.call(rpc, req)
	if err != nil {
		s.t.Fatalf("%s: %v", rpc, err)
	}
	s.done[rpc] = codes.OK
	return a
}

// refused makes a call that is refused, with words that say why.
func (s *shim) refused(want codes.Code, words, rpc string, req any) {
	s.t.Helper()
	_, err := s.call(rpc, req)
	if status.Code(err) != want || !strings.Contains(err.Error(), words) {
		s.t.Errorf("%s: %v; want %v with %q", rpc, err, want, words)
		return
	}
	if _, had := s.done[rpc]; !had {
		s.done[rpc] = want
	}
}

// answer is ok, for the answer's type.
func answer[A any](s *shim, rpc string, req any) A {
	s.t.Helper()
	a, ok := s.ok(rpc, req).(A)
	if !ok {
		s.t.Fatalf("%s answers another message", rpc)
	}
	return a
}

// every fails for calls that were not made. This agent refuses those of refusals, for the reasons
// there.
func (s *shim) every(refusals map[string]string) {
	for _, service := range services() {
		for i := range service.NumMethod() {
			rpc := service.Method(i).Name
			code, made := s.done[rpc]
			why := refusals[rpc]
			switch {
			case !made:
				s.t.Errorf("%s was not called", rpc)
			case code == codes.OK && why != "":
				s.t.Errorf("%s is served, and stands among the refused calls", rpc)
			case code != codes.OK && why == "":
				s.t.Errorf("%s was only refused: %v", rpc, code)
			case code != codes.OK:
				s.t.Logf("%s is refused with %v: %s", rpc, code, why)
			}
		}
	}
}

// command runs a program of the machine's.
func command(t *testing.T, args ...string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// shows fails unless a program's output has all words.
func shows(t *testing.T, words []string, args ...string) {
	t.Helper()
	out := command(t, args...)
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("%s does not show %q:\n%s", strings.Join(args, " "), w, out)
		}
	}
}

// content returns a file's content, without space around it.
func content(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b))
}

// lay covers a directory with another that has files, by their paths. Only this test's
// mount namespace has it.
func lay(t *testing.T, over string, has map[string]string) {
	t.Helper()
	if err := os.MkdirAll(over, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("tmpfs", over, "tmpfs", 0, "mode=755"); err != nil {
		t.Fatal(err)
	}
	for path, text := range has {
		at := filepath.Join(over, path)
		if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// files makes a root for containers: busybox. Its shell finds the applets by itself.
func files(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, d := range []string{"bin", "dev", "etc", "proc", "shm", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	command(t, "cp", "/bin/busybox", dir+"/bin/busybox")
	command(t, "ln", "-s", "busybox", dir+"/bin/sh")
	return dir
}

// spec is a container that runs a script.
func (s *shim) spec(script string, mounts ...*pb.Mount) *pb.Spec {
	return &pb.Spec{
		Version: "1.1.0", Root: &pb.Root{Path: s.root}, Process: process(script),
		Mounts: slices.Concat([]*pb.Mount{
			{Destination: "/proc", Type: "proc", Source: "proc"},
			{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"mode=755"}},
			{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: []string{"newinstance", "ptmxmode=0666", "mode=0620"}},
		}, mounts),
		Linux: &pb.Linux{CgroupsPath: "/kata/c", Resources: &pb.LinuxResources{}, Namespaces: []*pb.LinuxNamespace{{Type: "mount"}, {Type: "ipc"}, {Type: "uts"}}},
	}
}

func process(script string) *pb.Process {
	return &pb.Process{Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}, Cwd: "/", User: &pb.User{}}
}

// started creates and starts a container.
func (s *shim) started(id string, spec *pb.Spec, storages ...*pb.Storage) {
	s.t.Helper()
	s.ok("CreateContainer", &pb.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: spec, Storages: storages})
	s.ok("StartContainer", &pb.StartContainerRequest{ContainerId: id})
}

// output reads one of a process's outputs to its end.
func (s *shim) output(rpc, id, exec string) string {
	s.t.Helper()
	var all []byte
	for {
		b := answer[*pb.ReadStreamResponse](s, rpc, &pb.ReadStreamRequest{ContainerId: id, ExecId: exec, Len: 32768}).GetData()
		if len(b) == 0 {
			return string(all)
		}
		all = append(all, b...)
	}
}

// status waits for a process's end.
func (s *shim) status(id, exec string) int32 {
	s.t.Helper()
	return answer[*pb.WaitProcessResponse](s, "WaitProcess", &pb.WaitProcessRequest{ContainerId: id, ExecId: exec}).GetStatus()
}

func (s *shim) write(id, exec, text string) {
	s.t.Helper()
	if n := answer[*pb.WriteStreamResponse](s, "WriteStdin", &pb.WriteStreamRequest{ContainerId: id, ExecId: exec, Data: []byte(text)}).GetLen(); int(n) != len(text) {
		s.t.Errorf("WriteStdin took %d bytes of %d", n, len(text))
	}
}

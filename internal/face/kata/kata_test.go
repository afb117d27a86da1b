package kata

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/ttrpc"
	"go.uber.org/goleak"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	katav1 "github.com/longshore/longshore/api/kata/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/guest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/internal/sysctl"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fakeMachine mounts nothing, and refuses the driver "broken". It remembers the calls of its
// hardware.
type fakeMachine struct {
	mu      sync.Mutex // guards the fields below
	mounted []string
	told    []string
	fails   error // its hardware's answer
	devices map[string]guest.Found
}

func (m *fakeMachine) tell(format string, args ...any) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.told = append(m.told, fmt.Sprintf(format, args...))
	return m.fails
}

// heard returns the machine's calls since the last heard.
func (m *fakeMachine) heard() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() { m.told = nil }()
	return strings.Join(m.told, "; ")
}

func (m *fakeMachine) SetClock(s, us int64) error            { return m.tell("clock %d.%06d", s, us) }
func (m *fakeMachine) AddEntropy(b []byte) error             { return m.tell("entropy %s", b) }
func (m *fakeMachine) OnlineMemory() error                   { return m.tell("memory") }
func (m *fakeMachine) ProbeMemory(a []uint64) error          { return m.tell("probe %x", a) }
func (m *fakeMachine) AddSwap(p string) error                { return m.tell("swap %s", p) }
func (m *fakeMachine) ResizeVolume(p string, n uint64) error { return m.tell("resize %s %d", p, n) }
func (m *fakeMachine) DropStale() error                      { return m.tell("stale") }
func (m *fakeMachine) Head(p string) (string, error)         { return "head of " + p, m.tell("head %s", p) }

func (m *fakeMachine) OnlineCPUs(_ context.Context, n int) error { return m.tell("cpus %d", n) }

func (m *fakeMachine) DiskAt(_ context.Context, p string) (string, error) {
	return "/dev/vdb", m.tell("disk %s", p)
}

func (m *fakeMachine) PacketFilter(_ context.Context, ipv6 bool) ([]byte, error) {
	return []byte("rules"), m.tell("filter %t", ipv6)
}

func (m *fakeMachine) SetPacketFilter(_ context.Context, ipv6 bool, r []byte) ([]byte, error) {
	return []byte("said"), m.tell("filter %t %s", ipv6, r)
}

// Device returns the entry of devices for its id.
func (m *fakeMachine) Device(_ context.Context, d guest.Device) (guest.Found, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	found, ok := m.devices[d.ID]
	if !ok {
		return found, fmt.Errorf("there is no %s: %w", d.ID, errdefs.ErrNotFound)
	}
	return found, nil
}

func (m *fakeMachine) LoadModule(_ context.Context, n string, p []string) error {
	return m.tell("module %s %q", n, p)
}

func (m *fakeMachine) Remount(_ context.Context, s guest.Storage) error {
	return m.tell("remount %s %q", s.Target, s.Options)
}

func (m *fakeMachine) SetDNS(lines []string) (func() error, error) {
	return func() error { return m.tell("no dns") }, m.tell("dns %q", lines)
}

func (m *fakeMachine) FindHooks(dir string) (guest.Hooks, error) {
	return guest.Hooks{Prestart: []string{dir + "/prestart/a"}, Poststop: []string{dir + "/poststop/z"}}, m.tell("hooks %s", dir)
}

func (m *fakeMachine) SetSysctl(s sysctl.Setting) error {
	return m.tell("sysctl %s=%s", s.Name, s.Value)
}

func (m *fakeMachine) paused(_ context.Context, ref core.CgroupRef) {
	_ = m.tell("paused %s", ref.Path)
}

func (*fakeMachine) Drivers() []string     { return []string{"ephemeral"} }
func (*fakeMachine) DeviceTypes() []string { return []string{"blk"} }
func (*fakeMachine) First() bool           { return true }

func (m *fakeMachine) CopyFile(f guest.File) error { return m.tell("copy %s %s", f.Path, f.Data) }

func (m *fakeMachine) VolumeUsage(p string) (guest.Usage, error) {
	return guest.Usage{Bytes: 5, Inodes: 7, InodesFree: 3}, m.tell("usage %s", p)
}

func (m *fakeMachine) UpdateLink(_ context.Context, l guest.Link) error {
	if l.PCI != "" {
		return m.tell("link %s %s of device %s", l.Name, l.Addresses, l.PCI)
	}
	return m.tell("link %s %s", l.Name, l.Addresses)
}

func (m *fakeMachine) Links(context.Context) ([]guest.Link, error) {
	return []guest.Link{{Name: "eth0", Addresses: []netip.Prefix{netip.MustParsePrefix("192.0.2.2/24")}}}, m.tell("links")
}

func (m *fakeMachine) UpdateRoutes(_ context.Context, list []guest.Route) error {
	return m.tell("%d routes, by %s", len(list), list[0].Link)
}

func (m *fakeMachine) Routes(context.Context) ([]guest.Route, error) {
	return []guest.Route{{To: netip.MustParsePrefix("192.0.2.0/24"), Link: "eth0"}}, m.tell("routes")
}

func (m *fakeMachine) AddNeighbors(_ context.Context, list []guest.Neighbor) error {
	return m.tell("%d neighbours, %s", len(list), list[0].Address)
}

func (m *fakeMachine) MemoryBlock() (uint64, bool, error) { return 128 << 20, true, m.tell("block") }

// Metrics panics when the machine fails: this call has no error.
func (m *fakeMachine) Metrics() string {
	if err := m.tell("metrics"); err != nil {
		panic(err)
	}
	return "metrics"
}

func (m *fakeMachine) Mount(_ context.Context, s guest.Storage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.Driver == "broken" {
		return errors.New("broken")
	}
	m.mounted = append(m.mounted, s.Target)
	return nil
}

func (m *fakeMachine) Unmount(_ context.Context, s guest.Storage) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, t := range m.mounted {
		if t == s.Target {
			m.mounted = append(m.mounted[:i], m.mounted[i+1:]...)
			return nil
		}
	}
	return errors.New("it is not mounted")
}

// rig is the face over a node of fakes, with clients.
type rig struct {
	katav1.AgentServiceService
	health  katav1.HealthService
	node    *enginetest.Node
	face    *Face
	machine *fakeMachine
	socket  string
	served  chan error
	waits   chan int // the number of a connection with all requests so far read
}

// listener numbers its connections.
type listener struct {
	net.Listener
	waits    chan<- int
	accepted int
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	l.accepted++
	return &readConn{Conn: c, number: l.accepted, waits: l.waits}, err
}

// readConn tells when the server waits for a further request. A reader may miss it.
type readConn struct {
	net.Conn
	number int
	waits  chan<- int
	had    bool
}

func (c *readConn) Read(p []byte) (int, error) {
	if c.had {
		select {
		case c.waits <- c.number:
		default:
		}
	}
	n, err := c.Conn.Read(p)
	c.had = c.had || n > 0
	return n, err
}

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigThatAllows(t, Requests{}, nil)
}

func newRigThatAllows(t *testing.T, requests Requests, policy Policy) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("", "ls") // a socket's address is short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r := &rig{node: enginetest.New(t), machine: &fakeMachine{}, socket: filepath.Join(dir, "agent.sock"), served: make(chan error, 1), waits: make(chan int, 1000)}
	r.node.Supervisor.Program("cat", func(p *enginetest.Process) int {
		_, _ = io.Copy(p.Stdout(), p.Stdin)
		return 3
	})
	r.node.Supervisor.Program("hog", func(p *enginetest.Process) int {
		r.node.Supervisor.OOM(p.Ref, 1<<20, 1, 1)
		return 0
	})
	l, err := new(net.ListenConfig).Listen(t.Context(), "unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	f, err := New(Options{Deps: face.Deps{Engine: r.node.As(core.OwnerKata), Logger: slog.New(slog.DiscardHandler), Version: "1"}, Machine: r.machine, SetSysctl: r.machine.SetSysctl, Paused: r.machine.paused, Requests: requests, Policy: policy})
	if err != nil {
		t.Fatal(err)
	}
	r.face = f
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	go func() { r.served <- f.Serve(ctx, &listener{Listener: l, waits: r.waits}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-r.served; err != nil {
			t.Errorf("serve: %v", err)
		}
	})
	r.AgentServiceService = katav1.NewAgentServiceClient(r.dial(t))
	return r
}

func (r *rig) dial(t *testing.T, opts ...ttrpc.ClientOpts) *ttrpc.Client {
	t.Helper()
	conn, err := new(net.Dialer).DialContext(t.Context(), "unix", r.socket)
	if err != nil {
		t.Fatal(err)
	}
	c := ttrpc.NewClient(conn, opts...)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// sandbox makes the sandbox, run a container of a program, by its id.
func (r *rig) sandbox(t *testing.T) {
	t.Helper()
	if _, err := r.CreateSandbox(t.Context(), &katav1.CreateSandboxRequest{SandboxId: "s1", Hostname: "guest"}); err != nil {
		t.Fatalf("CreateSandbox: %v", err)
	}
}

func specOf(t *testing.T, args ...string) *katav1.Spec {
	t.Helper()
	return &katav1.Spec{Root: &katav1.Root{Path: t.TempDir()}, Process: &katav1.Process{Args: args, Cwd: "/", User: &katav1.User{}}, Linux: &katav1.Linux{}}
}

func (r *rig) run(t *testing.T, id string, args ...string) {
	t.Helper()
	if _, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: id, ExecId: id, OCI: specOf(t, args...)}); err != nil {
		t.Fatalf("CreateContainer: %v", err)
	}
	if _, err := r.StartContainer(t.Context(), &katav1.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatalf("StartContainer: %v", err)
	}
}

// code calls, and gives the code of the answer.
func code[A any](_ A, err error) codes.Code { return status.Code(err) }

// TestAReaderThatGoesTakesNothingWithIt: output read for a client that has gone is the next one's,
// and all others continue meanwhile.
func TestAReaderThatGoesTakesNothingWithIt(t *testing.T) {
	r := newRig(t)
	r.sandbox(t)
	r.run(t, "c1", "cat")
	r.run(t, "c2", "cat")
	other := r.dial(t)
	gone := make(chan error, 1)
	go func() {
		_, err := katav1.NewAgentServiceClient(other).ReadStdout(t.Context(), &katav1.ReadStreamRequest{ContainerId: "c1", Len: 100})
		gone <- err
	}()
	say := func(id, text string) {
		t.Helper()
		if _, err := r.WriteStdin(t.Context(), &katav1.WriteStreamRequest{ContainerId: id, Data: []byte(text)}); err != nil {
			t.Errorf("WriteStdin: %v", err)
		}
	}
	hears := func(id, want string) {
		t.Helper()
		var got strings.Builder
		for got.Len() < len(want) {
			a, err := r.ReadStdout(t.Context(), &katav1.ReadStreamRequest{ContainerId: id, Len: 3})
			if err != nil {
				t.Fatalf("ReadStdout: %v", err)
			}
			if len(a.GetData()) > 3 {
				t.Errorf("%d bytes where three were asked for", len(a.GetData()))
			}
			got.Write(a.GetData())
		}
		if got.String() != want {
			t.Errorf("read %q, want %q", got.String(), want)
		}
	}
	// An answer before the agent has seen the client's end is lost with it.
	reads := func() bool {
		r.face.outs.mu.Lock()
		defer r.face.outs.mu.Unlock()
		for ref, s := range r.face.outs.open {
			if ct, err := r.node.As(core.OwnerKata).ContainerByKey(t.Context(), "c1"); err == nil && ref.Container == ct.ID {
				return len(s.stdout.turn) > 0
			}
		}
		return false
	}
	roottest.Eventually(t, "the client to wait for output", reads)
	say("c2", "second")
	hears("c2", "second")
	if err := other.Close(); err != nil {
		t.Error(err)
	}
	if err := <-gone; err == nil {
		t.Error("the read of a closed client succeeded")
	}
	roottest.Eventually(t, "the agent to see that it has gone", func() bool { return !reads() })
	say("c1", "first")
	hears("c1", "first")
	for _, id := range []string{"c1", "c2"} {
		if _, err := r.WriteStdin(t.Context(), &katav1.WriteStreamRequest{ContainerId: id}); err != nil {
			t.Errorf("no data, which is the end: %v", err)
		}
		if a, err := r.ReadStdout(t.Context(), &katav1.ReadStreamRequest{ContainerId: id, Len: 100}); err != nil || len(a.GetData()) > 0 {
			t.Errorf("after the end of the input: %v, %v", a, err)
		}
		if a, err := r.WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: id}); err != nil || a.GetStatus() != 3 {
			t.Errorf("WaitProcess: %v, %v", a, err)
		}
	}
}

// TestExecsAreForgotten: a probe each second does not fill the machine.
func TestExecsAreForgotten(t *testing.T) {
	r := newRig(t)
	r.sandbox(t)
	r.run(t, "c1", "cat")
	for range 20 {
		exec := &katav1.ExecProcessRequest{ContainerId: "c1", ExecId: "e1", Process: &katav1.Process{Args: []string{"cat"}, Cwd: "/", User: &katav1.User{}}}
		if _, err := r.ExecProcess(t.Context(), exec); err != nil {
			t.Fatalf("ExecProcess: %v", err)
		}
		if _, err := r.CloseStdin(t.Context(), &katav1.CloseStdinRequest{ContainerId: "c1", ExecId: "e1"}); err != nil {
			t.Errorf("CloseStdin: %v", err)
		}
		for _, read := range []func(context.Context, *katav1.ReadStreamRequest) (*katav1.ReadStreamResponse, error){r.ReadStdout, r.ReadStderr} {
			if a, err := read(t.Context(), &katav1.ReadStreamRequest{ContainerId: "c1", ExecId: "e1", Len: 10}); err != nil || len(a.GetData()) > 0 {
				t.Errorf("read: %v, %v", a, err)
			}
		}
		for range 2 { // the second finds it forgotten
			if a, err := r.WaitProcess(t.Context(), &katav1.WaitProcessRequest{ContainerId: "c1", ExecId: "e1"}); err != nil || a.GetStatus() != 3 {
				t.Errorf("WaitProcess: %v, %v", a, err)
			}
		}
	}
	if ct, err := r.node.As(core.OwnerKata).ContainerByKey(t.Context(), "c1"); err != nil || len(ct.Execs) > 0 || len(ct.Exits) > 1 {
		t.Errorf("%d execs and %d exits are kept, %v", len(ct.Execs), len(ct.Exits), err)
	}
}

// TestTheSandboxsEndIsTheAgents: containers and storages go, a waiting GetOOMEvent is
// answered, and Serve returns.
func TestTheSandboxsEndIsTheAgents(t *testing.T) {
	r := newRig(t)
	if _, err := r.CreateSandbox(t.Context(), &katav1.CreateSandboxRequest{Storages: []*katav1.Storage{{Driver: "ephemeral", MountPoint: "/a"}}}); err != nil {
		t.Fatalf("CreateSandbox: %v", err)
	}
	r.run(t, "c1", "cat")
	other := katav1.NewAgentServiceClient(r.dial(t))
	oom := make(chan error, 1)
	go func() {
		_, err := other.GetOOMEvent(t.Context(), &katav1.GetOOMEventRequest{})
		oom <- err
	}()
	for number := range r.waits {
		if number == 2 { // the server has the question
			break
		}
	}
	if _, err := r.DestroySandbox(t.Context(), &katav1.DestroySandboxRequest{}); err != nil {
		t.Errorf("DestroySandbox: %v", err)
	}
	if err := <-oom; status.Code(err) == codes.OK || status.Code(err) == codes.Unknown {
		t.Errorf("GetOOMEvent was not answered: %v", err)
	}
	err := <-r.served
	r.served <- err // for the cleanup
	if len(r.machine.mounted) > 0 {
		t.Errorf("left mounted: %v", r.machine.mounted)
	}
	if list, err := r.node.As(core.OwnerKata).Sandboxes(t.Context(), core.Filter{}); err != nil || len(list) > 0 {
		t.Errorf("left: %v, %v", list, err)
	}
}

// TestLayersAreOneStorage: the disks of a root that is an overlay of them are mounted together, and the container's other
// storages by themselves.
func TestLayersAreOneStorage(t *testing.T) {
	r := newRig(t)
	r.sandbox(t)
	const root = "/run/kata-containers/c1/rootfs"
	layer := func(kind string, options ...string) *katav1.Storage {
		return &katav1.Storage{Driver: "blk", Source: "02/00", Fstype: kind, MountPoint: root, Options: append(options, "X-kata.multi-layer=true")}
	}
	list := []*katav1.Storage{layer("ext4", "X-kata.overlay-upper"), layer("erofs", "X-kata.overlay-lower"), {Driver: "ephemeral", MountPoint: "/run/e"}, layer("erofs", "X-kata.overlay-lower")}
	if _, err := r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c1", ExecId: "c1", OCI: specOf(t, "cat"), Storages: list}); err != nil {
		t.Fatal(err)
	}
	mounted := func() string {
		r.machine.mu.Lock()
		defer r.machine.mu.Unlock()
		return strings.Join(r.machine.mounted, " ")
	}
	if got := mounted(); got != root+" /run/e" {
		t.Errorf("mounted: %s", got)
	}
	if _, err := r.RemoveContainer(t.Context(), &katav1.RemoveContainerRequest{ContainerId: "c1"}); err != nil || mounted() != "" {
		t.Errorf("%v; still mounted: %s", err, mounted())
	}
	list = []*katav1.Storage{layer("erofs", "X-kata.overlay-lower", "X-kata.dmverity-enabled=true")}
	if c := code(r.CreateContainer(t.Context(), &katav1.CreateContainerRequest{ContainerId: "c2", ExecId: "c2", OCI: specOf(t, "cat"), Storages: list})); c != codes.Internal {
		t.Errorf("dm-verity: %s", c)
	}
}

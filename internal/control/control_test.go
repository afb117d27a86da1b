package control_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// specWriter is the fake runtime, and writes the bundle's spec as a real one
// does.
type specWriter struct{ *enginetest.Runtime }

func (w specWriter) Create(ctx context.Context, c core.RuntimeCreate) (int, error) {
	raw, err := json.Marshal(c.Spec)
	if err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join(c.Bundle, "config.json"), raw, 0o600); err != nil {
		return 0, err
	}
	return w.Runtime.Create(ctx, c)
}

// rig is a control server over a fake node, and clients of it.
type rig struct {
	*enginetest.Node
	containers longshorev1.ContainersClient
	images     longshorev1.ImagesClient
	volumes    longshorev1.VolumesClient
	node       longshorev1.NodeClient
	read       longshorev1.ContainersClient
	readNode   longshorev1.NodeClient
	logs       string // the log directory
	agentLog   *lockedBuffer
	sockets    string
	stop       func()
}

type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	n := enginetest.Fakes(t)
	n.Options.Runtimes = []core.Runtime{specWriter{n.Runtime}}
	n.Start()
	// A socket's address is short, a test's directory need not be.
	sockets, err := os.MkdirTemp("", "ls")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	r := &rig{Node: n, logs: filepath.Join(t.TempDir(), "logs"), agentLog: &lockedBuffer{}, sockets: sockets}
	n.AddImage("busybox", ocispec.ImageConfig{Cmd: []string{"sh"}, Env: []string{"PATH=/bin", "FROM=image"}}, map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nweb:x:33:33::/srv:/bin/sh\n", "etc/group": "root:x:0:\nweb:x:33:\nextra:x:44:web\n",
	})
	n.Supervisor.Program("echo", func(p *enginetest.Process) int {
		fmt.Fprintln(p.Stdout(), strings.Join(p.Args[1:], " "))
		return 0
	})
	n.Supervisor.Program("cat", func(p *enginetest.Process) int {
		_, _ = io.Copy(p.Stdout(), p.Stdin)
		return 0
	})
	n.Supervisor.Program("both", func(p *enginetest.Process) int {
		fmt.Fprintln(p.Stdout(), "out")
		fmt.Fprintln(p.Stderr(), "err")
		return 7
	})
	n.Supervisor.Program("sh", func(p *enginetest.Process) int {
		<-p.Killed
		return 0
	})
	r.serve(t)
	return r
}

func (r *rig) serve(t *testing.T) {
	t.Helper()
	srv, err := control.New(control.Options{
		Engine: r.Engine, LogDir: r.logs, Version: "1.2.3", Logger: slog.New(slog.NewTextHandler(r.agentLog, nil)),
		Doctor: func(context.Context) []control.Finding {
			return []control.Finding{{Name: "kernel", Status: control.FindingOK, Detail: "fine"}}
		},
		Check: func(ctx context.Context) ([]control.Finding, error) {
			list, err := r.Engine.Check(ctx)
			var out []control.Finding
			for _, v := range list {
				out = append(out, control.Finding{Name: v.Kind, Status: control.FindingFail, Detail: v.Detail})
			}
			return out, err
		},
		Config: func() (string, error) { return "[agent]\n", nil },
		HTTP:   http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "metrics") }),
	})
	if err != nil {
		t.Fatal(err)
	}
	read := filepath.Join(r.sockets, "read.sock")
	ls, err := control.Listen(t.Context(), r.sockets, control.Config{ReadSocket: read, ReadGroup: "0"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, ls) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Errorf("serve: %v", err)
			}
		})
	}
	t.Cleanup(r.stop)
	full, reading := dial(t, filepath.Join(r.sockets, control.SocketName)), dial(t, read)
	r.containers, r.images = longshorev1.NewContainersClient(full), longshorev1.NewImagesClient(full)
	r.volumes, r.node = longshorev1.NewVolumesClient(full), longshorev1.NewNodeClient(full)
	r.read, r.readNode = longshorev1.NewContainersClient(reading), longshorev1.NewNodeClient(reading)
}

func dial(t *testing.T, path string) *grpc.ClientConn {
	t.Helper()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// create makes a container and returns what the server named it.
func (r *rig) create(t *testing.T, req *longshorev1.CreateRequest) *longshorev1.Created {
	t.Helper()
	created, err := r.tryCreate(t, req)
	if err != nil {
		t.Fatal(err)
	}
	return created
}

func (r *rig) tryCreate(t *testing.T, req *longshorev1.CreateRequest) (*longshorev1.Created, error) {
	t.Helper()
	stream, err := r.containers.Create(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	for {
		m, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		if c := m.GetCreated(); c != nil {
			return c, nil
		}
	}
}

// foreign is a running container of another owner.
func (r *rig) foreign(t *testing.T, image string) core.Container {
	t.Helper()
	img, err := r.As(core.OwnerCRI).Image(t.Context(), image)
	if err != nil {
		t.Fatal(err)
	}
	return r.Running(r.Pod(core.OwnerCRI, "ns/pod/uid/0"), "ns/pod/uid/0/web", img, "sh")
}

func wantCode(t *testing.T, err error, code codes.Code, text string) {
	t.Helper()
	if status.Code(err) != code || (err != nil && !strings.Contains(err.Error(), text)) {
		t.Errorf("got %v, want %s with %q", err, code, text)
	}
}

// waitFor follows the event log until match is satisfied.
func (r *rig) waitFor(t *testing.T, match func(core.Event) bool) core.Event {
	t.Helper()
	for e, err := range r.Engine.All().Events(t.Context(), 0, core.Filter{}) {
		if err != nil {
			t.Fatal(err)
		}
		if match(e) {
			return e
		}
	}
	t.Fatal("the event never came")
	return core.Event{}
}

func of(kind core.EventKind, id string) func(core.Event) bool {
	return func(e core.Event) bool {
		return e.Kind == kind && (string(e.Container) == id || string(e.Sandbox) == id)
	}
}

func TestCreateBuildsWhatWasAskedFor(t *testing.T) {
	r := newRig(t)
	host := t.TempDir()
	created := r.create(t, &longshorev1.CreateRequest{
		Name: "web", Image: "busybox", Command: []string{"sh", "-c", "true"}, Env: []string{"FROM=request", "X=1"}, User: "web", Workdir: "/srv",
		Mounts: []*longshorev1.Mount{{Source: host, Target: "/data", ReadOnly: true}, {Source: "vol", Target: "/vol"}},
		Ports:  []*longshorev1.Port{{Protocol: "tcp", Host: 8080, Container: 80}}, MemoryBytes: 64 << 20, Cpus: 1.5, Pids: 10,
		CapAdd: []string{"net_admin"}, CapDrop: []string{"CAP_CHOWN"}, Labels: map[string]string{"a": "b"},
	})
	spec := r.Runtime.Spec(core.ID(created.GetId()))
	p := spec.Process
	if got := strings.Join(p.Args, " "); got != "sh -c true" {
		t.Errorf("args %q", got)
	}
	env := strings.Join(p.Env, " ")
	for _, want := range []string{"FROM=request", "X=1", "HOME=/srv", "HOSTNAME=web", "PATH=/bin"} {
		if !strings.Contains(env, want) {
			t.Errorf("environment %q lacks %s", env, want)
		}
	}
	if p.User.UID != 33 || p.User.GID != 33 || len(p.User.AdditionalGids) == 0 || p.Cwd != "/srv" || !p.NoNewPrivileges {
		t.Errorf("process %+v", p)
	}
	if p.OOMScoreAdj == nil || *p.OOMScoreAdj != 0 {
		t.Error("the container inherits the agent's OOM score")
	}
	caps := strings.Join(p.Capabilities.Bounding, " ")
	if !strings.Contains(caps, "CAP_NET_ADMIN") || strings.Contains(caps, "CAP_CHOWN") || len(p.Capabilities.Effective) > 0 {
		t.Errorf("capabilities %+v", p.Capabilities)
	}
	res := spec.Linux.Resources
	if *res.Memory.Limit != 64<<20 || *res.CPU.Quota != 150_000 || *res.Pids.Limit != 10 {
		t.Errorf("limits %+v", res)
	}
	if spec.Linux.Seccomp == nil || len(spec.Linux.MaskedPaths) == 0 {
		t.Error("the container is not confined")
	}
	mounts := map[string][]string{}
	for _, m := range spec.Mounts {
		mounts[m.Destination] = append([]string{m.Source}, m.Options...)
	}
	if got := strings.Join(mounts["/data"], ","); !strings.HasPrefix(got, host+",") || !strings.Contains(got, "ro") {
		t.Errorf("/data is %s", got)
	}
	if len(mounts["/vol"]) == 0 {
		t.Error("the volume is not mounted")
	}
	sb, err := r.As(core.OwnerCLI).SandboxByKey(t.Context(), "web")
	if err != nil || len(sb.Config.Network.Ports) != 1 || sb.Labels["a"] != "b" {
		t.Errorf("sandbox %+v, %v", sb, err)
	}
	_, err = r.tryCreate(t, &longshorev1.CreateRequest{Name: "web", Image: "busybox"})
	wantCode(t, err, codes.AlreadyExists, `the name "web" is in use`)
	r.Clean()
}

func TestCreatePullsWhatIsMissingAndTakesBackWhatFails(t *testing.T) {
	r := newRig(t)
	r.Images.Offer("nginx", ocispec.ImageConfig{Cmd: []string{"sh"}}, nil)
	c := r.create(t, &longshorev1.CreateRequest{Image: "nginx"})
	if !strings.HasPrefix(c.GetName(), "nginx-") {
		t.Errorf("made-up name %q", c.GetName())
	}
	_, err := r.tryCreate(t, &longshorev1.CreateRequest{Name: "x", Image: "nosuch"})
	wantCode(t, err, codes.NotFound, "")
	_, err = r.tryCreate(t, &longshorev1.CreateRequest{Name: "x", Image: "redis", Pull: "never"})
	wantCode(t, err, codes.NotFound, "")
	_, err = r.tryCreate(t, &longshorev1.CreateRequest{Name: "x", Image: "busybox", User: "nobody-here"})
	wantCode(t, err, codes.InvalidArgument, "nobody-here")
	if _, err := r.As(core.OwnerCLI).SandboxByKey(t.Context(), "x"); err == nil {
		t.Error("a sandbox was left behind")
	}
	r.Clean()
}

func TestCreateRefusesNonsense(t *testing.T) {
	r := newRig(t)
	for name, req := range map[string]*longshorev1.CreateRequest{
		"name":      {Name: "../x", Image: "busybox"},
		"no image":  {},
		"pull":      {Image: "busybox", Pull: "often"},
		"cpus":      {Image: "busybox", Cpus: -1},
		"env":       {Image: "busybox", Env: []string{"=x"}},
		"signal":    {Image: "busybox", StopSignal: "NOPE"},
		"target":    {Image: "busybox", Mounts: []*longshorev1.Mount{{Source: "/", Target: "data"}}},
		"root":      {Image: "busybox", Mounts: []*longshorev1.Mount{{Source: "/", Target: "/."}}},
		"source":    {Image: "busybox", Mounts: []*longshorev1.Mount{{Source: "/no/such/dir", Target: "/x"}}},
		"volume":    {Image: "busybox", Mounts: []*longshorev1.Mount{{Source: "../x", Target: "/x"}}},
		"twice":     {Image: "busybox", Mounts: []*longshorev1.Mount{{Source: "a", Target: "/x"}, {Source: "b", Target: "/x/"}}},
		"port":      {Image: "busybox", Ports: []*longshorev1.Port{{Host: 70000, Container: 1}}},
		"protocol":  {Image: "busybox", Ports: []*longshorev1.Port{{Protocol: "icmp", Host: 1, Container: 1}}},
		"host ip":   {Image: "busybox", Ports: []*longshorev1.Port{{HostIp: "x", Host: 1, Container: 1}}},
		"network":   {Image: "busybox", Network: "mine"},
		"host port": {Image: "busybox", Network: "host", Ports: []*longshorev1.Port{{Host: 1, Container: 1}}},
		"cap":       {Image: "busybox", CapAdd: []string{"FLY"}},
		"workdir":   {Image: "busybox", Workdir: "x"},
	} {
		if _, err := r.tryCreate(t, req); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left, err := r.As(core.OwnerCLI).Sandboxes(t.Context(), core.Filter{}); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestProgramsThatAreNotThereSayWhatAShellWould(t *testing.T) {
	r := newRig(t)
	_, err := r.tryCreate(t, &longshorev1.CreateRequest{Name: "x", Image: "busybox", Command: []string{"missing"}, Start: true, AutoRemove: true})
	if got := exitStatus(err); got != 127 {
		t.Errorf("exit status %d of %v", got, err)
	}
	if _, err := r.As(core.OwnerCLI).ContainerByKey(t.Context(), "x"); err == nil {
		t.Error("--rm left the container that did not start")
	}
	r.Clean()
}

func exitStatus(err error) int32 {
	for _, d := range status.Convert(err).Details() {
		if f, ok := d.(*longshorev1.StartFailure); ok {
			return f.GetExitStatus()
		}
	}
	return -1
}

func TestOthersObjectsAreShownAndChangedOnlyByForce(t *testing.T) {
	r := newRig(t)
	c := r.foreign(t, "busybox")
	list, err := r.containers.ListContainers(t.Context(), &longshorev1.ListContainersRequest{})
	if err != nil || len(list.GetContainers()) != 1 || list.GetContainers()[0].GetOwner() != "cri" || list.GetContainers()[0].GetImage() != "docker.io/library/busybox:latest" {
		t.Fatalf("list %v, %v", list, err)
	}
	id := string(c.ID)
	calls := map[string]func(force bool) error{
		"stop": func(f bool) error {
			_, err := r.containers.Stop(t.Context(), &longshorev1.StopRequest{Name: id, Force: f})
			return err
		},
		"kill": func(f bool) error {
			_, err := r.containers.Kill(t.Context(), &longshorev1.KillRequest{Name: id[:10], Force: f})
			return err
		},
		"pause": func(f bool) error {
			_, err := r.containers.Pause(t.Context(), &longshorev1.PauseRequest{Name: "ns/pod/uid/0/web", Force: f})
			return err
		},
		"rm": func(f bool) error {
			_, err := r.containers.Remove(t.Context(), &longshorev1.RemoveRequest{Name: id, Force: f})
			return err
		},
		"exec": func(f bool) error {
			_, _, err := r.exec(t, &longshorev1.ExecStart{Name: id, Command: []string{"echo", "hi"}, Force: f})
			return err
		},
	}
	for name, call := range calls {
		if err := call(false); status.Code(err) != codes.PermissionDenied || !strings.Contains(err.Error(), "--force") {
			t.Errorf("%s without force: %v", name, err)
		}
	}
	if got, err := r.As(core.OwnerCRI).Container(t.Context(), c.ID); err != nil || got.State != core.ContainerRunning {
		t.Fatalf("the container was changed: %v %v", got.State, err)
	}
	if err := calls["stop"](true); err != nil {
		t.Fatal(err)
	}
	e := r.waitFor(t, func(e core.Event) bool { return e.Kind == core.EventForced })
	if e.Owner != core.OwnerCRI || !strings.Contains(e.Note, "stop") || !strings.Contains(e.Note, fmt.Sprintf("uid %d", os.Getuid())) {
		t.Errorf("the event log says %+v", e)
	}
	a, err := r.As(core.OwnerCRI).Wait(t.Context(), core.Ref{Container: c.ID})
	if err != nil || a.Asked == nil || a.Asked.Owner != core.OwnerCLI || a.Asked.Call != "longshore stop" || !strings.Contains(a.Asked.User, "uid") {
		t.Errorf("the autopsy says %+v, %v", a.Asked, err)
	}
	why, err := r.containers.Why(t.Context(), &longshorev1.WhyRequest{Name: id})
	if err != nil || why.GetContainer().GetAutopsy().GetAsked().GetCall() != "longshore stop" {
		t.Errorf("why: %v, %v", why, err)
	}
	if err := calls["rm"](true); err != nil {
		t.Error(err)
	}
}

func TestNamesMayBeShortButNotAmbiguous(t *testing.T) {
	r := newRig(t)
	a := r.create(t, &longshorev1.CreateRequest{Name: "a", Image: "busybox"})
	r.create(t, &longshorev1.CreateRequest{Name: "b", Image: "busybox"})
	for _, name := range []string{"a", a.GetId(), a.GetId()[:12]} {
		resp, err := r.containers.Why(t.Context(), &longshorev1.WhyRequest{Name: name})
		if err != nil || resp.GetContainer().GetId() != a.GetId() {
			t.Errorf("%s: %v", name, err)
		}
	}
	_, err := r.containers.Why(t.Context(), &longshorev1.WhyRequest{Name: "nosuch"})
	wantCode(t, err, codes.NotFound, "nosuch")
	_, err = r.containers.Why(t.Context(), &longshorev1.WhyRequest{})
	wantCode(t, err, codes.InvalidArgument, "name")
}

// exec runs a command to its end and returns its output and status.
func (r *rig) exec(t *testing.T, start *longshorev1.ExecStart, input ...*longshorev1.Input) (string, int32, error) {
	t.Helper()
	stream, err := r.containers.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&longshorev1.ExecRequest{Step: &longshorev1.ExecRequest_Start{Start: start}}); err != nil {
		t.Fatal(err)
	}
	for _, in := range input {
		if err := stream.Send(&longshorev1.ExecRequest{Step: &longshorev1.ExecRequest_Input{Input: in}}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	return collect(stream.Recv)
}

func collect(recv func() (*longshorev1.Output, error)) (string, int32, error) {
	var out strings.Builder
	for first := true; ; first = false {
		m, err := recv()
		if err != nil {
			return out.String(), -1, err
		}
		if first && m.GetStarted() == nil {
			return "", -1, fmt.Errorf("the first message is %v", m)
		}
		out.Write(m.GetStdout())
		out.Write(m.GetStderr())
		if e := m.GetExited(); e != nil {
			return out.String(), e.GetStatus(), nil
		}
	}
}

func stdin(s string) *longshorev1.Input {
	return &longshorev1.Input{Kind: &longshorev1.Input_Stdin{Stdin: []byte(s)}}
}

func stdinClosed() *longshorev1.Input {
	return &longshorev1.Input{Kind: &longshorev1.Input_StdinClosed{StdinClosed: true}}
}

func TestExecStreamsInputOutputAndStatus(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true, Env: []string{"KEEP=1"}})
	out, code, err := r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"cat"}, Stdin: true}, stdin("one "), stdin("two"), stdinClosed())
	if out != "one two" || code != 0 || err != nil {
		t.Errorf("cat: %q, %d, %v", out, code, err)
	}
	out, code, err = r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"both"}})
	if !strings.Contains(out, "out\n") || !strings.Contains(out, "err\n") || code != 7 || err != nil {
		t.Errorf("both: %q, %d, %v", out, code, err)
	}
	out, code, err = r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"sh"}}, &longshorev1.Input{Kind: &longshorev1.Input_Signal{Signal: "TERM"}})
	if code != 128+15 || err != nil {
		t.Errorf("sh: %q, %d, %v", out, code, err)
	}
	_, _, err = r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"missing"}})
	if exitStatus(err) != 127 {
		t.Errorf("missing: %v", err)
	}
	_, _, err = r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"echo"}, User: "nobody-here"})
	wantCode(t, err, codes.InvalidArgument, "nobody-here")
	ct, err := r.As(core.OwnerCLI).Container(t.Context(), core.ID(c.GetId()))
	if err != nil || len(ct.Execs) > 0 {
		t.Errorf("ended execs are kept: %v, %v", ct.Execs, err)
	}
	r.Clean()
}

func TestExecTakesTheContainersOwnProcessAsAModel(t *testing.T) {
	r := newRig(t)
	r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true, Env: []string{"KEEP=1", "CHANGE=old"}, Workdir: "/srv"})
	var env []string
	r.Supervisor.Program("env", func(p *enginetest.Process) int {
		env = p.Env
		return 0
	})
	if _, code, err := r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"env"}, Env: []string{"CHANGE=new"}, User: "web"}); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	got := strings.Join(env, " ")
	for _, want := range []string{"KEEP=1", "CHANGE=new", "HOME=/srv", "PATH=/bin"} {
		if !strings.Contains(got, want) {
			t.Errorf("environment %q lacks %s", got, want)
		}
	}
}

func TestExecEndsWithItsClient(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.containers.Exec(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&longshorev1.ExecRequest{Step: &longshorev1.ExecRequest_Start{Start: &longshorev1.ExecStart{Name: "c", Command: []string{"sh"}}}}); err != nil {
		t.Fatal(err)
	}
	m, err := stream.Recv()
	if err != nil || m.GetStarted().GetProcess() == "" {
		t.Fatal(m, err)
	}
	cancel()
	e := r.waitFor(t, func(e core.Event) bool {
		return e.Kind == core.EventProcessExited && string(e.Process) == m.GetStarted().GetProcess()
	})
	if e.Autopsy.Exit.Signal != 9 || string(e.Container) != c.GetId() {
		t.Errorf("it ended by %+v", e.Autopsy)
	}
}

func TestDetachedExecOutlivesItsClient(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true})
	stream, err := r.containers.Exec(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&longshorev1.ExecRequest{Step: &longshorev1.ExecRequest_Start{Start: &longshorev1.ExecStart{Name: "c", Command: []string{"sh"}, Detach: true}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("the stream goes on: %v", err)
	}
	ct, err := r.As(core.OwnerCLI).Container(t.Context(), core.ID(c.GetId()))
	if err != nil || len(ct.Execs) != 1 || ct.Execs[0].Autopsy != nil {
		t.Errorf("execs %+v, %v", ct.Execs, err)
	}
}

func TestAttachStartsAndMissesNothing(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Command: []string{"both"}, AutoRemove: true})
	out, code, err := r.attach(t, &longshorev1.AttachStart{Name: "c", Start: true})
	if !strings.Contains(out, "out\n") || !strings.Contains(out, "err\n") || code != 7 || err != nil {
		t.Errorf("%q, %d, %v", out, code, err)
	}
	r.waitFor(t, of(core.EventSandboxRemoved, c.GetSandbox()))
	r.stop() // which waits for what is under way
	if _, err := os.Stat(filepath.Join(r.logs, c.GetSandbox()+".log")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the log of a removed container: %v", err)
	}
	r.Clean()
}

func (r *rig) attach(t *testing.T, start *longshorev1.AttachStart, input ...*longshorev1.Input) (string, int32, error) {
	t.Helper()
	stream, err := r.containers.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Start{Start: start}}); err != nil {
		t.Fatal(err)
	}
	for _, in := range input {
		if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Input{Input: in}}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
	}
	return collect(stream.Recv)
}

func TestHeldOutputIsTakenWhenItsClientHasLeft(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", AutoRemove: true, Hold: true})
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := r.containers.Attach(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Start{Start: &longshorev1.AttachStart{Name: "c", Start: true}}}); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetStarted() == nil {
		t.Fatal(m, err)
	}
	ref := core.Ref{Container: core.ID(c.GetId())}
	if err := r.Supervisor.Process(ref).Write(1, []byte("held")); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || string(m.GetStdout()) != "held" {
		t.Fatal(m, err)
	}
	logs, err := r.containers.Logs(t.Context(), &longshorev1.LogsRequest{Name: "c"})
	if err == nil {
		_, err = logs.Recv()
	}
	wantCode(t, err, codes.FailedPrecondition, "kept nowhere")
	cancel()
	// It goes on, and ends and is removed as if nothing had been.
	r.Supervisor.Exit(ref, 0)
	r.waitFor(t, of(core.EventSandboxRemoved, c.GetSandbox()))
}

func TestForegroundOutputIsExact(t *testing.T) {
	r := newRig(t)
	var want strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&want, "line %d\n", i)
	}
	r.Supervisor.Program("many", func(p *enginetest.Process) int {
		for line := range strings.Lines(want.String()) {
			_, _ = io.WriteString(p.Stdout(), line)
		}
		return 0
	})
	for _, hold := range []bool{false, true} {
		r.create(t, &longshorev1.CreateRequest{Name: fmt.Sprint("c", hold), Image: "busybox", Command: []string{"many"}, Hold: hold})
		out, code, err := r.attach(t, &longshorev1.AttachStart{Name: fmt.Sprint("c", hold), Start: true})
		if out != want.String() || code != 0 || err != nil {
			t.Errorf("hold %v: %d bytes of %d, %d, %v", hold, len(out), want.Len(), code, err)
		}
	}
}

func TestAttachPassesInputAndSize(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Command: []string{"cat"}, Stdin: true, StdinOnce: true})
	out, code, err := r.attach(t, &longshorev1.AttachStart{Name: "c", Start: true, Stdin: true}, stdin("hello"), stdinClosed())
	if out != "hello" || code != 0 || err != nil {
		t.Errorf("%q, %d, %v", out, code, err)
	}
	// Not its own to remove: it stays, and its namespaces are given back.
	r.waitFor(t, of(core.EventSandboxStopped, c.GetSandbox()))
	if _, err := r.containers.Why(t.Context(), &longshorev1.WhyRequest{Name: "c"}); err != nil {
		t.Error(err)
	}
	_, _, err = r.attach(t, &longshorev1.AttachStart{Name: "c"})
	wantCode(t, err, codes.FailedPrecondition, "has exited")
}

func TestWatchingOthersIsReadingAndTypingIsNot(t *testing.T) {
	r := newRig(t)
	c := r.foreign(t, "busybox")
	_, _, err := r.attach(t, &longshorev1.AttachStart{Name: string(c.ID), Stdin: true})
	wantCode(t, err, codes.PermissionDenied, "--force")
	stream, err := r.containers.Attach(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Start{Start: &longshorev1.AttachStart{Name: string(c.ID)}}}); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || m.GetStarted() == nil {
		t.Fatal(m, err)
	}
	// A signal by somebody who only watches is not passed.
	kill := &longshorev1.Input{Kind: &longshorev1.Input_Signal{Signal: "KILL"}}
	if err := stream.Send(&longshorev1.AttachRequest{Step: &longshorev1.AttachRequest_Input{Input: kill}}); err != nil {
		t.Fatal(err)
	}
	if err := r.Supervisor.Process(core.Ref{Container: c.ID}).Write(1, []byte("seen")); err != nil {
		t.Fatal(err)
	}
	if m, err := stream.Recv(); err != nil || string(m.GetStdout()) != "seen" {
		t.Errorf("got %v, %v", m, err)
	}
	if got := r.Supervisor.Signals(core.Ref{Container: c.ID}); len(got) > 0 {
		t.Errorf("signals %v were passed", got)
	}
}

func TestRemoveTakesSandboxAndLogAlong(t *testing.T) {
	r := newRig(t)
	c := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true})
	_, err := r.containers.Remove(t.Context(), &longshorev1.RemoveRequest{Name: "c"})
	wantCode(t, err, codes.FailedPrecondition, "--force")
	if _, err := r.containers.Remove(t.Context(), &longshorev1.RemoveRequest{Name: "c", Force: true}); err != nil {
		t.Fatal(err)
	}
	if _, err := r.As(core.OwnerCLI).Sandbox(t.Context(), core.ID(c.GetSandbox())); err == nil {
		t.Error("the sandbox was left")
	}
	_, err = r.containers.Remove(t.Context(), &longshorev1.RemoveRequest{Name: "c"})
	wantCode(t, err, codes.NotFound, "")
	if left := r.Left(); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}

func TestARestartFinishesWhatWasLeft(t *testing.T) {
	r := newRig(t)
	gone := r.create(t, &longshorev1.CreateRequest{Name: "gone", Image: "busybox", Start: true, AutoRemove: true})
	never := r.create(t, &longshorev1.CreateRequest{Name: "never", Image: "busybox", AutoRemove: true})
	stays := r.create(t, &longshorev1.CreateRequest{Name: "stays", Image: "busybox", Start: true})
	half, err := r.As(core.OwnerCLI).CreateSandbox(t.Context(), core.SandboxConfig{Key: "half"})
	if err != nil {
		t.Fatal(err)
	}
	orphan := filepath.Join(r.logs, strings.Repeat("0", 64)+".log")
	if err := os.WriteFile(orphan, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.stop()
	r.Supervisor.Exit(core.Ref{Container: core.ID(gone.GetId())}, 3)
	r.waitFor(t, of(core.EventContainerExited, gone.GetId()))
	r.serve(t)
	for _, id := range []string{gone.GetSandbox(), never.GetSandbox(), string(half.ID)} {
		r.waitFor(t, of(core.EventSandboxRemoved, id))
	}
	resp, err := r.containers.ListContainers(t.Context(), &longshorev1.ListContainersRequest{All: true})
	if err != nil || len(resp.GetContainers()) != 1 || resp.GetContainers()[0].GetId() != stays.GetId() {
		t.Errorf("left %v, %v", resp, err)
	}
	if _, err := os.Stat(orphan); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a log without a container: %v", err)
	}
}

// planted is a value that must show nowhere.
const planted = "s3cr3t-value"

func TestSecretsAreHidden(t *testing.T) {
	r := newRig(t)
	created := r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true, Env: []string{"PASSWORD=" + planted}})
	if _, _, err := r.exec(t, &longshorev1.ExecStart{Name: "c", Command: []string{"both"}, Env: []string{"TOKEN=" + planted}}); err != nil {
		t.Fatal(err)
	}
	// Another face's private record may hold such values, too.
	img, err := r.As(core.OwnerCRI).Image(t.Context(), "busybox")
	if err != nil {
		t.Fatal(err)
	}
	sb := r.Pod(core.OwnerCRI, "pod")
	if _, err := r.As(core.OwnerCRI).CreateContainer(t.Context(), core.ContainerConfig{
		Key: "other", Sandbox: sb.ID, Root: core.Root{Image: img.ID}, Spec: enginetest.Args("sh"), Data: []byte(`"` + planted + `"`),
	}); err != nil {
		t.Fatal(err)
	}
	shown := map[string]string{}
	inspect := func(from longshorev1.ContainersClient, req *longshorev1.InspectRequest) string {
		resp, err := from.Inspect(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		return string(resp.GetJson())
	}
	shown["inspect"] = inspect(r.containers, &longshorev1.InspectRequest{Name: "c"})
	shown["inspect other"] = inspect(r.containers, &longshorev1.InspectRequest{Name: "other"})
	shown["inspect --show-env on the read socket"] = inspect(r.read, &longshorev1.InspectRequest{Name: "c", ShowEnv: true})
	if !strings.Contains(shown["inspect"], "PASSWORD=<hidden>") {
		t.Errorf("inspect lacks the variable's name:\n%s", shown["inspect"])
	}
	if got := inspect(r.containers, &longshorev1.InspectRequest{Name: "c", ShowEnv: true}); !strings.Contains(got, "PASSWORD="+planted) {
		t.Errorf("--show-env hides the value:\n%s", got)
	}
	if _, err := r.containers.Stop(t.Context(), &longshorev1.StopRequest{Name: created.GetId()}); err != nil {
		t.Fatal(err)
	}
	list, err := r.containers.ListContainers(t.Context(), &longshorev1.ListContainersRequest{All: true})
	if err != nil {
		t.Fatal(err)
	}
	shown["list"] = list.String()
	shown["events"] = fmt.Sprint(r.events(t, &longshorev1.EventsRequest{}))
	shown["dump"] = r.dump(t)
	shown["log"] = r.agentLog.String()
	for where, text := range shown {
		if strings.Contains(text, planted) || strings.Contains(text, "InMzY3IzdC12YWx1ZSI") { // and its base64
			t.Errorf("%s shows the value:\n%s", where, text)
		}
	}
}

func TestReadSocketAnswersReadingCallsOnly(t *testing.T) {
	r := newRig(t)
	r.create(t, &longshorev1.CreateRequest{Name: "c", Image: "busybox", Start: true})
	if _, err := r.read.ListContainers(t.Context(), &longshorev1.ListContainersRequest{}); err != nil {
		t.Error(err)
	}
	if _, err := r.readNode.Version(t.Context(), &longshorev1.VersionRequest{}); err != nil {
		t.Error(err)
	}
	_, err := r.read.Stop(t.Context(), &longshorev1.StopRequest{Name: "c"})
	wantCode(t, err, codes.PermissionDenied, "reading calls only")
	stream, err := r.read.Exec(t.Context())
	if err == nil {
		_, err = stream.Recv()
	}
	wantCode(t, err, codes.PermissionDenied, "reading calls only")
}

func TestSocketsAreForTheirUsersOnly(t *testing.T) {
	r := newRig(t)
	for name, want := range map[string]os.FileMode{control.SocketName: 0o600, control.HTTPSocketName: 0o600, "read.sock": 0o660} {
		info, err := os.Stat(filepath.Join(r.sockets, name))
		if err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
	entries, err := os.ReadDir(r.sockets)
	if err != nil || len(entries) != 3 {
		t.Errorf("left in the directory: %v, %v", entries, err)
	}
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(r.sockets, control.HTTPSocketName))
	}}}
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://x/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	if body, err := io.ReadAll(resp.Body); err != nil || string(body) != "metrics" {
		t.Errorf("%q, %v", body, err)
	}
}

func TestReadSocketNeedsAGroup(t *testing.T) {
	for _, cfg := range []control.Config{{ReadSocket: "/run/x.sock"}, {ReadSocket: "x.sock", ReadGroup: "0"}} {
		if err := cfg.Validate(); err == nil {
			t.Errorf("%+v was taken", cfg)
		}
	}
	if _, err := control.Listen(t.Context(), t.TempDir(), control.Config{ReadSocket: "/tmp/x.sock", ReadGroup: "no-such-group"}); err == nil {
		t.Error("a group that is not there was taken")
	}
}

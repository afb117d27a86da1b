package cri

import (
	"context"
	"encoding/json"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/cri/nri"
	"github.com/longshore/longshore/internal/face/cri/secprofile"
	"github.com/longshore/longshore/internal/obs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bundles is the fake runtime with more of a spec's features.
type bundles struct{ enginetest.Bundles }

func (b bundles) Features(ctx context.Context) (core.RuntimeFeatures, error) {
	f, err := b.Runtime.Features(ctx)
	f.UserNamespaces, f.IDMappedMounts, f.RecursiveReadOnly = true, true, true
	return f, err
}

// node is the face over a fake node, and a client of it.
type testNode struct {
	*enginetest.Node
	v1.RuntimeServiceClient
	images v1.ImageServiceClient
	face   *Face
	nri    *nri.Host
	image  core.Image
	logs   string
	conn   *grpc.ClientConn
	// registry has one security profile.
	registry *profileRegistry
	// shutdown ends the face and waits until it has answered every call.
	shutdown func()
}

func newTestNode(tb testing.TB, change ...func(*Config)) *testNode {
	tb.Helper()
	n := &testNode{Node: enginetest.Fakes(tb), logs: tb.TempDir()}
	n.Options.Runtimes = []core.Runtime{bundles{enginetest.Bundles{Runtime: n.Runtime}}}
	n.Start()
	n.image = n.AddImage("redis:7", imagespec.ImageConfig{Cmd: []string{"serve"}, User: "www-data", StopSignal: "SIGQUIT"},
		map[string]string{"etc/passwd": passwdFile, "etc/group": groupFile})
	n.serve(tb, change...)
	return n
}

// serve starts the face on a socket of the test and connects.
func (n *testNode) serve(tb testing.TB, change ...func(*Config)) {
	tb.Helper()
	cfg := DefaultConfig()
	for _, c := range change {
		c(&cfg)
	}
	n.registry = &profileRegistry{}
	profiles, err := secprofile.Open(tb.Context(), secprofile.Options{Dir: filepath.Join(n.logs, "profiles"), Images: n.registry, Export: n.registry.export})
	if err != nil {
		tb.Fatal(err)
	}
	n.face, err = New(Options{
		Profiles: profiles,
		Deps:     face.Deps{Engine: n.As(core.OwnerCRI), Logger: slog.New(slog.DiscardHandler), Metrics: obs.New(obs.Options{}), Version: "v1.2.3"},
		Config:   cfg, ImageRoot: "/var/lib/longshore/images", NRI: n.nri,
	})
	if err != nil {
		tb.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "cri") // short enough for a socket's address
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	l, err := (&net.ListenConfig{}).Listen(tb.Context(), "unix", filepath.Join(dir, "s"))
	if err != nil {
		tb.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.face.Serve(ctx, l) }()
	n.conn, err = grpc.NewClient("unix://"+filepath.Join(dir, "s"), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20), grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		tb.Fatal(err)
	}
	n.RuntimeServiceClient, n.images = v1.NewRuntimeServiceClient(n.conn), v1.NewImageServiceClient(n.conn)
	n.shutdown = sync.OnceFunc(func() {
		_ = n.conn.Close()
		cancel()
		if err := <-done; err != nil {
			tb.Errorf("serve: %v", err)
		}
	})
	tb.Cleanup(n.shutdown)
}

func (n *testNode) podConfig(name string) *v1.PodSandboxConfig {
	cfg := podRequest(withNamespaces(&v1.NamespaceOption{Pid: v1.NamespaceMode_CONTAINER})).GetConfig()
	cfg.Metadata.Name, cfg.LogDirectory = name, filepath.Join(n.logs, name)
	return cfg
}

func (n *testNode) pod(tb testing.TB, name string) string {
	tb.Helper()
	r, err := n.RunPodSandbox(tb.Context(), &v1.RunPodSandboxRequest{Config: n.podConfig(name)})
	if err != nil {
		tb.Fatal(err)
	}
	return r.PodSandboxId
}

func (n *testNode) containerRequest(pod, name string, args ...string) *v1.CreateContainerRequest {
	return &v1.CreateContainerRequest{PodSandboxId: pod, Config: &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: name}, Image: &v1.ImageSpec{Image: string(n.image.ID), UserSpecifiedImage: "redis:7"},
		Args: args, LogPath: name + "/0.log", Labels: map[string]string{"name": name}, Annotations: map[string]string{"kept": "yes"},
	}}
}

func (n *testNode) container(tb testing.TB, pod, name string, args ...string) string {
	tb.Helper()
	r, err := n.CreateContainer(tb.Context(), n.containerRequest(pod, name, args...))
	if err != nil {
		tb.Fatal(err)
	}
	return r.ContainerId
}

func (n *testNode) running(tb testing.TB, pod, name string, args ...string) string {
	tb.Helper()
	id := n.container(tb, pod, name, args...)
	if _, err := n.StartContainer(tb.Context(), &v1.StartContainerRequest{ContainerId: id}); err != nil {
		tb.Fatal(err)
	}
	return id
}

func (n *testNode) status(t *testing.T, id string) *v1.ContainerStatus {
	t.Helper()
	r, err := n.ContainerStatus(t.Context(), &v1.ContainerStatusRequest{ContainerId: id})
	if err != nil {
		t.Fatal(err)
	}
	return r.Status
}

// exit ends a container's program and waits until that is on record.
func (n *testNode) exit(t *testing.T, id string, how core.Exit) {
	t.Helper()
	ref := core.Ref{Container: core.ID(id)}
	n.Supervisor.ExitAs(ref, how)
	if _, err := n.As(core.OwnerCRI).Wait(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
}

func wantCode(t *testing.T, what string, err error, want codes.Code) {
	t.Helper()
	if got := status.Code(err); got != want {
		t.Errorf("%s: %v; want %s", what, err, want)
	}
}

func TestAPodFromPullToRemoval(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	n.Images.Offer("example.com/app:1", imagespec.ImageConfig{Entrypoint: []string{"app"}, User: "1000"}, map[string]string{"etc/passwd": passwdFile, "etc/group": groupFile})
	pulled, err := n.images.PullImage(ctx, &v1.PullImageRequest{Image: &v1.ImageSpec{Image: "example.com/app:1"}})
	if err != nil {
		t.Fatal(err)
	}
	pod := n.pod(t, "web")
	if _, err := os.Stat(filepath.Join(n.logs, "web")); err != nil {
		t.Error(err)
	}
	st, err := n.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: pod, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if st.Status.State != v1.PodSandboxState_SANDBOX_READY || st.Status.Network.Ip == "" || st.Timestamp == 0 || !json.Valid([]byte(st.Info["info"])) {
		t.Errorf("sandbox status %v", st)
	}
	req := n.containerRequest(pod, "app", "arg")
	req.Config.Image = &v1.ImageSpec{Image: pulled.ImageRef}
	req.Config.Envs = []*v1.KeyValue{{Key: "A", Value: []byte("b")}}
	created, err := n.CreateContainer(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	id := created.ContainerId
	s := n.status(t, id)
	if s.State != v1.ContainerState_CONTAINER_CREATED || s.CreatedAt == 0 || s.StartedAt != 0 || s.FinishedAt != 0 {
		t.Errorf("created: %v", s)
	}
	if s.ImageId != pulled.ImageRef || s.Image.Image != "example.com/app:1" || s.User.GetLinux().GetUid() != 1000 || s.Annotations["kept"] != "yes" || s.Labels["name"] != "app" {
		t.Errorf("created: %v", s)
	}
	if want := filepath.Join(n.logs, "web", "app", "0.log"); s.LogPath != want {
		t.Errorf("log path %s, want %s", s.LogPath, want)
	}
	said := make(chan struct{})
	n.Supervisor.Program("app", func(p *enginetest.Process) int {
		_, _ = p.Stdout().Write([]byte("hello\n"))
		close(said)
		<-p.Killed
		return 0
	})
	if _, err := n.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if s := n.status(t, id); s.State != v1.ContainerState_CONTAINER_RUNNING || s.StartedAt < s.CreatedAt {
		t.Errorf("started: %v", s)
	}
	spec := n.Runtime.Spec(core.ID(id))
	if got := spec.Process.Args; len(got) != 2 || got[0] != "app" || got[1] != "arg" {
		t.Errorf("command %v", got)
	}
	<-said
	if _, err := n.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: id, Timeout: 30}); err != nil {
		t.Fatal(err)
	}
	if s := n.status(t, id); s.State != v1.ContainerState_CONTAINER_EXITED || s.ExitCode != 143 || s.Reason != "Error" || s.FinishedAt < s.StartedAt {
		t.Errorf("stopped: %v", s)
	}
	if b, err := os.ReadFile(s.LogPath); err != nil || len(b) == 0 {
		t.Errorf("log %q, %v", b, err)
	}
	if _, err := n.RemoveContainer(ctx, &v1.RemoveContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if st, err := n.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: pod}); err != nil || st.Status.State != v1.PodSandboxState_SANDBOX_NOTREADY || st.Status.Network.Ip != "" || len(st.Info) != 0 {
		t.Errorf("stopped sandbox: %v, %v", st, err)
	}
	if _, err := n.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	_, err = n.PodSandboxStatus(ctx, &v1.PodSandboxStatusRequest{PodSandboxId: pod})
	wantCode(t, "status of a removed sandbox", err, codes.NotFound)
	if left := n.Left(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
	n.Clean()
}

func TestStopAndRemoveAreIdempotent(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	pod := n.pod(t, "p")
	id := n.running(t, pod, "c")
	const unknown = "6a0f8a5e-7f6e-4b8c-9c80-0b1e5a1c2d3e"
	for _, id := range []string{id, id, unknown} {
		if _, err := n.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: id}); err != nil {
			t.Errorf("stop container %s: %v", id, err)
		}
	}
	for _, id := range []string{id, id, unknown} {
		if _, err := n.RemoveContainer(ctx, &v1.RemoveContainerRequest{ContainerId: id}); err != nil {
			t.Errorf("remove container %s: %v", id, err)
		}
	}
	for _, id := range []string{pod, pod, unknown} {
		if _, err := n.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Errorf("stop sandbox %s: %v", id, err)
		}
	}
	for _, id := range []string{pod, pod, unknown} {
		if _, err := n.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Errorf("remove sandbox %s: %v", id, err)
		}
	}
	for range 2 {
		if _, err := n.images.RemoveImage(ctx, &v1.RemoveImageRequest{Image: &v1.ImageSpec{Image: "redis:7"}}); err != nil {
			t.Errorf("remove image: %v", err)
		}
	}
}

func TestRemovingARunningPodEndsWhatRuns(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "p")
	n.running(t, pod, "a")
	n.container(t, pod, "b")
	if _, err := n.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if left := n.Left(); len(left) != 0 {
		t.Errorf("left: %v", left)
	}
}

func TestARetryGetsTheFirstAnswer(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	first := n.pod(t, "p")
	if again := n.pod(t, "p"); again != first {
		t.Errorf("the same request made %s and %s", first, again)
	}
	other := n.podConfig("p")
	other.Labels["app"] = "another"
	_, err := n.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: other})
	wantCode(t, "another request of the same name", err, codes.AlreadyExists)
	next := n.podConfig("p")
	next.Metadata.Attempt++
	if r, err := n.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: next}); err != nil || r.PodSandboxId == first {
		t.Errorf("the next attempt: %v, %v", r, err)
	}

	id := n.container(t, first, "c")
	if again := n.container(t, first, "c"); again != id {
		t.Errorf("the same request made %s and %s", id, again)
	}
	_, err = n.CreateContainer(ctx, n.containerRequest(first, "c", "another"))
	wantCode(t, "another container of the same name", err, codes.AlreadyExists)
	if _, err := n.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	_, err = n.CreateContainer(ctx, n.containerRequest(first, "c"))
	wantCode(t, "the same again, but it runs", err, codes.AlreadyExists)
	if _, err := n.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: first}); err != nil {
		t.Fatal(err)
	}
	_, err = n.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: n.podConfig("p")})
	wantCode(t, "the same again, but it is stopped", err, codes.AlreadyExists)
}

func TestWhatWasMadeOutlivesTheAgent(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "p")
	id := n.running(t, pod, "c")
	before := n.status(t, id)
	n.shutdown()
	n.Restart()
	n.serve(t)
	after := n.status(t, id)
	if after.State != v1.ContainerState_CONTAINER_RUNNING || after.StartedAt != before.StartedAt || after.LogPath != before.LogPath || after.User.GetLinux().GetUid() != 33 {
		t.Errorf("before %v, after %v", before, after)
	}
}

func TestAFailedCreateLeavesNothing(t *testing.T) {
	n := newTestNode(t, func(c *Config) { c.CreateMountSources = false })
	ctx := t.Context()
	pod := n.pod(t, "p")
	before := n.Left()
	for name, change := range map[string]func(*v1.ContainerConfig){
		"unknown user": func(c *v1.ContainerConfig) {
			c.Linux = &v1.LinuxContainerConfig{SecurityContext: &v1.LinuxContainerSecurityContext{RunAsUsername: "ghost"}}
		},
		"missing source": func(c *v1.ContainerConfig) { c.Mounts = []*v1.Mount{{HostPath: "/not/there", ContainerPath: "/x"}} },
		"missing device": func(c *v1.ContainerConfig) {
			c.Devices = []*v1.Device{{HostPath: "/dev/not-there", ContainerPath: "/x"}}
		},
	} {
		req := n.containerRequest(pod, "c")
		change(req.Config)
		_, err := n.CreateContainer(ctx, req)
		wantCode(t, name, err, codes.InvalidArgument)
	}
	if after := n.Left(); len(after) != len(before) {
		t.Errorf("before %v, after %v", before, after)
	}
}

func TestMissingMountSourcesAreMade(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "p")
	req := n.containerRequest(pod, "c")
	src := filepath.Join(t.TempDir(), "a/b")
	req.Config.Mounts = []*v1.Mount{{HostPath: src, ContainerPath: "/x"}}
	if _, err := n.CreateContainer(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(src); err != nil || !st.IsDir() {
		t.Errorf("%v, %v", st, err)
	}
}

func TestAProgramThatIsNotThere(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "p")
	id := n.container(t, pod, "c", "missing")
	if _, err := n.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id}); err == nil {
		t.Fatal("started")
	}
	n.Settle()
	if s := n.status(t, id); s.State != v1.ContainerState_CONTAINER_EXITED || s.Reason != "StartError" || s.Message == "" || s.ExitCode != 128 || s.FinishedAt == 0 {
		t.Errorf("%v", s)
	}
}

// TestARefusedProgramIsAStartError: exit code 128 for any errno, as in containerd.
func TestARefusedProgramIsAStartError(t *testing.T) {
	for name, refusal := range enginetest.Refusals() {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t)
			id := n.container(t, n.pod(t, "p"), "c", "app")
			n.Runtime.Refuse(refusal.Err, "Start")
			_, err := n.StartContainer(t.Context(), &v1.StartContainerRequest{ContainerId: id})
			if err == nil || !strings.Contains(err.Error(), refusal.Err.Error()) {
				t.Errorf("start: %v", err)
			}
			n.Runtime.Fail(nil)
			n.Settle()
			if s := n.status(t, id); s.State != v1.ContainerState_CONTAINER_EXITED || s.Reason != "StartError" || s.Message != refusal.Err.Error() || s.ExitCode != 128 || s.StartedAt != 0 {
				t.Errorf("%v", s)
			}
		})
	}
}

func TestOOMKilledIsSaidOfTheVictimOnly(t *testing.T) {
	n := newTestNode(t)
	pod := n.pod(t, "p")
	id := n.running(t, pod, "c")
	ref := core.Ref{Container: core.ID(id)}
	n.Supervisor.OOM(ref, 1<<20, 1, 0)
	if _, err := n.As(core.OwnerCRI).Wait(t.Context(), ref); err != nil {
		t.Fatal(err)
	}
	if s := n.status(t, id); s.Reason != "OOMKilled" || s.ExitCode != 137 {
		t.Errorf("%v", s)
	}
	plain := n.running(t, pod, "d")
	n.exit(t, plain, core.Exit{Code: 3})
	if s := n.status(t, plain); s.Reason != "Error" || s.ExitCode != 3 || s.Message != "" {
		t.Errorf("%v", s)
	}
}

func TestReopenWantsARunningContainer(t *testing.T) {
	n := newTestNode(t)
	ctx := t.Context()
	pod := n.pod(t, "p")
	id := n.container(t, pod, "c")
	_, err := n.ReopenContainerLog(ctx, &v1.ReopenContainerLogRequest{ContainerId: id})
	wantCode(t, "created", err, codes.FailedPrecondition)
	if _, err := n.StartContainer(ctx, &v1.StartContainerRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if _, err := n.ReopenContainerLog(ctx, &v1.ReopenContainerLogRequest{ContainerId: id}); err != nil {
		t.Fatal(err)
	}
	if got := n.Supervisor.Reopens(core.Ref{Container: core.ID(id)}); got != 1 {
		t.Errorf("reopened %d times", got)
	}
}

func TestServeEndsWhileAStreamIsOpen(t *testing.T) {
	n := newTestNode(t)
	s, err := n.GetContainerEvents(t.Context(), &v1.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	n.pod(t, "p")
	if _, err := s.Recv(); err != nil {
		t.Fatal(err)
	}
	// The cleanup ends the connection and then Serve; it fails the test when
	// that hangs.
}

package cri

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"

	v1 "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/adjust"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/roottest"
)

// plugin is an NRI plugin that notes its calls.
type plugin struct {
	mu     sync.Mutex
	told   []string
	made   *api.Container // as told when it was made
	more   chan struct{}
	synced chan struct{}

	onSync func() // before it answers
	onRun  func() // before it answers RunPodSandbox
	refuse string // a call that it says no to
	adjust *api.ContainerAdjustment
	others func(*api.Container) []*api.ContainerUpdate // wanted when a container is made
	conn   net.Conn
}

func newPlugin() *plugin {
	return &plugin{more: make(chan struct{}, 1), synced: make(chan struct{})}
}

func (p *plugin) note(call, name string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = append(p.told, call+" "+name)
	select {
	case p.more <- struct{}{}:
	default:
	}
	if p.refuse == call {
		return errors.New("not today")
	}
	return nil
}

func (p *plugin) heard() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.told)
}

func (p *plugin) refuses(call string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = call
}

// await returns once the plugin has noted a call.
func (p *plugin) await(t *testing.T, what string) {
	t.Helper()
	for !slices.Contains(p.heard(), what) {
		select {
		case <-p.more:
		case <-t.Context().Done():
			t.Fatalf("never told of %q: %q", what, p.heard())
		}
	}
}

func (p *plugin) Synchronize(_ context.Context, _ []*api.PodSandbox, containers []*api.Container) ([]*api.ContainerUpdate, error) {
	if p.onSync != nil {
		p.onSync()
	}
	for _, c := range containers {
		_ = p.note("there", c.GetName())
	}
	close(p.synced)
	return nil, nil
}

func (p *plugin) RunPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	if p.onRun != nil {
		p.onRun()
	}
	return p.note("run", pod.GetName())
}

func (p *plugin) StopPodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("stop pod", pod.GetName())
}

func (p *plugin) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("remove pod", pod.GetName())
}

func (p *plugin) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	var others []*api.ContainerUpdate
	if p.others != nil {
		others = p.others(c)
	}
	return p.adjust, others, p.note("create", c.GetName())
}

func (p *plugin) PostCreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.made = c
	return nil
}

func (p *plugin) StartContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note("start", c.GetName())
}

func (p *plugin) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, p.note("stop", c.GetName())
}

func (p *plugin) RemoveContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) error {
	return p.note("remove", c.GetName())
}

func (p *plugin) UpdatePodSandbox(_ context.Context, pod *api.PodSandbox, _, res *api.LinuxResources) error {
	return p.note("update pod", pod.GetName()+" "+strconv.FormatInt(res.GetMemory().GetLimit().GetValue(), 10))
}

func (p *plugin) PostUpdatePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return p.note("updated pod", pod.GetName())
}

func (p *plugin) UpdateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container, res *api.LinuxResources) ([]*api.ContainerUpdate, error) {
	u := &api.ContainerUpdate{ContainerId: c.GetId()}
	u.SetLinuxCPUShares(2 * res.GetCpu().GetShares().GetValue())
	return []*api.ContainerUpdate{u}, p.note("update", c.GetName())
}

// newPluggable returns a node with a socket for plugins.
func newPluggable(t *testing.T) (*testNode, string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "nri") // short enough for a socket's address
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	cfg := DefaultConfig()
	cfg.NRISocket = filepath.Join(dir, "s")
	n := &testNode{Node: enginetest.Fakes(t), logs: t.TempDir()}
	n.Options.Runtimes = []core.Runtime{bundles{enginetest.Bundles{Runtime: n.Runtime}}}
	if n.nri, err = NewNRI(cfg, slog.New(slog.DiscardHandler), "v1", nil); err != nil {
		t.Fatal(err)
	}
	n.Options.Policies = adjust.Policies(adjust.Options{Owners: []adjust.Owned{{Owner: core.OwnerCRI, Policy: n.nri}}})
	n.Start()
	n.image = n.AddImage("redis:7", imagespec.ImageConfig{Cmd: []string{"serve"}}, map[string]string{"etc/passwd": passwdFile, "etc/group": groupFile})
	n.serve(t)
	return n, cfg.NRISocket
}

// connect plugs p in, as soon as the socket exists.
func (p *plugin) connect(t *testing.T, socket, index string, more ...stub.Option) {
	t.Helper()
	var conn net.Conn
	roottest.Eventually(t, "plugins can connect", func() bool {
		var err error
		conn, err = (&net.Dialer{}).DialContext(t.Context(), "unix", socket)
		return err == nil
	})
	p.conn = conn
	s, err := stub.New(p, append(more, stub.WithPluginName("test"), stub.WithPluginIdx(index), stub.WithConnection(conn))...)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Stop(); s.Wait() })
}

// joined waits until the plugin takes part: it has answered Synchronize, and later takers of the
// block follow it.
func (n *testNode) joined(p *plugin) {
	<-p.synced
	n.nri.Block()()
}

func TestPluginsSeeEverythingOnceAndInOrder(t *testing.T) {
	n, socket := newPluggable(t)
	p := newPlugin()
	p.connect(t, socket, "00")
	n.joined(p)
	ctx := t.Context()
	pod := n.pod(t, "web")
	asked, byItself := n.running(t, pod, "asked"), n.running(t, pod, "itself")
	n.exit(t, byItself, core.Exit{Code: 1})
	p.await(t, "stop itself")
	for range 2 {
		if _, err := n.StopContainer(ctx, &v1.StopContainerRequest{ContainerId: asked}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.RemoveContainer(ctx, &v1.RemoveContainerRequest{ContainerId: asked}); err != nil {
		t.Fatal(err)
	}
	n.running(t, pod, "forced")
	for range 2 {
		if _, err := n.StopPodSandbox(ctx, &v1.StopPodSandboxRequest{PodSandboxId: pod}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.RemovePodSandbox(ctx, &v1.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"run web", "create asked", "start asked", "create itself", "start itself", "stop itself", "stop asked", "remove asked",
		"create forced", "start forced", "stop forced", "stop pod web", "remove itself", "remove forced", "remove pod web",
	}
	if got := p.heard(); !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestASandboxIsNotListedWhilePluginsAreAsked: critest requires it. Before and after, a sandbox that is
// being created is listed as NotReady.
func TestASandboxIsNotListedWhilePluginsAreAsked(t *testing.T) {
	n, socket := newPluggable(t)
	p := newPlugin()
	asked, answer := make(chan struct{}), make(chan struct{})
	p.onRun = func() { close(asked); <-answer }
	p.connect(t, socket, "00")
	n.joined(p)
	done := n.run(t.Context(), n.podConfig("web"))
	<-asked
	if got := n.states(t); len(got) > 0 {
		t.Errorf("listed while a plugin is asked: %v", got)
	}
	close(answer)
	r := <-done
	if r.err != nil {
		t.Fatal(r.err)
	}
	if got := n.states(t); got[r.id] != v1.PodSandboxState_SANDBOX_READY {
		t.Errorf("listed: %v", got)
	}
}

func TestAPluginsNoEndsItAndLeavesNothing(t *testing.T) {
	n, socket := newPluggable(t)
	p := newPlugin()
	p.connect(t, socket, "00")
	n.joined(p)
	ctx := t.Context()
	p.refuses("run")
	_, err := n.RunPodSandbox(ctx, &v1.RunPodSandboxRequest{Config: n.podConfig("web")})
	wantCode(t, "run", err, codes.FailedPrecondition)
	if left := n.Left(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
	p.refuses("create")
	pod := n.pod(t, "web")
	before := n.Left()
	_, err = n.CreateContainer(ctx, n.containerRequest(pod, "app"))
	wantCode(t, "create", err, codes.FailedPrecondition)
	if left := n.Left(); !slices.Equal(left, before) {
		t.Errorf("left behind: %q", left)
	}
	p.refuses("")
	n.running(t, pod, "app")
	want := []string{"run web", "remove pod web", "run web", "create app", "remove app", "create app", "start app"}
	if got := p.heard(); !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestAPluginAdjustsTheSpec(t *testing.T) {
	n, socket := newPluggable(t)
	p := newPlugin()
	a := &api.ContainerAdjustment{}
	a.AddEnv("PLUGGED", "in")
	a.AddAnnotation("by", "test")
	a.AddMount(&api.Mount{Destination: "/plugged", Type: "bind", Source: "/etc", Options: []string{"bind", "ro"}})
	a.SetLinuxMemoryLimit(64 << 20)
	a.SetLinuxCPUSetCPUs("0")
	a.AddRlimit("RLIMIT_NOFILE", 100, 50)
	p.adjust = a
	p.connect(t, socket, "00")
	n.joined(p)
	s := n.spec(t, n.container(t, n.pod(t, "web"), "app"))
	if !slices.Contains(s.Process.Env, "PLUGGED=in") || s.Annotations["by"] != "test" || len(s.Process.Rlimits) != 1 {
		t.Errorf("env %q, annotations %v, rlimits %v", s.Process.Env, s.Annotations, s.Process.Rlimits)
	}
	if m := mountAt(s, "/plugged"); m == nil || m.Source != "/etc" {
		t.Errorf("mount %v", m)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.made; c.GetAnnotations()["by"] != "test" || c.GetAnnotations()["io.kubernetes.cri.container-name"] != "app" || !slices.Contains(c.GetEnv(), "PLUGGED=in") {
		t.Errorf("told that it was made with %v, %q", c.GetAnnotations(), c.GetEnv())
	}
	if r := s.Linux.Resources; r.Memory == nil || *r.Memory.Limit != 64<<20 || r.CPU == nil || r.CPU.Cpus != "0" {
		t.Errorf("resources %+v", r)
	}
}

// TestAPluginThatJoinsLateMissesNothing: objects of before are in its list, and it hears later of
// those made meanwhile.
func TestAPluginThatJoinsLateMissesNothing(t *testing.T) {
	n, socket := newPluggable(t)
	pod := n.pod(t, "web")
	n.running(t, pod, "before")
	p := newPlugin()
	syncing, goOn := make(chan struct{}), make(chan struct{})
	p.onSync = func() { close(syncing); <-goOn }
	p.connect(t, socket, "10")
	<-syncing
	var wg sync.WaitGroup
	for _, name := range []string{"during1", "during2", "during3"} {
		wg.Go(func() {
			if _, err := n.CreateContainer(t.Context(), n.containerRequest(pod, name)); err != nil {
				t.Error(err)
			}
		})
	}
	close(goOn)
	wg.Wait()
	n.joined(p)
	n.container(t, pod, "after")
	got := p.heard()
	slices.Sort(got)
	want := []string{"create after", "create during1", "create during2", "create during3", "there before"}
	if !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
}

func TestPluginsHaveAWordInUpdates(t *testing.T) {
	n, socket := newPluggable(t)
	p := newPlugin()
	p.connect(t, socket, "00")
	n.joined(p)
	ctx := t.Context()
	pod := n.pod(t, "web")
	id := n.running(t, pod, "app")
	if _, err := n.UpdateContainerResources(ctx, &v1.UpdateContainerResourcesRequest{ContainerId: id, Linux: &v1.LinuxContainerResources{CpuShares: 100}}); err != nil {
		t.Fatal(err)
	}
	if got := n.status(t, id).GetResources().GetLinux().GetCpuShares(); got != 200 {
		t.Errorf("cpu shares %d, want what the plugin said", got)
	}
	req := &v1.UpdatePodSandboxResourcesRequest{PodSandboxId: pod, Resources: &v1.LinuxContainerResources{MemoryLimitInBytes: 1 << 20}}
	if _, err := n.UpdatePodSandboxResources(ctx, req); err != nil {
		t.Fatal(err)
	}
	if got, want := p.heard()[3:], []string{"update app", "update pod web 1048576", "updated pod web"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q", got, want)
	}
	p.refuses("update pod")
	_, err := n.UpdatePodSandboxResources(ctx, req)
	wantCode(t, "update pod", err, codes.FailedPrecondition)
}

// TestAPluginUpdatesASiblingOfWhatIsMade: nobody waits for anybody.
func TestAPluginUpdatesASiblingOfWhatIsMade(t *testing.T) {
	n, socket := newPluggable(t)
	pod := n.pod(t, "web")
	first := n.running(t, pod, "first")
	p := newPlugin()
	p.others = func(c *api.Container) []*api.ContainerUpdate {
		u := &api.ContainerUpdate{ContainerId: first}
		u.SetLinuxCPUShares(77)
		return []*api.ContainerUpdate{u}
	}
	p.connect(t, socket, "00")
	n.joined(p)
	n.container(t, pod, "second")
	c, err := n.As(core.OwnerCRI).Container(t.Context(), core.ID(first))
	if err != nil {
		t.Fatal(err)
	}
	res, err := n.Cgroups.Resources(t.Context(), c.Cgroup)
	if err != nil || res.CPU == nil || res.CPU.Shares == nil || *res.CPU.Shares != 77 {
		t.Errorf("resources %+v, %v", res, err)
	}
}

// TestPluginsHearOfOthers: plugins hear of the control API's changes to a pod, in the order of
// kubelet's.
func TestPluginsHearOfOthers(t *testing.T) {
	n, socket := newPluggable(t)
	p := newPlugin()
	p.connect(t, socket, "00")
	n.joined(p)
	pod := n.pod(t, "web")
	n.running(t, pod, "app")
	created := n.container(t, pod, "created")
	all := n.Engine.All()
	if err := all.StartContainer(t.Context(), core.ID(created)); err != nil {
		t.Fatal(err)
	}
	if err := all.StopContainer(t.Context(), core.ID(created), engine.StopOptions{Grace: noGrace()}); err != nil {
		t.Fatal(err)
	}
	if err := all.RemoveSandbox(t.Context(), core.ID(pod), engine.RemoveOptions{Force: true}); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"run web", "create app", "start app", "create created", "start created", "stop created",
		"stop app", "stop pod web", "remove app", "remove created", "remove pod web",
	}
	if got := p.heard(); !slices.Equal(got, want) {
		t.Errorf("told\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestAPluginThatDiesHoldsUpNothing: pending calls continue without it.
func TestAPluginThatDiesHoldsUpNothing(t *testing.T) {
	n, socket := newPluggable(t)
	p := newPlugin()
	p.others = func(*api.Container) []*api.ContainerUpdate {
		_ = p.conn.Close()
		return nil
	}
	p.connect(t, socket, "00")
	n.joined(p)
	pod := n.pod(t, "web")
	id := n.running(t, pod, "app")
	if _, err := n.RemovePodSandbox(t.Context(), &v1.RemovePodSandboxRequest{PodSandboxId: pod}); err != nil {
		t.Fatal(err)
	}
	if got, want := p.heard(), []string{"run web", "create app"}; !slices.Equal(got, want) {
		t.Errorf("told %q, want %q; container %s", got, want, id)
	}
	if left := n.Left(); len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

package compose

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/composefile"
	"github.com/longshore/longshore/internal/core"
)

// agent is an agent with some containers. Its calls are those that a test sets.
type agent struct {
	longshorev1.ContainersClient
	longshorev1.NodeClient
	longshorev1.VolumesClient
	longshorev1.ImagesClient

	list []*longshorev1.Container
	stop func(name string) error
	kill func(name string)
	wait func(name string) error

	mu       sync.Mutex // guards versions
	versions int        // the calls of Version
	image    string
	record   string
}

func (a *agent) ListContainers(context.Context, *longshorev1.ListContainersRequest, ...grpc.CallOption) (*longshorev1.ListContainersResponse, error) {
	return &longshorev1.ListContainersResponse{Containers: slices.Clone(a.list)}, nil
}

func (a *agent) Stop(_ context.Context, req *longshorev1.StopRequest, _ ...grpc.CallOption) (*longshorev1.StopResponse, error) {
	return &longshorev1.StopResponse{}, a.stop(req.GetName())
}

func (a *agent) Kill(_ context.Context, req *longshorev1.KillRequest, _ ...grpc.CallOption) (*longshorev1.KillResponse, error) {
	a.kill(req.GetName())
	return &longshorev1.KillResponse{}, nil
}

func (a *agent) Wait(_ context.Context, req *longshorev1.WaitRequest, _ ...grpc.CallOption) (*longshorev1.WaitResponse, error) {
	return &longshorev1.WaitResponse{}, a.wait(req.GetName())
}

func (a *agent) Version(context.Context, *longshorev1.VersionRequest, ...grpc.CallOption) (*longshorev1.VersionResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.versions++
	return &longshorev1.VersionResponse{}, nil
}

func (a *agent) Inspect(context.Context, *longshorev1.InspectRequest, ...grpc.CallOption) (*longshorev1.InspectResponse, error) {
	return &longshorev1.InspectResponse{Json: []byte(a.record)}, nil
}

func (a *agent) InspectImage(context.Context, *longshorev1.InspectImageRequest, ...grpc.CallOption) (*longshorev1.InspectResponse, error) {
	return &longshorev1.InspectResponse{Json: []byte(a.image)}, nil
}

func (a *agent) ListVolumes(context.Context, *longshorev1.ListVolumesRequest, ...grpc.CallOption) (*longshorev1.ListVolumesResponse, error) {
	out := &longshorev1.ListVolumesResponse{}
	for _, name := range []string{"v-image", "v-file", "v-dropped"} {
		out.Volumes = append(out.Volumes, &longshorev1.Volume{Name: name, Labels: map[string]string{core.AnonymousLabel: "yes"}})
	}
	return out, nil
}

// noEvents is a stream that ends with its caller.
type noEvents struct {
	grpc.ServerStreamingClient[longshorev1.EventsResponse]
	ctx context.Context
}

func (s noEvents) Recv() (*longshorev1.EventsResponse, error) {
	<-s.ctx.Done()
	return nil, context.Cause(s.ctx)
}

func (a *agent) Events(ctx context.Context, _ *longshorev1.EventsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[longshorev1.EventsResponse], error) {
	return noEvents{ctx: ctx}, nil
}

// upOf returns an up of services on an agent, and its standard error.
func upOf(a *agent, services ...composefile.Service) (*upper, *bytes.Buffer) {
	var said bytes.Buffer
	app := base.NewApp(base.Options{Stdout: io.Discard, Stderr: &said, Getenv: func(string) string { return "" }})
	c := &base.Client{Containers: a, Node: a, Volumes: a, Images: a}
	return &upper{runner: &runner{a: app, c: c, name: "p"}, p: &composefile.Project{Name: "p", Services: services}, images: map[string]string{}}, &said
}

func container(service, name, state string) *longshorev1.Container {
	return &longshorev1.Container{Id: name, Name: name, State: state, Labels: map[string]string{composefile.LabelService: service}}
}

// TestAServiceIsStoppedAtOnce stops two containers of a service: neither stop returns before both have begun.
func TestAServiceIsStoppedAtOnce(t *testing.T) {
	var both sync.WaitGroup
	both.Add(2)
	a := &agent{list: []*longshorev1.Container{container("web", "w1", "running"), container("web", "w2", "running")}}
	a.stop = func(string) error {
		both.Done()
		both.Wait()
		return errors.New("stopped")
	}
	u, _ := upOf(a, composefile.Service{Name: "web"})
	if err := u.stopAll(t.Context(), nil); err == nil || strings.Count(err.Error(), "stopped") != 2 {
		t.Errorf("got %v", err)
	}
}

// TestASecondInterruptKillsTheOwnContainers checks that containers of other services of the project run on.
func TestASecondInterruptKillsTheOwnContainers(t *testing.T) {
	killed := make(chan string, 10)
	a := &agent{list: []*longshorev1.Container{container("web", "w1", "running"), container("db", "d1", "running")}}
	stopping := make(chan struct{})
	signals := make(chan os.Signal)
	a.stop = func(name string) error {
		close(stopping)
		if got := <-killed; got != name {
			t.Errorf("%s was killed", got)
		}
		return nil
	}
	a.kill = func(name string) { killed <- name }
	u, _ := upOf(a, composefile.Service{Name: "web"})
	go func() {
		<-stopping
		signals <- syscall.SIGINT
	}()
	if err := u.stopAll(t.Context(), signals); err != nil {
		t.Error(err)
	}
	if len(killed) > 0 {
		t.Errorf("%s was killed", <-killed)
	}
}

// TestServicesWithoutContainersKeepTheOrder checks that web is stopped before db when only a service between them needs db.
func TestServicesWithoutContainersKeepTheOrder(t *testing.T) {
	list := []*longshorev1.Container{container("web", "w", "running"), container("db", "d", "running")}
	g := graphOf(list, map[string][]string{"web": {"api"}, "api": {"db"}, "db": nil}).reversed()
	var mu sync.Mutex // guards order
	var order []string
	g.walk(func(name string, _ map[string]error) error {
		mu.Lock()
		defer mu.Unlock()
		order = append(order, name)
		return nil
	})
	if strings.Join(order, " ") != "web api db" {
		t.Errorf("the order is %q", order)
	}
}

// TestAQuietServiceHasAStatus follows a service without output, through the end of an agent.
func TestAQuietServiceHasAStatus(t *testing.T) {
	ended := container("job", "j", "exited")
	ended.Autopsy = &longshorev1.Autopsy{Status: 7}
	a := &agent{list: []*longshorev1.Container{ended}}
	calls := 0
	a.wait = func(string) error {
		if calls++; calls < 3 {
			return status.Error(codes.Unavailable, "the agent ends")
		}
		return nil
	}
	job := composefile.Service{Name: "job", Quiet: true}
	u, said := upOf(a, job)
	u.f.abort, u.f.exitFrom = true, "job"
	out := newOutput(t.Context(), u)
	out.follow(ended, job)
	if got := out.wait(); got != 7 || calls != 3 || a.versions != 2 {
		t.Errorf("status %d after %d waits and %d agents", got, calls, a.versions)
	}
	if !strings.Contains(said.String(), "the agent has gone; waiting for the next one") || strings.Contains(said.String(), "exit status") {
		t.Errorf("it said %q", said)
	}
}

// TestAFailureOfTheOutputIsAFailure checks that up does not succeed without knowing how a container has ended.
func TestAFailureOfTheOutputIsAFailure(t *testing.T) {
	a := &agent{wait: func(string) error { return status.Error(codes.Internal, "broken") }}
	u, _ := upOf(a, composefile.Service{Name: "job"})
	out := newOutput(t.Context(), u)
	out.follow(container("job", "j", "running"), composefile.Service{Name: "job", Quiet: true})
	if got := out.wait(); got != 1 {
		t.Errorf("status %d", got)
	}
}

// TestDroppedVolumesAreNotKept checks the anonymous volumes that a new container gets from the old one: those of its file and of
// its image.
func TestDroppedVolumesAreNotKept(t *testing.T) {
	a := &agent{image: `{"config": {"config": {"Volumes": {"/image/": {}}}}}`}
	a.record = `{"config": {"volumes": [{"name": "v-image", "target": "/image"}, {"name": "v-file", "target": "/file"}, {"name": "v-dropped", "target": "/dropped"}]}}`
	u, _ := upOf(a)
	old := container("web", "w", "running")
	old.Volumes = []string{"v-image", "v-file", "v-dropped"}
	mounts, err := u.kept(t.Context(), old, &longshorev1.CreateRequest{Mounts: []*longshorev1.Mount{{Target: "/file", Anonymous: true}}}, "sha256:1")
	got := ""
	for _, m := range mounts {
		got += fmt.Sprintf("%s:%s %t ", m.GetSource(), m.GetTarget(), m.GetAnonymous())
	}
	if want := "v-file:/file false v-image:/image false "; err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestLinesHaveNoControlCharacters checks that a name cannot move the cursor.
func TestLinesHaveNoControlCharacters(t *testing.T) {
	u, said := upOf(&agent{})
	u.step("Network", "a\x1b[2Jb", "Creating")
	u.warn("%s", "c\x1b[2J\nd")
	if got := said.String(); got != " Network a [2Jb  Creating\nlongshore: c [2J d\n" {
		t.Errorf("%q", got)
	}
}

// TestHashesNeedTheKey checks that a label's hash cannot be made from the settings alone, and that the key stays.
func TestHashesNeedTheKey(t *testing.T) {
	dir := t.TempDir()
	env := func(name string) string { return map[string]string{"XDG_STATE_HOME": dir}[name] }
	hash := func(env func(string) string) string {
		t.Helper()
		key, err := ownKey(env)
		if err != nil {
			t.Fatal(err)
		}
		p := &composefile.Project{Services: []composefile.Service{{Hash: "settings", Request: &longshorev1.CreateRequest{Labels: map[string]string{}}}}}
		keyed(p, key)
		if s := p.Services[0]; s.Hash != s.Request.GetLabels()[composefile.LabelHash] || s.Hash == "settings" {
			t.Errorf("the hash is %s, the label %v", s.Hash, s.Request.GetLabels())
		}
		return p.Services[0].Hash
	}
	first := hash(env)
	if again := hash(env); again != first {
		t.Errorf("%s became %s", first, again)
	}
	path := filepath.Join(dir, "longshore", "compose.key")
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's file: %v, %v", info, err)
	}
	other := t.TempDir()
	if hash(func(name string) string { return map[string]string{"HOME": other}[name] }) == first {
		t.Error("another user has the same hash")
	}
	if left, err := filepath.Glob(filepath.Join(other, ".local/state/longshore/*")); err != nil || len(left) != 1 {
		t.Errorf("files: %q, %v", left, err)
	}
	if err := os.WriteFile(path, []byte("short"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ownKey(env); err == nil || !strings.Contains(err.Error(), "remove it") {
		t.Errorf("a key that is none: %v", err)
	}
	if _, err := stateDir(func(string) string { return "" }); err != nil {
		t.Errorf("without an environment: %v", err)
	}
}

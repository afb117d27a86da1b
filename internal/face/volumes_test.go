package face_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	v1 "github.com/longshore/longshore/api/cri/v1"
	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/cri"
	"github.com/longshore/longshore/internal/face/docker"
	"github.com/longshore/longshore/internal/face/mesos"
	"github.com/longshore/longshore/internal/face/nomad"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/face/nomad/plugin"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/face/testdata/echo"
	"github.com/longshore/longshore/internal/solo"
	"github.com/longshore/longshore/internal/state"
)

// iface is one interface of the agent: its server over a node, and a client's call that
// makes a container of an image.
type iface struct {
	serve  func(t *testing.T, n *enginetest.Node) func(context.Context, net.Listener) error
	create func(t *testing.T, socket, image string) error
}

// interfaces are all of them, by the names of their packages.
func interfaces() map[string]iface {
	log := slog.New(slog.DiscardHandler)
	serve := func(open func(t *testing.T, n *enginetest.Node) (face.Face, error)) func(t *testing.T, n *enginetest.Node) func(context.Context, net.Listener) error {
		return func(t *testing.T, n *enginetest.Node) func(context.Context, net.Listener) error {
			t.Helper()
			f, err := open(t, n)
			if err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context, l net.Listener) error { return f.Serve(ctx, l) }
		}
	}
	return map[string]iface{
		"cri": {serve(func(_ *testing.T, n *enginetest.Node) (face.Face, error) {
			return cri.New(cri.Options{Deps: face.Deps{Engine: n.As(core.OwnerCRI), Logger: log}, Config: cri.DefaultConfig()})
		}), createCRI},
		"mesos": {serve(func(t *testing.T, n *enginetest.Node) (face.Face, error) {
			t.Helper()
			cfg := mesos.DefaultConfig()
			cfg.WorkDir = t.TempDir()
			return mesos.New(mesos.Options{Deps: face.Deps{Engine: n.As(core.OwnerMesos), Logger: log}, Config: cfg})
		}), createMesos},
		"nomad": {serve(func(_ *testing.T, n *enginetest.Node) (face.Face, error) {
			return nomad.New(nomad.Options{Deps: face.Deps{Engine: n.As(core.OwnerNomad), Logger: log}, Config: nomad.DefaultConfig()})
		}), createNomad},
		"swarm": swarmInterface(),
		"docker": {func(t *testing.T, n *enginetest.Node) func(context.Context, net.Listener) error {
			t.Helper()
			networks := noNetworks{}
			f, err := docker.New(docker.Options{
				Deps: face.Deps{Engine: n.As(core.OwnerDocker), Logger: log}, Config: docker.DefaultConfig(), Node: solo.NewNode(n.Engine, networks), Root: t.TempDir(),
				Transfers: n.Images, Networks: networks,
			})
			if err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context, l net.Listener) error { return f.Serve(ctx, fullSocket{l}) }
		}, createDocker},
		"testdata/echo": {serve(func(t *testing.T, n *enginetest.Node) (face.Face, error) {
			t.Helper()
			return &echo.Face{Deps: face.Deps{Engine: n.As(core.OwnerCLI), Logger: log}, LogDir: t.TempDir()}, nil
		}), createEcho},
		"control": {func(t *testing.T, n *enginetest.Node) func(context.Context, net.Listener) error {
			t.Helper()
			s, err := control.New(control.Options{Engine: n.Engine, LogDir: t.TempDir(), Logger: log})
			if err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context, l net.Listener) error { return s.Serve(ctx, control.Listeners{Control: l}) }
		}, createControl},
	}
}

// noNetworks has no networks that users define.
type noNetworks struct{ solo.Networks }

func (noNetworks) Defined() []core.NetworkDefinition { return nil }

// fullSocket is a listener with the name of Docker's full socket.
type fullSocket struct{ net.Listener }

func (fullSocket) SocketName() string { return docker.FullSocket }

// swarmInterface is the one that dials: its client is a manager, which the node joins.
func swarmInterface() iface {
	var m *swarmtest.Manager
	var f *swarm.Face
	return iface{
		serve: func(t *testing.T, n *enginetest.Node) func(context.Context, net.Listener) error {
			t.Helper()
			store := state.NewMemory(64)
			m = swarmtest.New(t)
			var err error
			f, err = swarm.New(swarm.Options{
				Deps: face.Deps{Engine: n.As(core.OwnerSwarm), Logger: slog.New(slog.DiscardHandler), KV: store.Scope(core.OwnerSwarm, true)},
				Root: t.TempDir(), State: t.TempDir(), MountFiles: func(string) error { return nil },
			})
			if err != nil {
				t.Fatal(err)
			}
			return func(ctx context.Context, l net.Listener) error { return errors.Join(l.Close(), f.Serve(ctx)) }
		},
		create: func(t *testing.T, _, image string) error {
			t.Helper()
			if _, err := f.Join(t.Context(), swarm.JoinRequest{Addr: m.Addr, Token: m.Token}); err != nil {
				return err
			}
			m.Assign(swarmtest.Task("a", image, "serve"))
			m.Reaches("a", swarmv1.TaskState_RUNNING)
			return nil
		},
	}
}

func createCRI(t *testing.T, socket, image string) error {
	t.Helper()
	c := v1.NewRuntimeServiceClient(nomadtest.Dial(t, socket))
	pod := &v1.PodSandboxConfig{Metadata: &v1.PodSandboxMetadata{Name: "p", Namespace: "d", Uid: "u"}}
	sb, err := c.RunPodSandbox(t.Context(), &v1.RunPodSandboxRequest{Config: pod})
	if err != nil {
		return err
	}
	_, err = c.CreateContainer(t.Context(), &v1.CreateContainerRequest{PodSandboxId: sb.GetPodSandboxId(), SandboxConfig: pod, Config: &v1.ContainerConfig{
		Metadata: &v1.ContainerMetadata{Name: "c"}, Image: &v1.ImageSpec{Image: image}, Args: []string{"serve"},
	}})
	return err
}

func createMesos(t *testing.T, socket, image string) error {
	t.Helper()
	return post(t, socket, "/api/v1", `{"type":"LAUNCH_CONTAINER","launch_container":{"container_id":{"value":"a"},"command":{"value":"serve"},`+
		`"container":{"type":"MESOS","mesos":{"image":{"type":"DOCKER","docker":{"name":"`+image+`"}}}}}}`)
}

func createDocker(t *testing.T, socket, image string) error {
	t.Helper()
	return post(t, socket, "/containers/create?name=a", `{"Cmd":["serve"],"Image":"`+image+`"}`)
}

// post sends a request in JSON to a socket.
func post(t *testing.T, socket, path, body string) error {
	t.Helper()
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://node"+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	resp, err := (&http.Client{Transport: tr}).Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode >= http.StatusMultipleChoices {
		err = fmt.Errorf("%s: %s", resp.Status, text)
	}
	return err
}

func createNomad(t *testing.T, socket, image string) error {
	t.Helper()
	dir, alloc := t.TempDir(), "5f0f0c4e-8d5c-4f3d-9a5d-000000000001"
	for _, d := range []string{"alloc/logs", "web/local", "web/secrets"} {
		if err := os.MkdirAll(filepath.Join(dir, alloc, d), 0o755); err != nil {
			return err
		}
	}
	task := nomadtest.Task(dir, alloc, "web", "aaaaaaaa", map[string]any{"image": image, "command": "serve"})
	ctx := plugin.Caller{Name: "longshore"}.Outgoing(t.Context())
	_, err := nomaddriver.NewDriverClient(nomadtest.Dial(t, socket)).StartTask(ctx, &nomaddriver.StartTaskRequest{Task: task})
	return err
}

func createEcho(t *testing.T, socket, image string) error {
	t.Helper()
	c, err := new(net.Dialer).DialContext(t.Context(), "unix", socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if _, err := fmt.Fprintf(c, "run a %s hello\n", image); err != nil {
		return err
	}
	if answer, err := io.ReadAll(c); err != nil || string(answer) != "exit 0\n" {
		return fmt.Errorf("%q, %w", answer, err)
	}
	return nil
}

func createControl(t *testing.T, socket, image string) error {
	t.Helper()
	s, err := longshorev1.NewContainersClient(nomadtest.Dial(t, socket)).Create(t.Context(), &longshorev1.CreateRequest{Name: "a", Image: image, Command: []string{"serve"}})
	for err == nil {
		_, err = s.Recv()
	}
	if err == io.EOF { //nolint:errorlint // gRPC's own, unwrapped
		return nil
	}
	return err
}

// TestVolumesOfImages: each face makes the directories that an image declares as volumes, below the
// root and through no link out of it.
func TestVolumesOfImages(t *testing.T) {
	all := interfaces()
	dirs, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	shared := []string{"attach", "errtext", "grpcerr", "sweep", "testdata", "wiretest"}
	imageless := []string{"kata"} // a guest's containers get directories of the host's as roots
	for _, d := range dirs {
		if _, ok := all[d.Name()]; d.IsDir() && !ok && !slices.Contains(shared, d.Name()) && !slices.Contains(imageless, d.Name()) {
			t.Errorf("the face %s is not tested", d.Name())
		}
	}
	for name, one := range all {
		t.Run(name, func(t *testing.T) {
			if name == "mesos" && os.Geteuid() != 0 {
				t.Skip("the face gives sandboxes to their users, which only root may")
			}
			n := enginetest.Fakes(t)
			n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
			n.Start()
			n.Supervisor.Program("hello", func(*enginetest.Process) int { return 0 })
			n.AddImage("db:1", imagespec.ImageConfig{Volumes: map[string]struct{}{"/data/db": {}, "/data/file/x": {}}}, map[string]string{
				"etc/passwd": "root:x:0:0::/root:/bin/sh\n", "etc/group": "root:x:0:\n", "data/file": "no directory",
			})
			sockets, err := os.MkdirTemp("", "ls") // a socket's address is short
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = os.RemoveAll(sockets) })
			socket := filepath.Join(sockets, "s")
			l, err := new(net.ListenConfig).Listen(t.Context(), "unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			serve := one.serve(t, n)
			ctx, cancel := context.WithCancel(context.Background())
			done := make(chan error, 1)
			go func() { done <- serve(ctx, l) }()
			t.Cleanup(func() {
				cancel()
				if err := <-done; err != nil {
					t.Errorf("serve: %v", err)
				}
			})
			if err := one.create(t, socket, "db:1"); err != nil {
				t.Fatal(err)
			}
			list, err := n.Engine.All().Containers(t.Context(), core.Filter{})
			if err != nil || len(list) != 1 {
				t.Fatalf("%d containers, %v", len(list), err)
			}
			if st, err := os.Stat(filepath.Join(list[0].Bundle, "rootfs/data/db")); err != nil || !st.IsDir() {
				t.Errorf("a volume of the image is no directory: %v", err)
			}
		})
	}
}

package control_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
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
	n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
	n.Start()
	// A socket's path must be short, and a test's directory may be long.
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

// ownGroup returns the number of this process's group, which any user may set on own files.
func ownGroup() string { return strconv.Itoa(os.Getgid()) }

func (r *rig) serve(t *testing.T) {
	t.Helper()
	srv, err := control.New(control.Options{
		Engine: r.Engine, Transfers: r.Images, LogDir: r.logs, Version: "1.2.3", Logger: slog.New(slog.NewTextHandler(r.agentLog, nil)),
		Doctor: func(context.Context, bool) []control.Finding {
			return []control.Finding{{Name: "kernel", Status: control.FindingOK, Detail: "fine"}}
		},
		Check: func(ctx context.Context, _ bool) ([]control.Finding, error) {
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
	ls, err := control.Listen(t.Context(), r.sockets, control.Config{ReadSocket: read, ReadGroup: ownGroup()})
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

// create creates a container and returns its name.
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
	img, err := r.As(core.OwnerCRI).Images.Get(t.Context(), image)
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

// waitFor follows the event log until match returns true.
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

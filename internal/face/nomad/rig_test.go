package nomad_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	nomadstructs "github.com/longshore/longshore/api/nomad/structs"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/nomad"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
)

const allocID = "5f0f0c4e-8d5c-4f3d-9a5d-000000000001"

// rig is the face over a fake node, and a plugin that brings it calls.
type rig struct {
	*enginetest.Node
	*nomadtest.Client
	t      *testing.T
	dir    string // Nomad's directory of allocations
	socket string
	face   nomad.Config // the face's configuration beside the defaults
	stop   func()
}

func newRig(t *testing.T, config map[string]any) *rig {
	t.Helper()
	return newRigWith(t, config, nomad.Config{})
}

// newRigWith is newRig with something of the agent's own configuration.
func newRigWith(t *testing.T, config map[string]any, face nomad.Config) *rig {
	t.Helper()
	n := enginetest.Fakes(t)
	n.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: n.Runtime}}
	sockets, err := os.MkdirTemp("", "ls") // a socket's address is short, a test's directory need not be
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	r := &rig{Node: n, t: t, face: face, dir: t.TempDir(), socket: filepath.Join(sockets, "nomad.sock")}
	for _, d := range []string{"alloc/logs", "web/local", "web/secrets"} {
		if err := os.MkdirAll(filepath.Join(r.dir, allocID, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.AddImage("busybox", ocispec.ImageConfig{Cmd: []string{"sh"}, Env: []string{"PATH=/bin", "FROM=image"}}, map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nweb:x:33:33::/srv:/bin/sh\n", "etc/group": "root:x:0:\nweb:x:33:\nextra:x:44:web\n",
	})
	n.Supervisor.Program("sh", func(p *enginetest.Process) int {
		<-p.Killed
		return 0
	})
	n.Supervisor.Program("cat", func(p *enginetest.Process) int {
		_, _ = io.Copy(p.Stdout(), p.Stdin)
		return 0
	})
	n.Supervisor.Program("both", func(p *enginetest.Process) int {
		_, _ = fmt.Fprintln(p.Stdout(), "out")
		_, _ = fmt.Fprintln(p.Stderr(), "err")
		return 7
	})
	n.Supervisor.Program("long", func(p *enginetest.Process) int {
		_, _ = fmt.Fprintln(p.Stdout(), strings.Repeat("x", 5000))
		return 0
	})
	r.start()
	if config == nil {
		config = map[string]any{}
	}
	config["socket"] = r.socket
	r.Client = nomadtest.Relay(t)
	r.Configure(t, config, nil)
	return r
}

// start runs engine and face, as an agent's start does.
func (r *rig) start() {
	r.t.Helper()
	r.Start()
	config := nomad.DefaultConfig()
	config.CredentialHelpers = r.face.CredentialHelpers
	f, err := nomad.New(nomad.Options{
		Deps:   face.Deps{Engine: r.As(core.OwnerNomad), Logger: slog.New(slog.DiscardHandler), Version: "1.2.3"},
		Config: config, Archives: r.Images,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	_ = os.Remove(r.socket)
	l, err := new(net.ListenConfig).Listen(r.t.Context(), "unix", r.socket)
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Serve(ctx, l) }()
	r.stop = func() {
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("serve: %v", err)
		}
		r.stop = func() {}
	}
	r.t.Cleanup(func() { r.stop() })
}

// restart is the agent's death and its next start.
func (r *rig) restart() {
	r.t.Helper()
	r.stop()
	r.Stop()
	r.start()
}

// task is a task of busybox, with more put over its configuration.
func (r *rig) task(suffix string, more map[string]any) *nomaddriver.TaskConfig {
	config := map[string]any{"image": "busybox:1.36", "command": "sh", "entrypoint": nil, "force_pull": nil, "labels": []any{map[string]any{"team": "blue"}}}
	r.AddImage("busybox:1.36", ocispec.ImageConfig{Env: []string{"PATH=/bin", "FROM=image"}}, map[string]string{
		"etc/passwd": "root:x:0:0::/root:/bin/sh\nweb:x:33:33::/srv:/bin/sh\n", "etc/group": "root:x:0:\nweb:x:33:\nextra:x:44:web\n",
	})
	for k, v := range more {
		config[k] = v
	}
	return nomadtest.Task(r.dir, allocID, "web", suffix, config)
}

// run starts a task and returns its container.
func (r *rig) run(t *nomaddriver.TaskConfig) (*nomaddriver.StartTaskResponse, core.Container) {
	r.t.Helper()
	resp, err := r.Driver.StartTask(r.t.Context(), &nomaddriver.StartTaskRequest{Task: t})
	if err != nil {
		r.t.Fatal(err)
	}
	c, err := r.As(core.OwnerNomad).ContainerByKey(r.t.Context(), core.Key(t.GetId()))
	if err != nil {
		r.t.Fatal(err)
	}
	return resp, c
}

func main(c core.Container) core.Ref { return core.Ref{Container: c.ID} }

// wantStartError asserts that a start fails, with a text, and whether it may be
// tried again.
func (r *rig) wantStartError(t *nomaddriver.TaskConfig, recoverable bool, text string) {
	r.t.Helper()
	_, err := r.Driver.StartTask(r.t.Context(), &nomaddriver.StartTaskRequest{Task: t})
	st := status.Convert(err)
	if st.Code() != codes.FailedPrecondition || !strings.Contains(st.Message(), text) {
		r.t.Errorf("got %v, want FailedPrecondition with %q", err, text)
		return
	}
	if len(st.Details()) == 0 {
		r.t.Errorf("%v has no details", err)
		return
	}
	if d, ok := st.Details()[0].(*nomadstructs.RecoverableError); !ok || d.GetRecoverable() != recoverable {
		r.t.Errorf("%v: detail %v, want recoverable %v", err, st.Details()[0], recoverable)
	}
}

func wantError(t *testing.T, err error, text string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), text) || status.Code(err) == codes.Unavailable {
		t.Errorf("got %v, want %q", err, text)
	}
}

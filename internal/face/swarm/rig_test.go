package swarm_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/face/swarm/overlays"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/state"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// rig is a node of fakes, the face over it, and a manager.
type rig struct {
	*enginetest.Node
	*swarmtest.Manager
	t      *testing.T
	face   *swarm.Face
	kv     core.KV
	config swarm.Config
	root   string
	state  string
	gossip overlays.Gossip
	stop   func() // ends the face
}

// image is the image of the tests' tasks. Its programs are sleep, which runs until a signal, and
// well and badly, which end at once.
const image = "busybox:latest"

func newRig(t *testing.T) *rig {
	t.Helper()
	return newRigWith(t, swarm.DefaultConfig())
}

func newRigWith(t *testing.T, cfg swarm.Config) *rig {
	t.Helper()
	r := &rig{config: cfg, Node: enginetest.Fakes(t), Manager: swarmtest.New(t), t: t, kv: state.NewMemory(64).Scope(core.OwnerSwarm, true), root: t.TempDir(), state: t.TempDir()}
	r.Options.Runtimes = []core.Runtime{enginetest.Bundles{Runtime: r.Runtime}}
	r.Images.Offer(image, imagespec.ImageConfig{}, map[string]string{"etc/passwd": "web:x:33:33::/srv:/bin/sh\n"})
	r.Supervisor.Program("well", func(*enginetest.Process) int { return 0 })
	r.Supervisor.Program("badly", func(*enginetest.Process) int { return 7 })
	r.start()
	return r
}

// start starts the engine and the face, as an agent does.
func (r *rig) start() {
	r.t.Helper()
	r.Start()
	var err error
	r.face, err = swarm.New(swarm.Options{
		Deps: face.Deps{Engine: r.As(core.OwnerSwarm), Logger: slog.New(slog.DiscardHandler), KV: r.kv},
		Root: r.root, State: r.state, MountFiles: func(string) error { return nil }, Config: r.config, Heartbeat: r.Period, Gossip: r.gossip, Overlays: r.Overlays,
	})
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func(f *swarm.Face) { served <- f.Serve(ctx) }(r.face)
	r.stop = func() {
		cancel()
		if err := <-served; err != nil {
			r.t.Errorf("serve: %v", err)
		}
		r.stop = func() {}
	}
	r.t.Cleanup(func() { r.stop() })
}

// down is the agent's death, as far as the engine and the face know.
func (r *rig) down() {
	r.stop()
	r.Stop()
}

func (r *rig) join() {
	r.t.Helper()
	s, err := r.face.Join(r.t.Context(), swarm.JoinRequest{Addr: r.Addr, Token: r.Token})
	if err != nil || s.NodeID == "" || s.ClusterID != r.Authority.Cluster {
		r.t.Fatalf("join: %+v, %v", s, err)
	}
	r.Until("there is a session", func() bool { return r.Sessions() == 1 })
}

// container is that of a task.
func (r *rig) container(id string) core.Container {
	r.t.Helper()
	c, err := r.As(core.OwnerSwarm).ContainerByKey(r.t.Context(), core.Key(id))
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// gone waits until a task has no sandbox.
func (r *rig) gone(id string) {
	r.t.Helper()
	r.happens(id, core.EventSandboxRemoved)
}

// happens waits for an event of a task's.
func (r *rig) happens(id string, kind core.EventKind) {
	r.t.Helper()
	for e, err := range r.As(core.OwnerSwarm).Events(r.t.Context(), 0, core.Filter{Kinds: []core.EventKind{kind}}) {
		if err != nil {
			r.t.Fatal(err)
		}
		if e.Key == core.Key(id) {
			return
		}
	}
}

// clean asserts that nothing is left on the node.
func (r *rig) clean() {
	r.t.Helper()
	r.Settle()
	r.Clean()
	if left := r.Left(); len(left) > 0 {
		r.t.Errorf("left: %v", left)
	}
	if left := r.leftInDirs(); len(left) > 0 {
		r.t.Errorf("left: %v", left)
	}
}

// leftInDirs are the files of tasks that there are.
func (r *rig) leftInDirs() (left []string) {
	r.t.Helper()
	for _, dir := range []string{filepath.Join(r.state, "files"), filepath.Join(r.root, "logs")} {
		entries, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			r.t.Error(err)
		}
		for _, e := range entries {
			left = append(left, filepath.Join(dir, e.Name()))
		}
	}
	return left
}

// rises asserts that the statuses of a task never go down, and end with one.
func (r *rig) rises(id string, last swarmv1.TaskState) {
	r.t.Helper()
	r.risesIn(r.Statuses(id), last)
}

func (r *rig) risesIn(list []*swarmv1.TaskStatus, last swarmv1.TaskState) {
	r.t.Helper()
	before := swarmv1.TaskState_NEW
	for _, s := range list {
		if s.GetState() < before {
			r.t.Errorf("%s after %s", s.GetState(), before)
		}
		before = s.GetState()
	}
	if before != last {
		r.t.Errorf("the last status is %s, want %s", before, last)
	}
}

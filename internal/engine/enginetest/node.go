// Package enginetest gives tests a real engine over fakes: a node in memory with processes that the
// test controls, or that run a Program of the test.
//
// It knows no face. Start at New.
package enginetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/boot"
	"github.com/longshore/longshore/internal/engine/joins"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/volumes"
	"github.com/longshore/longshore/internal/state"
	"github.com/longshore/longshore/internal/volume"
)

// Node is the fake node. Its fakes outlive the engine, so that a test can crash the engine and
// start another one.
type Node struct {
	Runtime    *Runtime
	Supervisor *Supervisor
	Images     *Images
	Network    *Network
	Overlays   *Overlays
	Pinner     *Pinner
	Cgroups    *Cgroups
	Roots      *Roots
	OOMLog     *OOMLog
	Volumes    *volume.Local
	Sleeper    *Sleeper
	// Checkpointer is no part of Options: verbs of checkpoints are not the engine's.
	Checkpointer *Checkpointer
	Policy       *Policy // the policy in Options, which sees every operation

	// Engine is the running engine. Restart and Start replace it.
	Engine *engine.Engine
	// Options are those of the next engine.
	Options engine.Options

	tb   testing.TB
	stop func()
	// crash controls the engines started from now on; nil without.
	crash *Crash
}

// New returns a node with a recovered engine that runs until the test ends. Its state is in memory
// and in a directory of the test.
func New(tb testing.TB) *Node {
	tb.Helper()
	n := Fakes(tb)
	n.Start()
	return n
}

// Fakes returns a node without a running engine, for tests that change Options first; they call
// Start.
func Fakes(tb testing.TB) *Node {
	tb.Helper()
	dir := tb.TempDir()
	vols, err := volume.New(filepath.Join(dir, "volumes"))
	if err != nil {
		tb.Fatal(err)
	}
	n := &Node{tb: tb, Volumes: vols}
	n.OOMLog, n.Policy = &OOMLog{}, &Policy{}
	n.Cgroups = newCgroups()
	n.Supervisor = newSupervisor()
	n.Cgroups.killed, n.Cgroups.pids = n.Supervisor.killCgroup, n.Supervisor.cgroupPids
	n.Runtime = &Runtime{name: "fake", sup: n.Supervisor, cgroups: n.Cgroups, kept: map[core.ID]core.RuntimeCreate{}}
	n.Sleeper = &Sleeper{cgroups: n.Cgroups, kept: map[core.ID]*kept{}}
	n.Checkpointer = &Checkpointer{node: n, kept: map[core.ID]storedProcesses{}}
	n.Images = newImages()
	n.Network = newNetwork()
	n.Overlays = newOverlays(n.Network)
	n.Pinner = &Pinner{dir: filepath.Join(dir, "pins"), pinned: map[core.ID][]specs.LinuxNamespaceType{}}
	n.Roots = &Roots{images: n.Images, mounts: map[string][]core.Mount{}}
	n.Options = engine.Options{
		Store: state.NewMemory(0), Runtimes: []core.Runtime{n.Runtime}, Supervisor: n.Supervisor, Images: n.Images,
		Network: n.Network, Pinner: n.Pinner, Cgroups: n.Cgroups, Roots: n.Roots, Volumes: vols, OOMLog: n.OOMLog, Sleeper: n.Sleeper, Egress: anyList{}, Policies: []core.Policy{n.Policy},
		State: filepath.Join(dir, "state"), Init: "/usr/libexec/longshore-keeper",
	}
	n.Options.Return, n.Options.Joins = n.returner, n.joiner
	tb.Cleanup(func() {
		if n.stop != nil {
			n.stop()
		}
		n.Supervisor.close()
	})
	return n
}

// returner brings durable objects back with the ports that the next engine has.
func (n *Node) returner(t *volumes.Table) core.Returner {
	o := &n.Options
	return &boot.Boot{
		Records: scope.Records{Store: o.Store}, Restarts: o.Restarts, Images: o.Images, Roots: o.Roots, Cgroups: o.Cgroups, Volumes: t,
		State: o.State, Logger: slog.New(slog.DiscardHandler),
	}
}

// joiner joins namespaces with the ports that the next engine has.
func (n *Node) joiner(r scope.Records, lock scope.Lock) core.Joiner {
	return joins.Table{Records: r, Lock: lock, Cgroups: n.Options.Cgroups, Pinner: n.Options.Pinner}
}

// AddRuntime configures another fake runtime on the same fakes. Call it before Start.
func (n *Node) AddRuntime(name string) *Runtime {
	rt := &Runtime{name: name, sup: n.Supervisor, cgroups: n.Cgroups, kept: map[core.ID]core.RuntimeCreate{}}
	n.Options.Runtimes = append(n.Options.Runtimes, rt)
	return rt
}

// AddNamedRuntime is AddRuntime for one that runs only containers that name it.
func (n *Node) AddNamedRuntime(name string) *Runtime {
	rt := n.AddRuntime(name)
	n.Options.Runtimes[len(n.Options.Runtimes)-1] = named{rt}
	return rt
}

type named struct{ *Runtime }

func (named) OnlyWhenNamed() {}

// Start makes an engine with n.Options, lets it recover, and runs it.
func (n *Node) Start() {
	n.tb.Helper()
	if err := n.TryStart(); err != nil {
		n.tb.Fatal(err)
	}
}

// TryStart is Start for tests that expect an error.
func (n *Node) TryStart() error {
	if n.crash != nil && n.crash.Dead() {
		n.crash.At("")
	}
	n.Overlays.restarted()
	e, err := engine.New(n.Options)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := e.Recover(ctx); err != nil {
		cancel()
		return err
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := e.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			n.tb.Errorf("engine: %v", err)
		}
	})
	n.Engine = e
	n.stop = func() { cancel(); wg.Wait() }
	return n.Supervisor.listened(ctx)
}

// Stop ends the engine as the death of its process would; the fakes remain.
func (n *Node) Stop() {
	if n.stop == nil {
		return
	}
	n.stop()
	n.stop, n.Engine = nil, nil
}

// Restart is Stop and Start.
func (n *Node) Restart() {
	n.tb.Helper()
	n.Stop()
	n.Start()
}

// As returns the engine as one owner sees it.
func (n *Node) As(owner core.Owner) *engine.Client { return n.Engine.As(owner) }

// AddImage puts an image into the store of every owner. files are its content
// by path.
func (n *Node) AddImage(name string, cfg ocispec.ImageConfig, files map[string]string) core.Image {
	return n.Images.add(name, cfg, files)
}

// Pod creates a sandbox with a network, ipc and uts namespace of its own.
func (n *Node) Pod(owner core.Owner, key core.Key) core.Sandbox {
	n.tb.Helper()
	shared := core.Namespace{Mode: core.Shared}
	sb, err := n.As(owner).CreateSandbox(n.tb.Context(), core.SandboxConfig{
		Key: key, Hostname: "pod", Namespaces: core.Namespaces{Net: shared, IPC: shared, UTS: shared},
	})
	if err != nil {
		n.tb.Fatal(err)
	}
	return sb
}

// Args returns a SpecFunc that runs a command.
func Args(args ...string) core.SpecFunc {
	return func(context.Context, core.Rootfs) (*specs.Spec, []byte, error) {
		return &specs.Spec{Process: &specs.Process{Args: args, Cwd: "/"}}, nil, nil
	}
}

// Container creates a container from an image of AddImage.
func (n *Node) Container(sb core.Sandbox, key core.Key, image core.Image, args ...string) core.Container {
	n.tb.Helper()
	c, err := n.As(sb.Owner).CreateContainer(n.tb.Context(), core.ContainerConfig{
		Key: key, Sandbox: sb.ID, Root: core.Root{Image: image.ID}, Spec: Args(args...), Stop: core.Stop{Grace: 10 * time.Second},
	})
	if err != nil {
		n.tb.Fatal(err)
	}
	return c
}

// Running creates a container and starts it.
func (n *Node) Running(sb core.Sandbox, key core.Key, image core.Image, args ...string) core.Container {
	n.tb.Helper()
	c := n.Container(sb, key, image, args...)
	if err := n.As(sb.Owner).StartContainer(n.tb.Context(), c.ID); err != nil {
		n.tb.Fatal(err)
	}
	return c
}

// Clean fails the test when the engine finds violations of its invariants.
func (n *Node) Clean() {
	n.tb.Helper()
	list, err := n.Engine.Check(n.tb.Context())
	if err != nil {
		n.tb.Fatal(err)
	}
	for _, v := range list {
		n.tb.Errorf("violation: %s", v)
	}
}

// Settle waits until the engine has recorded every exit.
func (n *Node) Settle() {
	n.tb.Helper()
	ctx, cancel := context.WithTimeout(n.tb.Context(), time.Minute)
	defer cancel()
	if err := n.TrySettle(ctx); err != nil {
		n.tb.Fatal(err)
	}
}

// KeeperDies kills the keeper. gone, which may be nil, selects the processes that die with it
// because their nest does. It returns when the engine has asked the next keeper for its
// processes.
func (n *Node) KeeperDies(gone func(core.Ref) bool) {
	n.tb.Helper()
	n.Supervisor.Crash(gone)
	ctx, cancel := context.WithTimeout(n.tb.Context(), time.Minute)
	defer cancel()
	if err := n.Supervisor.listened(ctx); err != nil {
		n.tb.Fatal(err)
	}
}

// TrySettle is Settle with a context and an error.
func (n *Node) TrySettle(ctx context.Context) error {
	if err := n.Supervisor.settled(ctx); err != nil {
		return fmt.Errorf("exits that nobody took: %w", err)
	}
	return nil
}

// Reboot drops everything that does not survive a boot of the node: processes, mounts, pinned
// namespaces, cgroups, the state of runtimes, and the state directory. Stop the engine before, and
// give the next one a store without records.
func (n *Node) Reboot() {
	n.tb.Helper()
	n.Supervisor.Crash(func(core.Ref) bool { return true })
	n.Pinner.Reboot()
	n.Roots.Reboot()
	n.Cgroups.reboot()
	n.Network.reboot()
	n.Runtime.reboot()
	if err := os.RemoveAll(n.Options.State); err != nil {
		n.tb.Fatal(err)
	}
}

// Left returns the names of everything that the fakes hold, for tests that nothing is left.
func (n *Node) Left() []string {
	ctx := context.Background()
	var left []string
	add := func(what string, ids []core.ID, err error) {
		if err != nil {
			n.tb.Error(err)
		}
		for _, id := range ids {
			left = append(left, fmt.Sprintf("%s %s", what, id))
		}
	}
	ids, err := n.Images.Checkouts(ctx)
	add("checkout", ids, err)
	ids, err = n.Pinner.Pinned(ctx)
	add("pin", ids, err)
	ids, err = n.Network.Sandboxes(ctx)
	add("network", ids, err)
	ids, err = n.Runtime.List(ctx)
	add("runtime", ids, err)
	ids, err = n.Checkpointer.Stored(ctx)
	add("checkpoint", ids, err)
	cgs, err := n.Cgroups.List(ctx)
	for _, cg := range cgs {
		add("cgroup", []core.ID{core.ID(cg)}, err)
	}
	mounts, err := n.Roots.Mounted(ctx, "/")
	for _, m := range mounts {
		add("mount", []core.ID{core.ID(m)}, err)
	}
	procs, err := n.Supervisor.Processes(ctx)
	for _, p := range procs {
		add("process", []core.ID{p.Ref.Container + "/" + core.ID(p.Ref.Process)}, err)
	}
	slices.Sort(left)
	return left
}

func digestOf(s string) digest.Digest { return digest.FromString(s) }

// Package agent assembles a node: it opens the engine's ports, recovers, and lets the faces and the
// control API serve. It is the one place that knows all implementations, and does nothing else.
//
// Start at Run, which reads top to bottom.
package agent

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/adjust"
	"github.com/longshore/longshore/internal/adjust/cdi"
	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/doctor"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face"
	"github.com/longshore/longshore/internal/face/cri"
	"github.com/longshore/longshore/internal/face/cri/nri"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/grant/board/broker"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/kmsg"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/obs"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/pin"
	"github.com/longshore/longshore/internal/programs"
	"github.com/longshore/longshore/internal/rootfs"
	"github.com/longshore/longshore/internal/state"
	"github.com/longshore/longshore/internal/state/bolt"
)

// Options are the parameters of Run.
type Options struct {
	Config  config.Config
	Logger  *slog.Logger
	Level   *slog.LevelVar // the level of Logger; nil when it cannot be changed
	Version string
	// Teardown makes Run stop and remove the sandboxes of every owner, instead of serving.
	// Nothing keeps running, also no keeper. Images and volumes stay.
	Teardown bool
	// Grace is how long containers have to end by themselves before Teardown kills them.
	Grace time.Duration
}

// node is everything that Run opened, for doctor and the shutdown.
type node struct {
	cfg     config.Config
	log     *slog.Logger
	level   *slog.LevelVar
	version string
	started time.Time
	metrics *obs.Metrics
	limits  *connlimit.Table
	// unanswered are the questions of sandboxes that the name server did not answer.
	unanswered unanswered
	store      *state.Store
	keeper     *keeper.Client
	images     *image.Store
	board      *broker.Client
	boardAPI   *boardAPI
	modules    modules         // nil if compiled modules cannot be kept
	programs   *programs.Store // nil without CRI's API of 2017
	network    *network.Network
	cgroups    *cgroup.Tree
	runtimes   runtimes
	spare      *pin.Spare
	release    func() error // removes the native runtime's shared files
	engine     *engine.Engine
	nri        *nri.Host   // nil without a socket for plugins
	swarm      *swarm.Face // nil without the face
	criu       criuProbe
	// scrapes is the handler of CRI's metrics of pods; nil until that face exists.
	scrapes atomic.Pointer[http.Handler]
	// recovered is closed when the engine has recovered.
	recovered chan struct{}
	trialMu   sync.Mutex // serializes doctor's trials
	tended    tended
	findings  doctor.Board
	// exposed receives when redundancy may have changed; it has room for one.
	exposed chan struct{}
}

// Run runs the agent until ctx ends. Containers keep running without it. When there are none, Run
// also ends the keeper and removes the bridge and the cgroups.
func Run(ctx context.Context, o Options) (err error) {
	n := &node{cfg: o.Config, log: o.Logger, level: o.Level, version: o.Version, started: time.Now(), release: func() error { return nil }, exposed: make(chan struct{}, 1)}
	root, run := n.cfg.Agent.Root, n.cfg.Agent.State
	if _, err := os.Stat(run); o.Teardown && errors.Is(err, fs.ErrNotExist) {
		return nil // no agent has run since the boot
	}
	unix.Umask(0o022) // the caller's must not affect volumes and containers
	if before, after := raiseFiles(); before != after {
		n.log.Info("raised the limit of descriptors", "from", before, "to", after)
	}
	makeRoom() // the start allocates more than all that follows
	unlock, err := lock(root, run)
	if err != nil {
		return err
	}
	defer unlock()
	release, err := n.claimNetwork(ctx)
	if err != nil {
		return err
	}
	defer release()
	obs.BridgeLogrus(n.log)
	obs.BridgeGRPC(n.log)
	cri.BridgeKlog(n.log)
	n.metrics = obs.New(obs.Options{Version: n.version, Node: n.nodeStats})
	n.limits = connlimit.NewTable(n.log)
	if err := n.metrics.Register(obs.Connections(n.limits.Usage)); err != nil {
		return fmt.Errorf("agent: metrics of connections: %w", err)
	}
	if err := n.metrics.Register(obs.UnansweredNames(n.unanswered.load)); err != nil {
		return fmt.Errorf("agent: metrics of the name server: %w", err)
	}
	if err := n.metrics.Register(&n.findings); err != nil {
		return fmt.Errorf("agent: metrics of findings: %w", err)
	}

	n.modules = openModules(root, n.log)
	spare := newReserves(root, run, n.log)

	// Open the engine's ports, from the bottom up. The images do not depend on the rest.
	images := later(func() (*image.Store, error) {
		return image.New(image.Options{
			Root: filepath.Join(root, "image"), Config: n.cfg.Images, Logger: n.log, UserAgent: "longshore/" + n.version,
			Verify: n.verifyBinary, Pulled: n.metrics.Pulled, Modules: n.modules, Full: spare.root.Release,
		})
	})
	defer func() {
		if s, _ := images(); s != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	if n.store, err = bolt.Open(bolt.Options{
		State: run, Root: root, StateFull: spare.state.Release, RootFull: spare.root.Release, Logger: n.log, Observer: func(took time.Duration) { n.metrics.StoreTransaction("update", took) },
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.store.Close()) }()
	binary, err := n.keeperBinary()
	if err != nil {
		return err
	}
	if n.keeper, err = keeper.New(ctx, keeper.Options{StateDir: filepath.Join(run, "keeper"), Binary: binary, Started: n.settleKeeper, Changed: redundancy{n}.changed, LateCopies: true, VersionOf: builtVersion, Logger: n.log}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.keeper.Close()) }()
	if n.images, err = images(); err != nil {
		return err
	}
	if n.programs, err = openPrograms(n); err != nil {
		return err
	}
	if n.network, err = network.New(network.Options{
		Config: n.cfg.Network, Avoid: rangesOfOthers(n.cfg), Store: n.store.Scope("network", true), Leases: n.store.Scope("leases", false), StateDir: filepath.Join(run, "cni"), Logger: n.log,
		Names: &names.Options{Dir: filepath.Join(run, "names"), Command: []string{"/proc/self/exe", names.Arg}, Holder: n.keeper.Held(), Started: func(ctx context.Context, pid int) {
			settle(ctx, n.log, fmt.Sprintf("longshore-names-%d.scope", pid), pid)
		}, Unanswered: n.unanswered.store},
	}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.network.Close()) }()
	if n.cgroups, err = n.openCgroups(ctx); err != nil {
		return err
	}
	n.spare = pin.NewSpare()
	defer func() { err = errors.Join(err, n.spare.Close()) }()
	pins, err := pin.New(pin.Options{Dir: filepath.Join(run, "ns"), Make: n.keeper.Namespaces, Spare: n.spare, Logger: n.log})
	if err != nil {
		return err
	}
	volumes, err := openVolumes(filepath.Join(root, "volumes"), n.log)
	if err != nil {
		return err
	}
	if n.board, err = openBoard(n); err != nil {
		return err
	}
	defer n.board.Close()
	if n.runtimes, err = n.findRuntimes(ctx); err != nil {
		return err
	}
	given, err := ocispec.ReadNode()
	if err != nil {
		return err
	}
	devices, err := cdi.New(n.cfg.Engine.CDIDirs)
	if err != nil {
		return err
	}
	if n.nri, err = n.pluginHost(devices); err != nil {
		return err
	}

	// The engine recovers before anybody can call it.
	if err := rootfs.MakeOwnMount(filepath.Join(run, engine.Sandboxes)); err != nil {
		return fmt.Errorf("make the sandboxes' directory a mount: %w", err)
	}
	n.engine, err = engine.New(engine.Options{
		Store: n.store, Runtimes: n.runtimes.usable, Default: n.runtimes.chosen, Supervisor: n.keeper, Images: n.images, Network: n.network,
		Pinner: pins, Cgroups: n.cgroups, Roots: rootfs.New(rootfs.Options{Users: n.keeper.Namespaces, Logger: n.log}), Volumes: volumes, OOMLog: kmsg.New(kmsg.Options{Logger: n.log}),
		Policies: adjust.Policies(adjust.Options{CDI: devices, Owners: n.owned(), Node: given}),
		State:    run, Init: binary, Files: n.files, Observer: stages{n.metrics}, Logger: n.log, FailPoint: failPoint(os.Getenv(failPointEnv)),
	})
	if err != nil {
		return err
	}
	if o.Teardown {
		return teardown(ctx, n, o.Grace)
	}
	// A client that connects during the recovery waits for it, and need not try again.
	sockets, err := n.listen(ctx)
	if err != nil {
		return err
	}
	defer sockets.close()
	ctx, stop := context.WithCancel(ctx)
	group, ctx := errgroup.WithContext(ctx)
	defer func() {
		stop()
		_ = group.Wait()
	}()
	// The clients of faces that serve early get an answer meanwhile.
	n.recovered = make(chan struct{})
	early, err := n.openFaces(ctx, true)
	if err != nil {
		return err
	}
	serve := func(f face.Face) {
		group.Go(func() error {
			n.superviseFace(ctx, f, sockets)
			return nil
		})
	}
	for _, f := range early {
		serve(f)
	}
	if err := n.engine.Recover(ctx); err != nil {
		return fmt.Errorf("recover: %w", err)
	}
	if err := recoverBoard(ctx, n); err != nil {
		n.log.Warn("could not send the processes of containers to the board; their handles stay until their last descriptor is closed", "error", err)
	}
	close(n.recovered)
	if err := (trials{n}).end(ctx); err != nil {
		n.log.Warn("could not remove the test container of an earlier doctor", "error", err)
	}

	// Open the faces and the control API.
	faces, err := n.openFaces(ctx, false)
	if err != nil {
		return err
	}
	controller, err := n.controller()
	if err != nil {
		return err
	}
	stopEngine := n.runEngine(ctx, group)
	defer stopEngine()
	if n.cfg.Engine.GrantsPolicy != "" {
		sockets.control.Board = n.boardAPI
	}
	group.Go(func() error { return controller.Serve(ctx, sockets.control) })
	if sockets.metrics != nil {
		group.Go(func() error { return serveHTTP(ctx, sockets.metrics, sockets.metricsHandler) })
	}
	for _, f := range faces {
		serve(f)
	}
	group.Go(func() error { return n.tellSystemd(ctx) })
	group.Go(func() error {
		n.keeper.AskCopies()
		n.tend(ctx)
		return nil
	})
	group.Go(func() error {
		tendHeap(ctx)
		return nil
	})
	group.Go(func() error {
		spare.tend(ctx)
		return nil
	})
	n.log.Info("agent is ready", "version", n.version, "root", root, "state", run, "runtime", n.runtimes.chosen, "took", time.Since(n.started))
	err = group.Wait()
	stopEngine()
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		err = nil
	}
	return errors.Join(err, n.leave(context.WithoutCancel(ctx)))
}

// runEngine runs the engine in a group until stop is called, also after ctx has ended: ends during
// the shutdown, such as those of clients' sessions, are still recorded.
func (n *node) runEngine(ctx context.Context, group *errgroup.Group) (stop func()) {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	ended := make(chan struct{})
	var err error
	go func() {
		defer close(ended)
		err = n.engine.Run(own)
	}()
	group.Go(func() error {
		select {
		case <-ended:
			return err
		case <-ctx.Done():
			return nil
		}
	})
	return func() {
		cancel()
		<-ended
	}
}

// later starts to open something; calling the returned function waits for the result.
func later[T any](open func() (T, error)) func() (T, error) {
	opened := sync.OnceValues(open)
	go func() { _, _ = opened() }()
	return opened
}

// openPrograms opens the images that are one file each; nil unless the config enables the API that
// has them.
func openPrograms(n *node) (*programs.Store, error) {
	c := n.cfg.Face.CRI
	if !c.Enabled || !c.Alpha.Enabled {
		return nil, nil //nolint:nilnil // a nil store is empty
	}
	return programs.Open(cmp.Or(c.Alpha.ImageDirectory, filepath.Join(n.cfg.Agent.Root, "programs")))
}

// pluginHost returns the host of the CRI face's plugins; nil unless the config has a socket for
// them.
func (n *node) pluginHost(devices *cdi.Devices) (*nri.Host, error) {
	if !n.cfg.Face.CRI.Enabled {
		return nil, nil //nolint:nilnil // a nil host has no plugins
	}
	nri.BridgeLog(n.log)
	return cri.NewNRI(n.cfg.Face.CRI, n.log, n.version, devices.Inject)
}

// owned returns the policies of single owners.
func (n *node) owned() (owned []adjust.Owned) {
	if n.nri != nil {
		owned = append(owned, adjust.Owned{Owner: core.OwnerCRI, Policy: n.nri})
	}
	return owned
}

func (n *node) controller() (*control.Server, error) {
	return control.New(control.Options{
		Engine: n.engine, LogDir: filepath.Join(n.cfg.Agent.Root, "logs"), Logger: n.log, Doctor: n.doctor, Check: n.check, Config: n.shownConfig,
		LostOutput: n.lostOutput, Version: n.version, Started: n.started, Metrics: n.metrics, HTTP: n.httpHandler(), Swarm: membershipOf(n.swarm), Networks: n.network, Programs: n.programs, Transfers: n.images,
		Paused: n.store.Scope("commits", false), Namespaces: n.keeper.Namespaces,
	})
}

// leave is the shutdown. Containers keep running; when there are none, the agent removes
// everything of its own.
func (n *node) leave(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	sandboxes, err := n.engine.All().Sandboxes(ctx, core.Filter{})
	if err != nil || len(sandboxes) > 0 {
		n.log.Info("agent stops; containers keep running", "sandboxes", len(sandboxes))
		return err
	}
	n.log.Info("agent stops and removes keeper and network, because no container is left")
	return errors.Join(n.board.Release(), n.keeper.Shutdown(ctx), n.network.Release(ctx), n.cgroups.Release(ctx), n.release(), rootfs.RemoveOwnMount(filepath.Join(n.cfg.Agent.State, engine.Sandboxes)))
}

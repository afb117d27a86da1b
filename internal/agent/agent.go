// Package agent assembles a node: it opens the engine's ports, recovers, and lets the faces and the
// control API serve. It is the one place that knows all implementations, and does nothing else.
//
// Start at Run: open.go opens the parts, serve.go recovers and serves.
package agent

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/longshore/longshore/internal/adjust"
	"github.com/longshore/longshore/internal/adjust/cdi"
	"github.com/longshore/longshore/internal/agent/trial"
	"github.com/longshore/longshore/internal/cgroup"
	"github.com/longshore/longshore/internal/checkpoint"
	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/control"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/disk"
	"github.com/longshore/longshore/internal/doctor"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/users"
	"github.com/longshore/longshore/internal/face/cri"
	"github.com/longshore/longshore/internal/face/cri/nri"
	"github.com/longshore/longshore/internal/face/swarm"
	"github.com/longshore/longshore/internal/grant/board/broker"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/obs"
	"github.com/longshore/longshore/internal/pin"
	"github.com/longshore/longshore/internal/programs"
	"github.com/longshore/longshore/internal/rootfs"
	"github.com/longshore/longshore/internal/sleep"
	"github.com/longshore/longshore/internal/solo"
	"github.com/longshore/longshore/internal/state"
	"github.com/longshore/longshore/internal/state/bolt"
	"github.com/longshore/longshore/internal/trail"
)

// Options are the parameters of Run.
type Options struct {
	Config  config.Config
	Logger  *slog.Logger
	Level   *slog.LevelVar // the level of Logger; nil when it cannot be changed
	Version string
	// Teardown makes Run stop and remove the sandboxes of every owner, instead of serving. The keeper ends as well.
	// Images and volumes stay.
	Teardown bool
	// Grace is the time for containers to end by themselves before Teardown kills them.
	Grace time.Duration
	// Args are the arguments of the program, with its name. An upgrade executes the next one with them.
	Args []string
	// CheckArgs are the arguments of a check of the same configuration, without the program's name.
	CheckArgs []string
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
	// unanswered counts the questions of each sandbox that the name server did not answer.
	unanswered perSandbox
	// refused counts the names and connections of each sandbox that its egress list refused.
	refused  perSandbox
	store    *state.Store
	keeper   *keeper.Client
	images   *image.Store
	board    *broker.Client
	boardAPI *boardAPI
	trail    *trail.Log // nil if the node keeps none
	drivers  *logDrivers
	rests    *sleep.Sleeper  // nil if no container can sleep
	modules  modules         // nil if compiled modules cannot be kept
	programs *programs.Store // nil without CRI's API of 2017
	network  *network.Network
	cgroups  cgroup.Delegating
	runtimes runtimes
	spare    *pin.Spare
	reserves reserves
	binary   string       // the keeper's
	release  func() error // removes the native runtime's shared files
	engine   *engine.Engine
	solo     *solo.Node // the containers of the control API and of Docker's
	users    *users.Table
	nri      *nri.Host   // nil without a socket for plugins
	swarm    *swarm.Face // nil without the face
	control  *control.Server
	criu     criuProbe
	// checkpoints stores the processes of containers.
	checkpoints *checkpoint.Checkpointer
	// scrapes is the handler of CRI's metrics of pods; nil until that face exists.
	scrapes atomic.Pointer[http.Handler]
	// recovered is closed when the engine has recovered.
	recovered chan struct{}
	trials    trial.Trials
	tended    tended
	findings  doctor.Board
	// next is the upgrade of the agent that is under way, or failed.
	next nextProgram
	// exposed receives when redundancy may have changed; it has room for one.
	exposed chan struct{}
}

// Run runs the agent until ctx ends. Containers keep running without it. When there are none, Run
// also ends the keeper and removes the bridge and the cgroups.
func Run(ctx context.Context, o Options) (err error) {
	n := &node{next: nextProgram{args: o.Args, check: o.CheckArgs, wanted: make(chan struct{})}, cfg: o.Config, log: o.Logger, level: o.Level, version: o.Version, started: time.Now(), release: func() error { return nil }, exposed: make(chan struct{}, 1)}
	if _, err := os.Stat(n.cfg.Agent.State); o.Teardown && errors.Is(err, fs.ErrNotExist) {
		// No agent has run since the boot.
		if durable, err := bolt.Durable(bolt.Options{Root: n.cfg.Agent.Root, Logger: n.log}); err != nil || !durable {
			return err
		}
	}
	if o.Teardown {
		return n.run(ctx, func(ctx context.Context) error { return teardown(ctx, n, o.Grace) })
	}
	if ctx, err = n.next.takeOver(ctx); err == nil {
		err = n.run(ctx, n.serve)
	}
	return n.next.execute(ctx, n.log, err)
}

// run opens everything, calls do, and closes it again.
func (n *node) run(ctx context.Context, do func(context.Context) error) (err error) {
	var open closers
	defer func() { err = errors.Join(err, open.close()) }()
	if err := n.open(ctx, &open); err != nil {
		return err
	}
	return do(ctx)
}

// later opens something in the background. The returned function waits for the result.
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
		Checkpoints: checkpointsOf(n),
		Engine:      n.engine, LogDir: filepath.Join(n.cfg.Agent.Root, "logs"), Logger: n.log, Doctor: n.doctor, Check: n.check, Config: n.shownConfig,
		LostOutput: n.lostOutput, Version: n.version, Started: n.started, Metrics: n.metrics, HTTP: n.httpHandler(), Swarm: membershipOf(n.swarm), Networks: n.network, EgressLog: n.network.EgressLog, Node: n.solo, Programs: n.programs, Transfers: n.images,
		Paused: n.store.Scope("commits", false), Removals: n.store.Scope("removals", false), Namespaces: n.keeper.Namespaces,
		Dirs:  []string{n.cfg.Agent.Root, n.cfg.Agent.State},
		Audit: n.trail, Disk: func(ctx context.Context) ([]*disk.Part, error) { return diskParts(ctx, n) }, Processes: n.processes, Upgrade: n.upgrade, UpgradeFailure: n.next.failure,
		Unified: func() bool { return n.cgroups.Mode() == core.CgroupV2 },
	})
}

// leavePatience is the time that an agent has to remove everything of its own, when it stops without containers.
const leavePatience = 10 * time.Second

// leave shuts the node down. Containers keep running; when there are none, the agent removes everything of its own. It gives
// up after patience.
func (n *node) leave(ctx context.Context, patience time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	sandboxes, err := n.engine.All().Sandboxes(ctx, core.Filter{})
	if err != nil || len(sandboxes) > 0 {
		n.log.InfoContext(ctx, "agent stops; containers keep running", "sandboxes", len(sandboxes))
		return err
	}
	n.log.InfoContext(ctx, "agent stops and removes keeper and network, because no container is left")
	return errors.Join(n.board.Release(), n.keeper.Shutdown(ctx), n.network.Release(ctx), n.cgroups.Release(ctx), n.release(), rootfs.RemoveOwnMount(filepath.Join(n.cfg.Agent.State, engine.Sandboxes)))
}

package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/adjust"
	"github.com/longshore/longshore/internal/adjust/cdi"
	"github.com/longshore/longshore/internal/agent/heap"
	"github.com/longshore/longshore/internal/agent/trial"
	"github.com/longshore/longshore/internal/config"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/core"
	egresspolicy "github.com/longshore/longshore/internal/egress/policy"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/boot"
	"github.com/longshore/longshore/internal/engine/joins"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/users"
	enginevolumes "github.com/longshore/longshore/internal/engine/volumes"
	"github.com/longshore/longshore/internal/face/cri"
	"github.com/longshore/longshore/internal/image"
	"github.com/longshore/longshore/internal/keeper"
	"github.com/longshore/longshore/internal/kmsg"
	"github.com/longshore/longshore/internal/network"
	"github.com/longshore/longshore/internal/network/names"
	"github.com/longshore/longshore/internal/obs"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/pin"
	"github.com/longshore/longshore/internal/profile/selinux"
	"github.com/longshore/longshore/internal/restart"
	"github.com/longshore/longshore/internal/rootfs"
	"github.com/longshore/longshore/internal/solo"
	"github.com/longshore/longshore/internal/state/bolt"
	"github.com/longshore/longshore/internal/traces"
)

// closers are the open parts of a node, in the order in which they were opened.
type closers struct{ list []func() error }

func (c *closers) add(f func() error) { c.list = append(c.list, f) }

// close closes the parts, those that were opened last first.
func (c *closers) close() error {
	var errs []error
	for _, f := range slices.Backward(c.list) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

// open opens the engine's ports, from the bottom up, and the engine. Each part closes after all that
// are opened later; the comment at its end says which of them needs it.
func (n *node) open(ctx context.Context, open *closers) error {
	root, run := n.cfg.Agent.Root, n.cfg.Agent.State
	if err := n.claim(ctx, open); err != nil {
		return err
	}
	if err := n.observe(); err != nil {
		return err
	}
	if err := openTrail(n, open); err != nil {
		return err
	}
	n.modules = openModules(root, n.log)
	n.reserves = newReserves(root, run, n.log)
	if err := n.openStores(ctx, open); err != nil {
		return err
	}
	if err := n.openNetwork(open); err != nil {
		return err
	}
	var err error
	if n.cgroups, err = n.openCgroups(ctx); err != nil {
		return err
	}
	n.spare = pin.NewSpare()
	open.add(n.spare.Close) // after the faces have ended, because new sandboxes take from it
	pins, err := pin.New(pin.Options{Dir: filepath.Join(run, "ns"), Make: n.keeper.Namespaces, Spare: n.spare, Ready: true, Logger: n.log})
	if err != nil {
		return err
	}
	open.add(pins.Close)
	volumes, err := openVolumes(filepath.Join(root, "volumes"), n.log)
	if err != nil {
		return err
	}
	if n.board, err = openBoard(n); err != nil {
		return err
	}
	open.add(func() error { n.board.Close(); return nil }) // after the faces have ended, because launches of programs with grants use it
	if n.runtimes, err = n.findRuntimes(ctx); err != nil {
		return err
	}
	return n.openEngine(pins, volumes)
}

// claim makes the process ready, and keeps other agents from the node's directories and network.
func (n *node) claim(ctx context.Context, open *closers) error {
	unix.Umask(0o022) // the caller's must not affect volumes and containers
	if before, after := raiseFiles(); before != after {
		n.log.InfoContext(ctx, "raised the limit of descriptors", "from", before, "to", after)
	}
	heap.MakeRoom() // the start allocates more than all that follows
	unlock, err := lock(n.cfg.Agent.Root, n.cfg.Agent.State)
	if err != nil {
		return err
	}
	open.add(func() error { unlock(); return nil }) // last, because another agent may start then
	release, err := n.claimNetwork(ctx)
	if err != nil {
		return err
	}
	open.add(func() error { release(); return nil }) // after the network, because another agent may change it then
	return nil
}

// observe opens logs and metrics. They need not be closed.
func (n *node) observe() error {
	obs.BridgeLogrus(n.log)
	obs.BridgeGRPC(n.log)
	cri.BridgeKlog(n.log)
	n.metrics = obs.New(obs.Options{Version: n.version, Node: n.nodeStats})
	n.limits = connlimit.NewTable(n.log)
	if err := n.metrics.Register(obs.Connections(n.limits.Usage)); err != nil {
		return fmt.Errorf("agent: metrics of connections: %w", err)
	}
	if err := errors.Join(n.metrics.Register(obs.UnansweredNames(n.unanswered.load)), n.metrics.Register(obs.RefusedEgress(n.refused.load))); err != nil {
		return fmt.Errorf("agent: metrics of the name server: %w", err)
	}
	if err := n.metrics.Register(&n.findings); err != nil {
		return fmt.Errorf("agent: metrics of findings: %w", err)
	}
	return nil
}

// openStores opens the images, the records and the keeper. The images do not depend on the others,
// and open beside them.
func (n *node) openStores(ctx context.Context, open *closers) (err error) {
	root, run := n.cfg.Agent.Root, n.cfg.Agent.State
	images := later(func() (*image.Store, error) {
		return image.New(image.Options{
			Root: filepath.Join(root, "image"), Config: n.cfg.Images, Logger: n.log, UserAgent: "longshore/" + n.version,
			Verify: n.verifyBinary, Pulled: n.metrics.Pulled, Modules: n.modules, Full: n.reserves.root.Release,
		})
	})
	open.add(func() error { // after the faces have ended, because pulls and checkouts use it
		if s, _ := images(); s != nil {
			return s.Close()
		}
		return nil
	})
	if n.store, err = bolt.Open(bolt.Options{
		State: run, Root: root, StateFull: n.reserves.state.Release, RootFull: n.reserves.root.Release, Logger: n.log, Observer: func(took time.Duration) { n.metrics.StoreTransaction("update", took) },
	}); err != nil {
		return err
	}
	open.add(n.store.Close) // after the network, because that keeps its leases in it
	if n.binary, err = n.keeperBinary(); err != nil {
		return err
	}
	if err := registerMeters(n); err != nil {
		return err
	}
	flush, err := traces.Open(ctx, n.cfg.Traces, n.version)
	if err != nil {
		return err
	}
	open.add(flush)
	if n.keeper, err = keeper.New(ctx, keeper.Options{StateDir: filepath.Join(run, "keeper"), Binary: n.binary, Started: n.settleKeeper, Changed: n.redundancyChanged, LateCopies: true, VersionOf: builtVersion, Logger: n.log}); err != nil {
		return err
	}
	open.add(n.keeper.Close) // after the network, because the name server's sockets are handed to it
	if n.images, err = images(); err != nil {
		return err
	}
	n.programs, err = openPrograms(n)
	return err
}

func (n *node) openNetwork(open *closers) (err error) {
	run := n.cfg.Agent.State
	refused := &refusals{records: scope.Records{Store: n.store}, last: func(id core.ID) []core.EgressRefusal { return lastRefused(n, id) }, log: n.log, since: time.Now(), boxes: map[core.ID]*announced{}}
	if n.network, err = network.New(network.Options{
		Config: n.cfg.Network, Avoid: rangesOfOthers(n.cfg), Store: n.store.Scope("network", true), Leases: n.store.Scope("leases", false), StateDir: filepath.Join(run, "cni"), Logger: n.log,
		Holder: n.keeper.Held(),
		Names: &names.Options{Dir: filepath.Join(run, "names"), Command: []string{"/proc/self/exe", names.Arg}, Holder: n.keeper.Held(), Started: func(ctx context.Context, pid int) {
			settle(ctx, n.log, fmt.Sprintf("longshore-names-%d.scope", pid), pid)
		}, Unanswered: n.unanswered.store, Refused: func(all map[core.ID]uint64) {
			n.refused.store(all)
			refused.round(all)
		}},
	}); err != nil {
		return err
	}
	open.add(n.network.Close) // after the faces have ended, because stops tear networks down
	return nil
}

// openEngine opens the engine over the ports. It runs only while the node serves, so it need not be closed.
func (n *node) openEngine(pins core.Pinner, volumes core.Volumes) error {
	run := n.cfg.Agent.State
	given, err := ocispec.ReadNode()
	if err != nil {
		return err
	}
	if n.cfg.Engine.SELinux {
		if err := selinux.Check(); err != nil {
			return fmt.Errorf("engine.selinux: %w", err)
		}
	}
	devices, err := cdi.New(n.cfg.Engine.CDIDirs)
	if err != nil {
		return err
	}
	if n.nri, err = n.pluginHost(devices); err != nil {
		return err
	}
	if err := rootfs.MakeOwnMount(filepath.Join(run, engine.Sandboxes)); err != nil {
		return fmt.Errorf("make the sandboxes' directory a mount: %w", err)
	}
	roots := rootfs.New(rootfs.Options{Users: n.keeper.Namespaces, Logger: n.log})
	returner := func(t *enginevolumes.Table) core.Returner {
		return &boot.Boot{
			Records: scope.Records{Store: n.store}, Restarts: restart.Rules{}, Images: n.images, Roots: roots, Cgroups: n.cgroups, Volumes: t, State: run, Logger: n.log,
		}
	}
	joiner := func(r scope.Records, lock scope.Lock) core.Joiner {
		return joins.Table{Records: r, Lock: lock, Cgroups: n.cgroups, Pinner: pins}
	}
	limits, err := n.cfg.Engine.Rlimits()
	if err != nil {
		return err
	}
	n.users = users.New(users.Options{
		Auto: n.cfg.Engine.Users == config.UsersAuto, First: n.cfg.Engine.UsersFirstID, Ranges: n.cfg.Engine.UsersRanges, Make: n.keeper.Namespaces, Roots: filepath.Join(n.cfg.Agent.Root, "image"),
	})
	if err := openCheckpoints(n); err != nil {
		return err
	}
	lists, err := egresspolicy.New(n.cfg.Egress)
	if err != nil {
		return err
	}
	if n.drivers, err = newLogDrivers(n); err != nil {
		return err
	}
	n.engine, err = engine.New(engine.Options{
		Store: n.store, Runtimes: n.runtimes.usable, Default: n.runtimes.chosen, Supervisor: n.keeper, Images: n.images, Network: n.network,
		Pinner: pins, Cgroups: n.cgroups, Roots: roots, Volumes: volumes, Restarts: restart.Rules{}, Return: returner, Joins: joiner, Users: n.users, Egress: lists, Logs: &n.drivers.Runner, EgressRefused: func(id core.ID) []core.EgressRefusal { return lastRefused(n, id) }, Sleeper: n.sleeper(), Checkpoints: func(c *engine.Client) core.CheckpointRecoverer { return checkpointsOf(n)(c) },
		Labels: selinux.Table{All: n.cfg.Engine.SELinux, Enabled: ocispec.SELinuxEnabled}, OOMLog: kmsg.New(kmsg.Options{Logger: n.log}),
		Policies: adjust.Policies(adjust.Options{First: append(auditPolicies(n.trail), &n.drivers.Runner), CDI: devices, Ulimits: limits, Owners: n.owned(), Node: given, Egress: lists, Profiles: n.profiles(given.AppArmor)}),
		State:    run, Init: n.binary, Files: n.files, Observer: stages{n.metrics}, Logger: n.log, FailPoint: failPoint(os.Getenv(failPointEnv)),
	})
	n.solo = solo.NewNode(n.engine, n.network)
	n.trials = trial.Trials{Engine: n.engine, Runtime: n.runtimes.chosen, Program: n.keeperBinary}
	return err
}

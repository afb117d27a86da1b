// Package engine implements the verbs on sandboxes, containers and processes that every
// orchestrator's node contract comes down to.
//
// It knows no orchestrator, and no implementation of the ports of internal/core: New gets them in
// Options. Every change is recorded before it is made, so that a crash anywhere leaves a record for
// the cleanup. Each verb is a sequence of stages with an undo stack.
//
// Start with create.go, which shows how all verbs are built; then exits.go (how each end is
// recorded exactly once) and recover.go (the repairs after a restart). client.go is the interface
// that the faces use.
package engine

import (
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/lease"
	"github.com/longshore/longshore/internal/engine/quiet"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/stages"
	"github.com/longshore/longshore/internal/engine/underway"
	"github.com/longshore/longshore/internal/engine/volumes"
	"github.com/longshore/longshore/internal/keylock"
)

// Options has the ports and settings of an engine. Every port is required unless its comment says
// otherwise.
type Options struct {
	Store core.Store
	// Runtimes are those that a sandbox may name. Default names the one for sandboxes that name
	// none; "" is the first.
	Runtimes   []core.Runtime
	Default    string
	Supervisor core.Supervisor
	Images     core.Images  // without.Images where there are no images
	Network    core.Network // without.Network where no networks are made
	Pinner     core.Pinner
	Cgroups    core.Cgroups
	Roots      core.Roots
	Volumes    core.Volumes
	// Policies check callers' operations, in this order. It may be empty.
	Policies []core.Policy
	// Restarts applies the containers' restart policies; with nil nothing is started again.
	Restarts core.Restarter
	// Return returns the part that brings durable objects back after a boot. With nil no object is
	// durable.
	Return func(*volumes.Table) core.Returner
	// Joins returns the part that joins namespaces. With nil no sandbox joins any.
	Joins func(r scope.Records, lock scope.Lock) core.Joiner
	// Users gives sandboxes user namespaces. With nil only those have one that bring their mappings.
	Users core.UserTable
	// Egress decides about egress lists. With nil no sandbox can have one.
	Egress core.EgressPolicy
	// Logs decides about log drivers. With nil no container has one.
	Logs core.LogDrivers
	// EgressRefused returns the last refusals of a sandbox's egress list; nil for none.
	EgressRefused func(core.ID) []core.EgressRefusal
	// Labels gives SELinux labels. With nil there are only those that requests have.
	Labels core.LabelTable
	// Sleeper puts containers to sleep. With nil no container can sleep.
	Sleeper core.Sleeper
	// Checkpoints recovers checkpoints and removes those of removed containers: see CheckpointHost. With nil there are none.
	Checkpoints func(*Client) core.CheckpointRecoverer
	// OOMLog reads the kernel log; nil when it cannot be read.
	OOMLog core.OOMLog
	// State is the directory of bundles and sandbox files. It need not survive a boot.
	State string
	// Init is the path of the binary that holds the tiny init.
	Init string
	// Files returns a sandbox's resolv.conf, hosts and hostname. With nil there are none.
	Files func(ctx context.Context, sb core.Sandbox) (Files, error)
	// Observer gets the duration of each stage. It may be nil.
	Observer stages.Observer
	// Logger may be nil.
	Logger *slog.Logger
	// FailPoint is called between the stages of every verb, in tests. An error ends the verb as
	// if the agent had died there: nothing is undone. See CheckedFailPoint.
	FailPoint func(stage string) error
}

// Files are the contents of a sandbox's files in /etc. One that is empty is not mounted.
type Files struct{ ResolvConf, Hosts, Hostname []byte }

// Engine is the execution engine of a node.
type Engine struct {
	records  records
	o        Options
	runtimes map[string]core.Runtime
	began    uint64 // the Seq of the last event before this engine's first

	// sandboxes has a lock for each sandbox. It is held by verbs that create, start, stop or
	// remove something in the sandbox, and never while they wait for a process to end.
	sandboxes keylock.Map[core.ID]
	// launches has a lock for each process. It is held from before the launch until the launch is
	// recorded, and while the end is recorded. Lock order: sandboxes, then launches.
	launches keylock.Map[core.Ref]

	creates  underway.Creates
	volumes  volumes.Table
	policies policies
	waits    underway.Waits
	leases   lease.Table
	pulls    lease.Pulls
	features sync.Map // runtime name → core.RuntimeFeatures
	quiet    quiet.Execs
	stages   stages.Settings
}

// New returns an engine over o. Call Recover before anybody uses it, then Run.
func New(o Options) (*Engine, error) {
	if o.Store == nil || o.Supervisor == nil || o.Images == nil || o.Network == nil || o.Pinner == nil ||
		o.Cgroups == nil || o.Roots == nil || o.Volumes == nil || len(o.Runtimes) == 0 || !filepath.IsAbs(o.State) {
		return nil, fmt.Errorf("new engine: a port is nil or the state directory is not absolute: %w", errdefs.ErrInvalidArgument)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Engine{records: records{scope.Records{Store: o.Store}}, o: o, runtimes: map[string]core.Runtime{}, policies: policies{o.Policies, o.Logger}}
	e.stages = stages.Settings{Observer: o.Observer, FailPoint: o.FailPoint, Logger: o.Logger}
	for _, rt := range o.Runtimes {
		e.runtimes[rt.Name()] = rt
	}
	e.quiet.Records, e.quiet.Supervisor, e.quiet.Waits, e.quiet.Logger = e.records.Records, o.Supervisor, &e.waits, o.Logger
	e.quiet.DropExec = func(ref core.Ref) error { return e.records.dropExec(ref, scope.Change{}) }
	e.volumes.Volumes, e.volumes.Roots, e.volumes.Dir, e.volumes.Users = o.Volumes, o.Roots, filepath.Join(o.State, "volumes"), e.records.volumesInUse
	if o.Default == "" {
		e.o.Default = o.Runtimes[0].Name()
	}
	if e.runtimes[e.o.Default] == nil {
		return nil, fmt.Errorf("new engine: default runtime %q is not among the runtimes: %w", e.o.Default, errdefs.ErrInvalidArgument)
	}
	return e, o.Store.View(func(tx core.Tx) error { e.began = tx.LastSeq(); return nil })
}

// As returns the engine as one owner sees it.
func (e *Engine) As(owner core.Owner) *Client { return newClient(e, owner) }

// All returns the unscoped view, which sees every owner's objects. Only the control API holds it.
func (e *Engine) All() *Client { return newClient(e, "") }

// Run records exits until ctx ends. Without it no process ever counts as ended.
func (e *Engine) Run(ctx context.Context) error { return (&reaper{e: e}).exits(ctx) }

func (e *Engine) runtime(name string) (core.Runtime, error) {
	if name == "" {
		name = e.o.Default
	}
	rt := e.runtimes[name]
	if rt == nil {
		return nil, fmt.Errorf("runtime %q is not configured: %w", name, errdefs.ErrInvalidArgument)
	}
	return rt, nil
}

// Sandboxes is the directory below Options.State that has a subdirectory for each sandbox.
const Sandboxes = "sandboxes"

func (e *Engine) sandboxDir(id core.ID) string {
	return filepath.Join(e.o.State, Sandboxes, string(id))
}

func (e *Engine) bundle(id core.ID) string { return filepath.Join(e.o.State, "bundles", string(id)) }

func now() time.Time { return time.Now().Round(0).UTC() }

// Package engine holds the verbs on sandboxes, containers and processes: what
// every orchestrator's node contract comes down to.
//
// It must not know any orchestrator, nor who implements the ports of
// internal/core: it is handed them in Options. Every change is recorded first
// and done then, so that a crash anywhere leaves a name to clean up by; each
// verb is a straight line of stages with a way back.
//
// Start at create.go, which is how all verbs are built; then exits.go (how an
// end is recorded exactly once) and recover.go (what a restart puts right).
// client.go is the face that the faces see.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/lease"
	"github.com/longshore/longshore/internal/keylock"
)

// Options is what an engine stands on. Every port is required unless its
// comment says otherwise.
type Options struct {
	Store core.Store
	// Runtimes may be chosen by a sandbox by their name. Default names the one
	// for a sandbox that does not say; "" is the first.
	Runtimes   []core.Runtime
	Default    string
	Supervisor core.Supervisor
	Images     core.Images  // without.Images on a machine without
	Network    core.Network // without.Network on a machine that makes none
	Pinner     core.Pinner
	Cgroups    core.Cgroups
	Roots      core.Roots
	Volumes    core.Volumes
	// Policies are asked about what callers do, in this order. May be empty.
	Policies []core.Policy
	// OOMLog reads the kernel log. nil: it cannot be read.
	OOMLog core.OOMLog
	// State is the directory of bundles and sandbox files; a boot may lose it.
	State string
	// Init is the path of the tiny init's binary.
	Init string
	// Files makes a sandbox's resolv.conf, hosts and hostname. nil: there are
	// none.
	Files func(ctx context.Context, sb core.Sandbox) (Files, error)
	// Observer is told how long each stage took. nil: nobody.
	Observer Observer
	// Logger may be nil.
	Logger *slog.Logger
	// FailPoint is called between the stages of every verb. An error ends the
	// verb as if the process had died there: nothing is undone. nil in
	// production.
	FailPoint func(stage string) error
}

// Files are what a sandbox's containers find in /etc. An empty one is not
// mounted.
type Files struct{ ResolvConf, Hosts, Hostname []byte }

// Observer is told of the engine's own times.
type Observer interface {
	// Stage says how long one stage of one verb took; both names come from
	// closed sets (see Stages).
	Stage(verb, stage string, took time.Duration)
}

// Engine is the one execution engine of a node.
type Engine struct {
	records  records
	o        Options
	runtimes map[string]core.Runtime
	began    uint64 // the last event before this engine's first

	// sandboxes are locked by whoever creates, starts, stops or removes
	// something in them, never while waiting for a process to end.
	sandboxes keylock.Map[core.ID]
	// launches are locked from before a process is launched until its record
	// says so, and by whoever records its end. They come after sandboxes.
	launches keylock.Map[core.Ref]

	policies policies
	waits    waitTable
	leases   lease.Table
	features sync.Map // runtime name → core.RuntimeFeatures
	// abandoned are ephemeral processes whose callers went with an earlier
	// agent: core.Ref → whether they had ended before.
	abandoned sync.Map
}

// New returns an engine over o. Call Recover before anybody uses it, then Run.
func New(o Options) (*Engine, error) {
	if o.Store == nil || o.Supervisor == nil || o.Images == nil || o.Network == nil || o.Pinner == nil ||
		o.Cgroups == nil || o.Roots == nil || o.Volumes == nil || len(o.Runtimes) == 0 || !filepath.IsAbs(o.State) {
		return nil, fmt.Errorf("new engine: a port or the state directory is missing: %w", errdefs.ErrInvalidArgument)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	e := &Engine{records: records{o.Store}, o: o, runtimes: map[string]core.Runtime{}, policies: policies{o.Policies, o.Logger}}
	for _, rt := range o.Runtimes {
		e.runtimes[rt.Name()] = rt
	}
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

// All returns the unscoped view: every owner's objects. Only the control API
// holds it.
func (e *Engine) All() *Client { return newClient(e, "") }

// Run records exits until ctx ends. Nothing ends without it.
func (e *Engine) Run(ctx context.Context) error { return reaper{e}.exits(ctx) }

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

// Sandboxes is the directory below Options.State that has one for each sandbox.
const Sandboxes = "sandboxes"

func (e *Engine) sandboxDir(id core.ID) string {
	return filepath.Join(e.o.State, Sandboxes, string(id))
}

func (e *Engine) bundle(id core.ID) string { return filepath.Join(e.o.State, "bundles", string(id)) }

func now() time.Time { return time.Now().Round(0).UTC() }

// cleanupTime bounds what is done after a request has failed or its caller has
// gone.
const cleanupTime = 30 * time.Second

// detached is ctx without its end, for the way back.
func detached(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), cleanupTime)
}

// crash is what a fail point leaves behind: the process counts as dead, so
// nothing may be undone.
type crash struct {
	stage string
	err   error
}

func (c *crash) Error() string { return fmt.Sprintf("crashed at %s: %v", c.stage, c.err) }
func (c *crash) Unwrap() error { return c.err }

func crashed(err error) bool {
	var c *crash
	return errors.As(err, &c)
}

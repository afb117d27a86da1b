package engine

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/asleep"
	"github.com/longshore/longshore/internal/engine/networks"
	"github.com/longshore/longshore/internal/engine/reads"
	"github.com/longshore/longshore/internal/engine/restarts"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/volumes"
)

// Client is the engine as one owner sees it: it creates objects for that owner and finds only
// that owner's objects. The unscoped view (Engine.All) finds every object and creates none; only
// the control API holds it.
//
// Its methods are the verbs on sandboxes, containers and processes.
type Client struct {
	e    *Engine
	view view

	Images  Images
	Volumes volumes.Verbs
	Network Network
	// Stats reads usage. It never waits for a verb.
	Stats reads.Stats
	// Stored reads records without copying them.
	Stored reads.Stored
	// Began is the LastSeq at the start of this agent, before its recovery recorded anything.
	Began uint64
	// Attachments changes which networks a sandbox is on.
	Attachments networks.Verbs
	// Rests puts containers to sleep and wakes them.
	Rests asleep.Verbs
	// Restarts changes restart policies and pending restarts; StartDue makes the restarts.
	Restarts restarts.Verbs
}

// view is a verb's caller.
type view struct {
	scope.Scope
	e *Engine
}

func newClient(e *Engine, owner core.Owner) *Client {
	s := scope.Scope{
		Records: e.records.Records, Owner: owner, Locks: e.sandboxes.Lock,
		Stages: func(ctx context.Context, owner core.Owner, verb string) func(string) error {
			return e.pipeline(ctx, owner, verb).Pass
		},
	}
	v := view{s, e}
	return &Client{
		e: e, view: v, Images: Images{v}, Volumes: volumes.Verbs{Scope: s, Table: &e.volumes}, Network: Network{v},
		Stats:  reads.Stats{Scope: s, Cgroups: e.o.Cgroups, Images: e.o.Images, Network: e.o.Network},
		Stored: reads.Stored{Scope: s}, Began: e.began,
		Attachments: networks.Verbs{Scope: s, Network: e.o.Network, Egress: e.o.Egress, Files: e.files},
		Restarts:    v.restarts(), Rests: v.rests(),
	}
}

// RemoveOptions are the options of RemoveContainer, RemoveSandbox and RemoveProcess.
type RemoveOptions struct {
	// Force kills running processes. Without it, removing a running object returns
	// FailedPrecondition.
	Force   bool
	Request core.StopRequest
	part    bool // of the removal of a sandbox, which syncs the records
}

// StopOptions are the options of StopContainer and StopSandbox.
type StopOptions struct {
	// Signal is the first signal to send; "" is the container's own, or SIGTERM.
	Signal string
	// Grace is how long to wait before SIGKILL. nil is the container's own grace period; 0 or
	// less sends SIGKILL first.
	Grace *time.Duration
	// IfEnded makes StopSandbox do nothing unless all containers have ended and no other sandbox
	// uses its network or IPC namespace. Their pending restarts stay.
	IfEnded bool
	Request core.StopRequest
	part    bool // of a removal, which syncs the records
}

// restarts returns the caller's verbs of restart policies.
func (v view) restarts() restarts.Verbs {
	return restarts.Verbs{Scope: v.Scope, Kill: v.e.kill, Record: v.recordRequest}
}

// rests returns the caller's verbs of sleep.
func (v view) rests() asleep.Verbs {
	return asleep.Verbs{
		Scope: v.Scope, Sleeper: v.e.o.Sleeper, Perform: v.e.perform, Kill: v.e.kill, Record: v.recordRequest,
		Busy: func(id core.ID) bool { return len(v.e.quiet.In(id)) > 0 }, Logger: v.e.o.Logger,
	}
}

// CheckpointHost returns the parts of a client for its verbs of checkpoints. Only programs that have such verbs link it.
func CheckpointHost(c *Client) (scope.Scope, core.CheckpointHost) {
	v := c.view
	return v.Scope, core.CheckpointHost{
		Perform: v.e.perform, Kill: v.e.kill, Record: v.recordRequest, Busy: func(id core.ID) bool { return len(v.e.quiet.In(id)) > 0 },
		Wake:      func(ctx context.Context, id core.ID) error { return v.rests().Wake(ctx, id, asleep.ByCheckpoint) },
		Launching: v.e.launches.Lock, DropKilled: v.e.forgetKilled, Failed: v.e.startFailed, Await: v.e.await,
	}
}

// StartDue starts a container of c again for its restart policy. It succeeds without a start if the
// policy does not want one any more.
func StartDue(ctx context.Context, c *Client, id core.ID) error {
	v := c.view
	return restarts.Starter{
		Verbs: v.restarts(), Renew: func(ctx context.Context, ct *core.Container) error { return renew(ctx, v, ct, true) },
		StartRenewed: func(ctx context.Context, ct *core.Container) error {
			return v.e.policies.around(ctx, &core.Operation{Verb: core.VerbStart, Container: ct}, func() error { return v.start(ctx, ct, true) })
		},
	}.Start(ctx, id)
}

// Around asks the policies about a verb that the engine has no part in, does it, and reports its result to them.
func Around(ctx context.Context, c *Client, op core.Operation, do func() error) error {
	return c.e.policies.around(ctx, &op, do)
}

// process returns a process of a container that the caller may see.
func (v view) process(ref core.Ref) (core.Container, *core.Process, error) {
	c, err := v.Container(ref.Container)
	if err != nil {
		return c, nil, err
	}
	p := v.e.process(&c, ref.Process)
	if p == nil {
		return c, nil, fmt.Errorf("process %s of container %s: %w", ref.Process, ref.Container, errdefs.ErrNotFound)
	}
	return c, p, nil
}

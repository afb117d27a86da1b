package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/etc"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/restarts"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/stages"
)

// RenewContainer makes an ended container ready to be started again: it is created, with its
// root, volumes and spec as they are, and its sandbox has namespaces and network again. It keeps
// its addresses where they are free. Its execs are forgotten. FailedPrecondition when the
// container has not ended; an error leaves it ended.
func (c *Client) RenewContainer(ctx context.Context, id core.ID) error {
	ct, err := c.view.Container(id)
	if err == nil {
		err = renew(ctx, c.view, &ct, false)
	}
	if err != nil {
		return fmt.Errorf("make container %s ready to start again: %w", id, err)
	}
	return nil
}

// renew makes a container ready to be started again, for a caller or for its restart policy.
func renew(ctx context.Context, v view, ct *core.Container, policy bool) error {
	if _, ok := core.NextContainer(ct.State, core.VerbRenew); !ok {
		return fmt.Errorf("it is %s: %w", ct.State, errdefs.ErrFailedPrecondition)
	}
	if err := v.e.awaitExecs(ctx, ct.ID); err != nil {
		return err
	}
	unlock, err := v.e.sandboxes.Lock(ctx, ct.Sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	if v.e.o.Return != nil && ct.Config.Durable {
		if err := v.e.o.Return(&v.e.volumes).Ensure(ctx, ct); err != nil {
			return err
		}
	}
	r, err := newRenewal(ctx, v, ct.ID)
	if err == nil && policy && !r.c.Restarting() {
		err = restarts.ErrNotDue
	}
	if err != nil {
		return err
	}
	// With this lock held, nobody can record the end of the new process before it is recorded.
	unlockLaunch, err := v.e.launches.Lock(ctx, core.Ref{Container: ct.ID})
	if err != nil {
		return err
	}
	defer unlockLaunch()
	return r.pipeline.Run(ctx, r.stages())
}

// renewal is the state of one RenewContainer. Until its last stage the records say that container
// and sandbox have ended, so that recovery undoes it after a crash.
type renewal struct {
	e        *Engine
	v        view
	pipeline *stages.Pipeline
	sandbox  *sandboxBuild // nil when the sandbox is still ready
	sb       core.Sandbox
	rt       core.Runtime
	c        core.Container
	spec     *specs.Spec
	raw      []byte // spec as it was found
}

// newRenewal reads the records for a renewal. Preconditions: the sandbox's lock is held.
func newRenewal(ctx context.Context, v view, id core.ID) (*renewal, error) {
	r := &renewal{e: v.e, v: v, pipeline: v.e.pipeline(ctx, "", "renew")}
	var err error
	if r.c, err = v.Container(id); err != nil {
		return nil, err
	}
	r.pipeline.Owner = r.c.Owner
	if r.c.Removing {
		return nil, fmt.Errorf("it is being removed: %w", errdefs.ErrFailedPrecondition)
	}
	if _, ok := core.NextContainer(r.c.State, core.VerbRenew); !ok {
		return nil, fmt.Errorf("it is %s: %w", r.c.State, errdefs.ErrFailedPrecondition)
	}
	if r.rt, err = v.e.runtime(r.c.Runtime); err != nil {
		return nil, err
	}
	if r.sb, err = v.Sandbox(r.c.Sandbox); err != nil {
		return nil, err
	}
	if r.raw, err = os.ReadFile(r.specPath()); err != nil {
		return nil, fmt.Errorf("read its spec: %w", err)
	}
	if err := json.Unmarshal(r.raw, &r.spec); err != nil {
		return nil, fmt.Errorf("read its spec: %w", err)
	}
	if r.sb, err = v.e.joins().Stop(r.sb); err != nil || r.sb.State == core.SandboxReady {
		return r, err
	}
	if r.sb.State == core.SandboxStopped && !owned.Released(&r.sb) { // its stop could not release all
		if err := (teardown{e: v.e}).release(ctx, &r.sb); err != nil {
			return nil, err
		}
		if r.sb, err = v.Sandbox(r.c.Sandbox); err != nil {
			return nil, err
		}
	}
	next, ok := core.NextSandbox(r.sb.State, core.VerbRenew)
	if !ok || !owned.Released(&r.sb) {
		return nil, fmt.Errorf("its sandbox is %s, and not all that it held is given back: %w", r.sb.State, errdefs.ErrUnavailable)
	}
	rt, err := v.e.runtime(r.sb.Config.Runtime)
	if err != nil {
		return nil, err
	}
	r.sandbox = &sandboxBuild{e: v.e, pipeline: r.pipeline, rt: rt, sb: r.sb}
	r.sandbox.sb.State, r.sandbox.sb.Note = next, ""
	return r, nil
}

func (r *renewal) specPath() string { return filepath.Join(r.c.Bundle, "config.json") }

func (r *renewal) stages() []stages.Stage {
	return []stages.Stage{
		{Name: "forget", Do: r.forget},
		{Name: "reserve", Do: r.reserve},
		{Name: "pin", Do: r.ofSandbox((*sandboxBuild).namespaces)},
		{Name: "network", Do: r.network},
		{Name: "files", Do: r.ofSandbox(r.files)},
		{Name: "init", Do: r.ofSandbox((*sandboxBuild).init)},
		{Name: "etc", Do: r.etc},
		{Name: "launch", Do: r.launch},
		{Name: "commit", Do: r.commit},
	}
}

// ofSandbox returns a stage that is left out when the sandbox is still ready.
func (r *renewal) ofSandbox(do func(*sandboxBuild, context.Context) error) func(context.Context) error {
	return func(ctx context.Context) error {
		if r.sandbox == nil {
			return nil
		}
		err := do(r.sandbox, ctx)
		r.sb = r.sandbox.sb
		return err
	}
}

// unmake removes the container's processes from the runtime and the keeper. It restores cgroup and
// spec, which an ended container has and they may remove.
func (r renewal) unmake(ctx context.Context) error {
	if err := (teardown{e: r.e}).processes(ctx, r.rt, &r.c); err != nil {
		return err
	}
	if err := r.e.forgetKilled(ctx, core.Ref{Container: r.c.ID}); err != nil {
		return err
	}
	if err := r.e.o.Cgroups.Create(ctx, r.c.Cgroup, nil); err != nil {
		return err
	}
	if r.raw == nil {
		return nil
	}
	return atomicfile.Replace(r.specPath(), r.raw, 0o600)
}

// forget has the runtime and the keeper forget the processes that have ended.
func (r *renewal) forget(ctx context.Context) error {
	r.pipeline.Undo.Add("processes", r.unmake)
	if r.c.Resting {
		return nil
	}
	return r.unmake(ctx)
}

// reserve records that the sandbox gets its namespaces again.
func (r *renewal) reserve(ctx context.Context) error {
	if r.sandbox == nil {
		return nil
	}
	if r.sb.Config.Namespaces.PID.Mode == core.Shared {
		if err := r.e.forgetKilled(ctx, core.Ref{Container: r.sb.ID}); err != nil {
			return err
		}
	}
	mark := func(on bool) error {
		_, err := r.e.records.EditSandbox(r.sb.ID, func(sb *core.Sandbox, _ *scope.Change) error { sb.Renewing = on; return nil })
		return err
	}
	if err := mark(true); err != nil {
		return err
	}
	r.pipeline.Undo.Add("mark", func(context.Context) error { return mark(false) })
	return nil
}

// network gives the sandbox its network again, or only its host ports if others have kept it ready.
func (r *renewal) network(ctx context.Context) error {
	if r.sandbox != nil {
		return r.ofSandbox((*sandboxBuild).network)(ctx)
	}
	ports := r.e.All().Attachments
	r.pipeline.Undo.Add("ports", func(ctx context.Context) error { return ports.Withdraw(ctx, &r.sb) })
	return ports.Publish(ctx, &r.sb)
}

// files replaces the files in the stopped sandbox's directory.
func (r *renewal) files(b *sandboxBuild, ctx context.Context) error { //nolint:revive // b is the receiver of the other stages of this kind
	if err := (teardown{e: r.e}).sandboxDir(ctx, b.sb.Dir); err != nil {
		return err
	}
	return b.files(ctx)
}

// etc replaces the sandbox's files in the container, because their content depends on the addresses and on the host's
// resolv.conf. Changes by an earlier run are lost, whether the sandbox was stopped meanwhile or not.
func (r *renewal) etc(ctx context.Context) error {
	if r.sandbox == nil { // a sandbox that was stopped has new files already
		if err := r.v.e.All().Attachments.Refresh(ctx, r.sb.ID); err != nil {
			return fmt.Errorf("refresh the files of its sandbox: %w", err)
		}
	}
	return etc.Renew(ctx, r.e.o.Roots, &r.sb, etc.Container{Mounts: r.spec.Mounts, Root: filepath.Join(r.c.Bundle, "rootfs"), Layer: r.c.Image != ""})
}

func (r *renewal) launch(ctx context.Context) error {
	var res *specs.LinuxResources
	if r.spec.Linux != nil {
		res = r.spec.Linux.Resources
	}
	if err := r.e.o.Cgroups.Update(ctx, r.c.Cgroup, res); err != nil {
		return err
	}
	cfg := r.c.Config
	cfg.Run = false
	b := &build{e: r.e, cfg: cfg, rt: r.rt, sb: r.sb, spec: r.spec, c: r.c}
	b.c.Refused = nil
	var err error
	if b.spec.Process, err = r.e.policies.adjust(ctx, &r.sb, &r.c, r.spec.Process); err != nil {
		return err
	}
	r.pipeline.Undo.Add("launch", r.unmake) // before the namespaces are released
	err = b.process(ctx, r.c.Resting && r.sb.AnyRuntime && cfg.Runtime == "")
	r.rt = b.rt
	if err != nil {
		if err := b.refuse(ctx, err); err != nil {
			return err
		}
		if err := atomicfile.Replace(r.specPath(), r.raw, 0o600); err != nil {
			return err
		}
	}
	old := r.c.Main
	r.c = b.c
	r.c.Main = core.Process{Args: old.Args, TTY: old.TTY, Hold: old.Hold, Pid: b.c.Main.Pid}
	return nil
}

// commit records that the sandbox is ready and the container created. It reads the records again:
// a face may have replaced its own part of them meanwhile.
func (r *renewal) commit(context.Context) error {
	return r.e.o.Store.Update(func(tx core.Tx) error {
		if err := r.commitSandbox(tx); err != nil {
			return err
		}
		c, err := tx.Containers().Get(r.c.ID)
		if err != nil {
			return err
		}
		if err := step(&c, core.VerbRenew); err != nil {
			return err
		}
		c.Main, c.Execs, c.Refused, c.Trace, c.Confinement = r.c.Main, nil, r.c.Refused, r.pipeline.Trace(), r.c.Confinement
		c.Resting, c.Warnings = false, r.c.Warnings
		n := scope.Change{}
		n.Add(core.Event{Kind: core.EventContainerCreated, Note: core.NoteRenewed})
		r.v.Forced(&n, &c.Meta, scope.By{Verb: "start again"})
		if err := n.Write(tx, &c.Meta, c.Sandbox, c.ID); err != nil {
			return err
		}
		return tx.Containers().Put(c)
	})
}

func (r *renewal) commitSandbox(tx core.Tx) error {
	if r.sandbox == nil {
		return nil
	}
	sb, err := tx.Sandboxes().Get(r.sb.ID)
	if err != nil {
		return err
	}
	made := &r.sandbox.sb
	sb.State, sb.Note, sb.Renewing = made.State, "", false
	sb.Network, sb.Init, sb.Config.Namespaces, sb.Config.Runtime = made.Network, made.Init, made.Config.Namespaces, made.Config.Runtime
	n := scope.Change{}
	n.Add(core.Event{Kind: core.EventSandboxReady})
	if err := n.Write(tx, &sb.Meta, sb.ID, ""); err != nil {
		return err
	}
	return tx.Sandboxes().Put(sb)
}

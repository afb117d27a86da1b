package checkpoints

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/ocispec"
)

// Restore continues the processes of a container's checkpoint, in place of a start of its program. The container is
// created. After an error it has ended, and its autopsy has the reason.
func (v Verbs) Restore(ctx context.Context, id core.ID, o core.RestoreOptions) error {
	ct, err := v.Scope.Container(id)
	if err == nil {
		err = v.Able(ctx)
	}
	if err == nil {
		err = v.Perform(ctx, &core.Operation{Verb: core.VerbRestore, Container: &ct}, func() error { return v.restore(ctx, id, o) })
	}
	if err != nil {
		return fmt.Errorf("restore container %s: %w", id, err)
	}
	return nil
}

func (v Verbs) restore(ctx context.Context, id core.ID, o core.RestoreOptions) error {
	ct, unlock, err := v.Scope.LockedContainer(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	ref := core.Ref{Container: id}
	unlock2, err := v.Launching(ctx, ref)
	if err != nil {
		return err
	}
	defer unlock2()
	if ct, err = v.Scope.Container(id); err != nil { // its process may have ended meanwhile
		return err
	}
	sb, err := v.Scope.Sandbox(ct.Sandbox)
	if err == nil {
		err = restorable(&sb, &ct)
	}
	if err != nil {
		return err
	}
	if ct.Config.Restore {
		if cp := ct.LastCheckpoint(); cp == nil || !cp.Kept {
			return fmt.Errorf("the checkpoint that it continues is not complete: %w", errdefs.ErrFailedPrecondition)
		}
		o = core.RestoreOptions{TCP: ct.LastCheckpoint().TCP, Root: true}
	}
	req := core.RestoreRequest{Container: ct, Sandbox: sb, Launch: core.Launch{Ref: ref, IO: ct.Config.IO}, TCP: o.TCP, Root: o.Root}
	for i, cg := range []core.CgroupRef{ct.Cgroup, sb.Cgroup} {
		level, peak := v.Cgroups.OOMLevel(cg)
		req.Launch.Levels = append(req.Launch.Levels, level)
		if i == 0 {
			req.Launch.Peak = peak
		}
	}
	if req.Launch.UID, req.Launch.GID, err = owner(&sb, &ct); err != nil {
		return err
	}
	begun := false
	req.Vacate = func(ctx context.Context) error {
		// From here on the container cannot be started. The record comes first: the next agent ends it.
		err := v.change(id, func(c *core.Container, _ *scope.Change) error {
			if c.LastCheckpoint() == nil {
				c.SetCheckpoint(&core.Checkpoint{})
			}
			c.LastCheckpoint().Phase, c.LastCheckpoint().Vacated = core.CheckpointRestoring, c.Main.Pid
			return nil
		})
		if err != nil {
			return err
		}
		begun = true
		return errors.Join(v.Kill(ctx, &ct), v.DropKilled(ctx, ref))
	}
	pid, err := v.Checkpointer.Restore(ctx, req)
	if err == nil {
		err = v.restored(ctx, id, pid)
	}
	if err != nil && begun {
		err = v.Failed(ctx, &ct, err)
		v.over(id)
	}
	return err
}

// Prepare gives a checkpoint to a created container with Config.Restore. Restore then starts the container, with these options.
func (v Verbs) Prepare(ctx context.Context, id core.ID, from core.Imported, o core.RestoreOptions) error {
	ct, unlock, err := v.Scope.LockedContainer(ctx, id)
	if err == nil {
		defer unlock()
		err = v.prepare(ctx, &ct, from, o)
	}
	if err != nil {
		return fmt.Errorf("prepare the restore of container %s: %w", id, err)
	}
	return nil
}

func (v Verbs) prepare(ctx context.Context, ct *core.Container, from core.Imported, o core.RestoreOptions) error {
	if !ct.Config.Restore {
		return fmt.Errorf("it starts its program: %w", errdefs.ErrFailedPrecondition)
	}
	sb, err := v.Scope.Sandbox(ct.Sandbox)
	if err == nil {
		err = restorable(&sb, ct)
	}
	if err == nil {
		err = from.Give(ctx, ct.ID)
	}
	if err == nil {
		err = v.Checkpointer.Fits(ctx, core.RestoreRequest{Container: *ct, Sandbox: sb, TCP: o.TCP, Root: o.Root})
	}
	if err != nil {
		return err
	}
	return v.change(ct.ID, func(c *core.Container, n *scope.Change) error {
		c.SetCheckpoint(&core.Checkpoint{At: from.Meta().At, TCP: o.TCP, Kept: true})
		v.Scope.Forced(n, &c.Meta, scope.By{Verb: string(core.VerbRestore)})
		return nil
	})
}

// owner returns the owner of a container's standard streams, as the host sees it.
func owner(sb *core.Sandbox, ct *core.Container) (uid, gid uint32, err error) {
	spec, err := ocispec.BundleSpec(ct.Bundle)
	if err != nil {
		return 0, 0, err
	}
	of := sb.Of(&ct.Config)
	uid, gid = owned.HostIDs(&of, spec.Process)
	return uid, gid, nil
}

// restorable returns the reason why a container cannot be restored now.
func restorable(sb *core.Sandbox, ct *core.Container) error {
	switch {
	case len(sb.Config.Network.Egress) > 0:
		return fmt.Errorf("its sandbox has an egress list, which processes with the sockets of a checkpoint could evade: %w", errdefs.ErrFailedPrecondition)
	case ct.State != core.ContainerCreated:
		return fmt.Errorf("it is %s: %w", ct.State, errdefs.ErrFailedPrecondition)
	case ct.Refused != nil:
		return fmt.Errorf("its program was refused: %s: %w", ct.Refused.Text, errdefs.ErrFailedPrecondition)
	case ct.Config.IO.TTY:
		return fmt.Errorf("it has a terminal, which a checkpoint cannot store: %w", errdefs.ErrNotImplemented)
	case len(ct.Cgroup.Adopted) > 0:
		return fmt.Errorf("its cgroup is not the engine's own: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// restored records that the processes run.
func (v Verbs) restored(ctx context.Context, id core.ID, pid int) error {
	meta, err := v.Checkpointer.Describe(ctx, id)
	if err != nil {
		return err
	}
	return v.change(id, func(c *core.Container, n *scope.Change) error {
		if err := step(c, core.VerbStart); err != nil {
			return err
		}
		c.Main.Pid, c.Main.Started = pid, now()
		if c.LastCheckpoint().Vacated == pid { // its number is in use again
			c.LastCheckpoint().Vacated = 0
		}
		c.LastCheckpoint().Addresses = meta.Addresses
		c.LastCheckpoint().Phase, c.LastCheckpoint().At, c.LastCheckpoint().TCP, c.LastCheckpoint().Restored = core.CheckpointOver, meta.At, meta.TCP, c.Main.Started
		if v.Restarts != nil {
			v.Restarts.Started(c)
		}
		v.Scope.Forced(n, &c.Meta, scope.By{Verb: string(core.VerbRestore)})
		n.Add(core.Event{Kind: core.EventContainerStarted, Note: "restored from its checkpoint of " + meta.At.Format("2006-01-02T15:04:05Z07:00")})
		return nil
	})
}

// over ends the phase of a restore that has failed.
func (v Verbs) over(id core.ID) {
	err := v.change(id, func(c *core.Container, _ *scope.Change) error {
		if c.LastCheckpoint() != nil {
			c.LastCheckpoint().Phase = core.CheckpointOver
		}
		return nil
	})
	if err != nil && !errdefs.IsNotFound(err) {
		v.Logger.Error("could not record the end of a failed restore; the next recovery does", "container", id, "error", err)
	}
}

// errAgent is the reason of the end of a container after an interrupted restore.
var errAgent = errors.New("the agent died while it restored the container from its checkpoint") //nolint:gochecknoglobals // an error value

// Recover completes or undoes the interrupted verbs of an earlier agent, and removes checkpoints without a container. It must run before
// the processes are compared with the records.
func (v Verbs) Recover(ctx context.Context) error {
	var list []core.Container
	known := map[core.ID]bool{}
	err := v.Scope.Store.View(func(tx core.Tx) error {
		for c, err := range tx.Containers().All("") {
			if err != nil {
				return err
			}
			if known[c.ID] = true; c.LastCheckpoint() != nil && c.LastCheckpoint().Phase != core.CheckpointOver {
				list = append(list, c)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, c := range list {
		if err := v.recoverOne(ctx, &c); err != nil {
			v.Logger.ErrorContext(ctx, "could not recover a container from an interrupted checkpoint", "container", c.ID, "phase", c.LastCheckpoint().Phase, "error", err)
		}
	}
	kept, err := v.Checkpointer.Stored(ctx)
	for _, id := range kept {
		if !known[id] {
			err = errors.Join(err, v.Checkpointer.Remove(ctx, id))
		}
	}
	return err
}

func (v Verbs) recoverOne(ctx context.Context, ct *core.Container) error {
	if err := v.Checkpointer.Settle(ctx, ct); err != nil {
		return err
	}
	if ct.LastCheckpoint().Phase == core.CheckpointRestoring {
		if ct.State == core.ContainerCreated {
			if err := v.Failed(ctx, ct, errAgent); !errors.Is(err, errAgent) {
				return err
			}
		}
		v.over(ct.ID)
		return nil
	}
	if !ct.State.Live() {
		v.over(ct.ID)
		return nil
	}
	_, err := v.Checkpointer.Describe(ctx, ct.ID)
	switch {
	case err == nil: // it was complete
		return v.complete(ctx, v.before(ct), core.Dumped{}, ct.LastCheckpoint().End)
	case !errdefs.IsNotFound(err):
		return err
	}
	if err := v.Checkpointer.Remove(ctx, ct.ID); err != nil {
		return err
	}
	return v.goOn(ctx, v.before(ct), nil)
}

// before returns a container as it was before its checkpoint began.
func (v Verbs) before(ct *core.Container) *core.Container {
	c := *ct
	if c.State = core.ContainerRunning; ct.LastCheckpoint().Paused {
		c.State = core.ContainerPaused
	}
	return &c
}

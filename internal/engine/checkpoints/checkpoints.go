// Package checkpoints has the verbs checkpoint and restore, and the recovery of those that an agent's death
// has interrupted. See core.Checkpointer. Start at Verbs.
package checkpoints

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
)

// Verbs are the verbs on the containers of a scope.
type Verbs struct {
	Scope        scope.Scope
	Checkpointer core.Checkpointer
	Cgroups      core.Cgroups
	core.CheckpointHost
	// Restarts applies the containers' restart policies. It may be nil.
	Restarts core.Restarter
	Logger   *slog.Logger
}

var _ core.CheckpointVerbs = Verbs{}

// Call is the Call of the StopRequest of a container that has ended with its checkpoint.
const Call = "its checkpoint"

// Able returns the reason why this node makes no checkpoints, or nil.
func (v Verbs) Able(ctx context.Context) error {
	return v.Checkpointer.Able(ctx)
}

// Checkpoint stores the processes of a running or paused container. They continue afterwards, unless the
// options end them. After an error they run as before.
func (v Verbs) Checkpoint(ctx context.Context, id core.ID, o core.CheckpointOptions) error {
	ct, err := v.Scope.Container(id)
	if err == nil {
		err = v.Able(ctx)
	}
	if err == nil {
		err = v.Wake(ctx, id)
	}
	if err == nil {
		err = v.Perform(ctx, &core.Operation{Verb: core.VerbCheckpoint, Container: &ct}, func() error { return v.checkpoint(ctx, id, o) })
	}
	if err == nil && o.End {
		_, err = v.Await(ctx, core.Ref{Container: id})
	}
	if err != nil {
		return fmt.Errorf("checkpoint container %s: %w", id, err)
	}
	return nil
}

func (v Verbs) checkpoint(ctx context.Context, id core.ID, o core.CheckpointOptions) error {
	ct, unlock, err := v.Scope.LockedContainer(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	// With this lock held, the end of its processes is recorded after its reason.
	unlock2, err := v.Launching(ctx, core.Ref{Container: id})
	if err != nil {
		return err
	}
	defer unlock2()
	if err := v.storable(&ct); err != nil {
		return err
	}
	sb, err := v.Scope.Sandbox(ct.Sandbox)
	if err != nil {
		return err
	}
	// The record comes first, so that the next agent lets the container continue if this one dies.
	was := ct.State == core.ContainerPaused
	err = v.change(id, func(c *core.Container, n *scope.Change) error {
		if !was {
			if err := step(c, core.VerbPause); err != nil {
				return err
			}
			n.Add(core.Event{Kind: core.EventContainerPaused, Note: "for a checkpoint"})
		}
		c.SetCheckpoint(&core.Checkpoint{Phase: core.CheckpointDumping, At: now(), TCP: o.TCP, Paused: was, End: o.End})
		v.Scope.Forced(n, &c.Meta, scope.By{Verb: string(core.VerbCheckpoint)})
		return nil
	})
	if err != nil {
		return err
	}
	var done core.Dumped
	if err = v.Cgroups.Freeze(ctx, ct.Cgroup, true); err == nil {
		done, err = v.Checkpointer.Dump(ctx, core.DumpRequest{Container: ct, Sandbox: sb, CheckpointOptions: o})
	}
	ctx = context.WithoutCancel(ctx)
	if err != nil {
		return errors.Join(err, v.goOn(ctx, &ct, nil))
	}
	return v.complete(ctx, &ct, done, o.End)
}

// storable returns the reason why a container cannot be stored now.
func (v Verbs) storable(ct *core.Container) error {
	switch {
	case ct.State != core.ContainerRunning && ct.State != core.ContainerPaused:
		return fmt.Errorf("it is %s: %w", ct.State, errdefs.ErrFailedPrecondition)
	case len(ct.Cgroup.Adopted) > 0:
		return fmt.Errorf("its cgroup is not the engine's own, and may have processes of others: %w", errdefs.ErrFailedPrecondition)
	case ct.MemoryOut():
		return fmt.Errorf("it has just woken, and its memory is not yet back: %w", errdefs.ErrFailedPrecondition)
	case ct.Config.IO.TTY:
		return fmt.Errorf("it has a terminal, which a checkpoint cannot store: %w", errdefs.ErrNotImplemented)
	case ct.Confinement != nil: // a restored process would not have it
		return fmt.Errorf("it is confined by Landlock or to its descriptors, which a checkpoint cannot store: %w", errdefs.ErrNotImplemented)
	case v.Busy(ct.ID) || slices.ContainsFunc(ct.Execs, func(p core.Process) bool { return p.Autopsy == nil }):
		return fmt.Errorf("an exec runs in it: %w", errdefs.ErrFailedPrecondition)
	}
	return nil
}

// complete records a checkpoint, and ends the container or lets it continue.
func (v Verbs) complete(ctx context.Context, ct *core.Container, d core.Dumped, end bool) error {
	if !end {
		return v.goOn(ctx, ct, &d)
	}
	req := v.Scope.Request(core.StopRequest{Owner: ct.Owner, Signal: sigkill, Stop: true}, Call)
	if err := v.Record(core.Ref{Container: ct.ID}, req); err != nil {
		return err
	}
	err := v.change(ct.ID, func(c *core.Container, n *scope.Change) error {
		stored(c, n, d)
		return nil
	})
	cur := *ct
	cur.State = core.ContainerPaused // on v1 a frozen process does not die
	return errors.Join(err, v.Kill(ctx, &cur))
}

func stored(c *core.Container, n *scope.Change, d core.Dumped) {
	c.LastCheckpoint().Phase, c.LastCheckpoint().Kept, c.LastCheckpoint().Dumped = core.CheckpointOver, true, d
	n.Add(core.Event{Kind: core.EventContainerStored, Note: fmt.Sprintf("%d MiB, stopped for %v", (d.Bytes+1<<20-1)>>20, d.Frozen.Round(time.Millisecond))})
}

// goOn lets a container continue after its checkpoint, or without one if d is nil.
func (v Verbs) goOn(ctx context.Context, ct *core.Container, d *core.Dumped) error {
	thaw := ct.State != core.ContainerPaused
	if thaw {
		if err := v.Cgroups.Freeze(ctx, ct.Cgroup, false); err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	err := v.change(ct.ID, func(c *core.Container, n *scope.Change) error {
		if d != nil {
			stored(c, n, *d)
		} else {
			c.SetCheckpoint(nil)
		}
		if thaw && c.State == core.ContainerPaused {
			if err := step(c, core.VerbResume); err != nil {
				return err
			}
			n.Add(core.Event{Kind: core.EventContainerResumed})
		}
		return nil
	})
	return err
}

func (v Verbs) change(id core.ID, fn func(c *core.Container, n *scope.Change) error) error {
	return v.Scope.EditContainer(id, fn)
}

func step(c *core.Container, verb core.Verb) error {
	next, ok := core.NextContainer(c.State, verb)
	if !ok {
		return fmt.Errorf("it is %s: %w", c.State, errdefs.ErrFailedPrecondition)
	}
	c.State = next
	return nil
}

const sigkill = 9

func now() time.Time { return time.Now().Round(0).UTC() }

// Export writes the checkpoint of a container as a tar.
func (v Verbs) Export(ctx context.Context, id core.ID, w io.Writer) error {
	_, unlock, err := v.Scope.LockedContainer(ctx, id)
	if err == nil {
		err = v.Checkpointer.Export(ctx, id, w)
		unlock()
	}
	if err != nil {
		return fmt.Errorf("export the checkpoint of container %s: %w", id, err)
	}
	return nil
}

// Import reads such a tar.
func (v Verbs) Import(ctx context.Context, r io.Reader) (core.Imported, error) {
	if err := v.Able(ctx); err != nil {
		return nil, err
	}
	return v.Checkpointer.Import(ctx, r)
}

// Forget removes the checkpoint of a container.
func (v Verbs) Forget(ctx context.Context, id core.ID) error {
	_, unlock, err := v.Scope.LockedContainer(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	err = v.change(id, func(c *core.Container, n *scope.Change) error {
		if c.LastCheckpoint() != nil {
			c.LastCheckpoint().Kept = false
		}
		v.Scope.Forced(n, &c.Meta, scope.By{Verb: "remove the checkpoint"})
		return nil
	})
	return errors.Join(err, v.Checkpointer.Remove(ctx, id))
}

// Ended removes the checkpoint of a container that is removed.
func (v Verbs) Ended(ctx context.Context, id core.ID) error {
	return v.Checkpointer.Remove(ctx, id)
}

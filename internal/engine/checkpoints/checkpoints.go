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
	"strings"
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
	return v.CheckpointTogether(ctx, []core.ID{id}, o)
}

// CheckpointTogether is Checkpoint for containers of one sandbox, all stored as they are at one moment. Either
// all have a checkpoint, or none has.
func (v Verbs) CheckpointTogether(ctx context.Context, ids []core.ID, o core.CheckpointOptions) error {
	err := v.Able(ctx)
	if err == nil && (len(ids) == 0 || len(slices.Compact(slices.Sorted(slices.Values(ids)))) != len(ids)) {
		err = fmt.Errorf("no container is named, or one twice: %w", errdefs.ErrInvalidArgument)
	}
	if err == nil {
		err = v.permitted(ctx, ids, func() error { return v.checkpoint(ctx, ids, o) })
	}
	for _, id := range ids {
		if err == nil && o.End {
			_, err = v.Await(ctx, core.Ref{Container: id})
		}
	}
	if err != nil {
		return fmt.Errorf("checkpoint container %s: %w", strings.Join(texts(ids), ", "), err)
	}
	return nil
}

func texts(ids []core.ID) (list []string) {
	for _, id := range ids {
		list = append(list, string(id))
	}
	return list
}

// permitted asks the policies about a checkpoint of each container, wakes those that sleep, and calls do.
func (v Verbs) permitted(ctx context.Context, ids []core.ID, do func() error) error {
	if len(ids) == 0 {
		return do()
	}
	ct, err := v.Scope.Container(ids[0])
	if err != nil {
		return err
	}
	return v.Perform(ctx, &core.Operation{Verb: core.VerbCheckpoint, Container: &ct}, func() error {
		if err := v.Wake(ctx, ids[0]); err != nil {
			return err
		}
		return v.permitted(ctx, ids[1:], do)
	})
}

// group are containers that are stored together.
type group struct {
	v      Verbs
	o      core.CheckpointOptions
	sb     core.Sandbox
	all    []core.Container // as they were before
	begun  int              // the number of those that have a record of the checkpoint
	dumped []core.Dumped    // the results of the first ones
}

func (v Verbs) checkpoint(ctx context.Context, ids []core.ID, o core.CheckpointOptions) error {
	_, unlock, err := v.Scope.LockedContainer(ctx, ids[0])
	if err != nil {
		return err
	}
	defer unlock()
	g := &group{v: v, o: o}
	for _, id := range ids {
		// With this lock held, the end of its processes is recorded after its reason.
		unlock, err := v.Launching(ctx, core.Ref{Container: id})
		if err != nil {
			return err
		}
		defer unlock()
		ct, err := v.Scope.Container(id)
		if err == nil {
			err = v.storable(&ct)
		}
		if err != nil {
			return err
		}
		if g.all = append(g.all, ct); ct.Sandbox != g.all[0].Sandbox {
			return fmt.Errorf("container %s is of another sandbox: %w", id, errdefs.ErrInvalidArgument)
		}
	}
	if g.sb, err = v.Scope.Sandbox(g.all[0].Sandbox); err == nil {
		err = g.dump(ctx)
	}
	ctx = context.WithoutCancel(ctx)
	if err != nil {
		return errors.Join(err, g.undo(ctx))
	}
	for i := range g.all {
		err = errors.Join(err, v.complete(ctx, &g.all[i], g.dumped[i], o.End))
	}
	return err
}

// dump freezes all containers, and stores one after the other.
func (g *group) dump(ctx context.Context) error {
	for i := range g.all {
		if err := g.begin(&g.all[i]); err != nil {
			return err
		}
		g.begun++
	}
	for i := range g.all {
		if err := g.v.Cgroups.Freeze(ctx, g.all[i].Cgroup, true); err != nil {
			return err
		}
	}
	for i := range g.all {
		done, err := g.v.Checkpointer.Dump(ctx, core.DumpRequest{Container: g.all[i], Sandbox: g.sb, CheckpointOptions: g.o})
		if err != nil {
			return err
		}
		g.dumped = append(g.dumped, done)
	}
	return nil
}

// begin records that the checkpoint of a container begins. The record comes first, so that the next agent lets the container continue
// if this one dies.
func (g *group) begin(ct *core.Container) error {
	was := ct.State == core.ContainerPaused
	return g.v.change(ct.ID, func(c *core.Container, n *scope.Change) error {
		if !was {
			if err := step(c, core.VerbPause); err != nil {
				return err
			}
			n.Add(core.Event{Kind: core.EventContainerPaused, Note: "for a checkpoint"})
		}
		c.SetCheckpoint(&core.Checkpoint{Phase: core.CheckpointDumping, At: now(), TCP: g.o.TCP, Paused: was, End: g.o.End})
		g.v.Scope.Forced(n, &c.Meta, scope.By{Verb: string(core.VerbCheckpoint)})
		return nil
	})
}

// undo lets all containers continue without a checkpoint.
func (g *group) undo(ctx context.Context) (err error) {
	for i := range g.begun {
		err = errors.Join(err, g.v.Checkpointer.Remove(ctx, g.all[i].ID), g.v.goOn(ctx, &g.all[i], nil))
	}
	return err
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

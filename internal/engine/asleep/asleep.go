// Package asleep has the verbs sleep and wake, and the recovery of sleeping containers. Such a container
// is frozen, and its memory is in files: see core.Sleeper. Start at Verbs.
package asleep

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
)

// Verbs are the verbs on the containers of a scope.
type Verbs struct {
	Scope scope.Scope
	// Sleeper may be nil. Then no container can sleep.
	Sleeper core.Sleeper
	// Perform asks the policies about an operation and does it.
	Perform func(ctx context.Context, op *core.Operation, do func() error) error
	// Kill kills all processes of a container, and Record stores the reason.
	Kill   func(ctx context.Context, c *core.Container) error
	Record func(ref core.Ref, r core.StopRequest) error
	// Busy reports whether an exec without a record runs in a container.
	Busy   func(id core.ID) bool
	Logger *slog.Logger
}

// By is the reason of a wake, and the note of its event.
type By string

// The reasons.
const (
	ByRequest By = "by a request"
	ByExec    By = "for an exec"
	ByAttach  By = "for a client that attaches"
	ByForward By = "for a connection to a port"
	ByPacket  By = "for a packet"
	ByStop    By = "to be stopped"
	BySignal  By = "for a signal"
	ByPause   By = "to be paused"

	ByCheckpoint By = "for a checkpoint"
	byFailure    By = "because it could not sleep"
	byAgent      By = "because the agent died while it fell asleep"
	byLoss       By = "because packets for it were lost"
)

// LostCall and ShortCall are the Calls of the StopRequests of containers that the engine ends because their
// memory cannot be restored. ShortCall means that their memory limit has no room for it.
const (
	LostCall  = "its memory was lost while it slept"
	ShortCall = "its memory limit left no room for its memory when it woke"
)

// errNone is the error of a node without a Sleeper.
var errNone = fmt.Errorf("this node puts no container to sleep; longshore doctor says why: %w", errdefs.ErrFailedPrecondition) //nolint:gochecknoglobals // an error value

// Sleep puts a running container to sleep. It keeps its connections, descriptors and threads. FailedPrecondition
// if it cannot sleep, ResourceExhausted if the disk is full. After an error it runs as before.
func (v Verbs) Sleep(ctx context.Context, id core.ID) error { return v.put(ctx, id, true) }

// SleepIdle is Sleep for a container that has asked for it by its configuration.
func (v Verbs) SleepIdle(ctx context.Context, id core.ID) error { return v.put(ctx, id, false) }

// put puts a container to sleep. requested says that a caller has requested it.
func (v Verbs) put(ctx context.Context, id core.ID, requested bool) error {
	ct, err := v.Scope.Container(id)
	if err != nil {
		return err
	}
	if err := v.Perform(ctx, &core.Operation{Verb: core.VerbSleep, Container: &ct}, func() error { return v.sleep(ctx, id, requested) }); err != nil {
		return fmt.Errorf("put container %s to sleep: %w", id, err)
	}
	return nil
}

func (v Verbs) sleep(ctx context.Context, id core.ID, requested bool) error {
	ct, unlock, err := v.Scope.LockedContainer(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	switch {
	case ct.State == core.ContainerAsleep:
		return nil
	case v.Sleeper == nil:
		return errNone
	case len(ct.Cgroup.Adopted) > 0:
		return fmt.Errorf("its cgroup is not the engine's own, and may have processes of others: %w", errdefs.ErrFailedPrecondition)
	case ct.MemoryOut():
		return fmt.Errorf("it has just woken, and its memory is not yet back: %w", errdefs.ErrFailedPrecondition)
	case v.Busy(id) || slices.ContainsFunc(ct.Execs, func(p core.Process) bool { return p.Autopsy == nil }):
		return fmt.Errorf("an exec runs in it: %w", errdefs.ErrFailedPrecondition)
	}
	// The record comes first. From now on an exec waits for the lock, and wakes the container.
	err = v.change(id, core.VerbSleep, func(c *core.Container, n *scope.Change) {
		c.Rest = &core.Rest{Phase: core.RestFalling, Since: now(), Checkpoint: c.LastCheckpoint()}
		if requested {
			v.Scope.Forced(n, &c.Meta, scope.By{Verb: string(core.VerbSleep)})
		}
	})
	if err != nil {
		return err
	}
	// A packet that arrives from now on wakes it.
	_, err = v.watch(ctx, &ct)
	var slept core.Slept
	if err == nil {
		slept, err = v.Sleeper.Sleep(ctx, id, ct.Cgroup)
	}
	if err != nil {
		return errors.Join(err, v.awake(context.WithoutCancel(ctx), &ct))
	}
	err = v.change(id, "", func(c *core.Container, n *scope.Change) {
		c.Rest.Phase, c.Rest.Slept = core.RestAsleep, slept
		n.Add(core.Event{Kind: core.EventContainerAsleep, Note: note(&slept)})
	})
	if ended(err) { // it was killed meanwhile
		return errors.Join(err, v.Sleeper.Forget(context.WithoutCancel(ctx), id))
	}
	return err
}

// watch wakes a container when a packet for it arrives. It watches no container without a network of its own.
func (v Verbs) watch(ctx context.Context, ct *core.Container) (kept bool, err error) {
	sb, err := v.Scope.Sandbox(ct.Sandbox)
	if err != nil {
		return false, err
	}
	ns := sb.Config.Namespaces.Net
	if ns.Mode == core.Host || ns.Path == "" || slices.Contains(ct.Config.Own, specs.NetworkNamespace) {
		return true, nil
	}
	return v.Sleeper.Watch(ctx, ct.ID, ns.Path, func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if err := v.WakeSandbox(ctx, ct.Sandbox, ByPacket); err != nil && !ended(err) {
			v.Logger.ErrorContext(ctx, "could not wake a container for a packet", "container", ct.ID, "error", err)
		}
	})
}

// awake lets a container run again after a failed sleep.
func (v Verbs) awake(ctx context.Context, ct *core.Container) error {
	err := v.Sleeper.Wake(ctx, ct.ID, ct.Cgroup, v.back(ct.ID))
	if errors.Is(err, core.ErrMemoryLost) {
		return errors.Join(err, v.lose(ctx, ct, LostCall))
	}
	if err == nil {
		err = v.woken(ct.ID, byFailure)
	}
	if ended(err) {
		return nil
	}
	return err
}

// note describes a sleep for its event.
func note(s *core.Slept) string {
	text := fmt.Sprintf("%d processes gave back %d MiB", s.Processes, s.Given>>20)
	if s.Swap {
		text += ", which are in the swap"
	}
	if len(s.Resident) > 0 {
		text += fmt.Sprintf("; %d areas stay: %s", len(s.Resident), s.Resident[0].Why)
	}
	return text
}

// change changes the record of a live container. A verb also changes the state.
func (v Verbs) change(id core.ID, verb core.Verb, fn func(c *core.Container, n *scope.Change)) error {
	return v.Scope.EditContainer(id, func(c *core.Container, n *scope.Change) error {
		if verb != "" {
			next, ok := core.NextContainer(c.State, verb)
			if !ok {
				return fmt.Errorf("it is %s: %w", c.State, errdefs.ErrFailedPrecondition)
			}
			c.State = next
		}
		if !c.State.Live() {
			return fmt.Errorf("it is %s: %w", c.State, errdefs.ErrFailedPrecondition)
		}
		fn(c, n)
		return nil
	})
}

func ended(err error) bool { return errdefs.IsFailedPrecondition(err) || errdefs.IsNotFound(err) }

// Wake lets a sleeping container continue, and returns when its processes run. It succeeds if the container
// is awake or has ended. If the memory of the container is lost, Wake ends it.
func (v Verbs) Wake(ctx context.Context, id core.ID, by By) error {
	ct, err := v.Scope.Container(id)
	if err != nil {
		return err
	}
	if ct.State != core.ContainerAsleep {
		return nil
	}
	if err := v.Perform(ctx, &core.Operation{Verb: core.VerbWake, Container: &ct}, func() error { return v.wake(ctx, id, by) }); err != nil {
		return fmt.Errorf("wake container %s: %w", id, err)
	}
	return nil
}

// WakeSandbox wakes all containers of a sandbox.
func (v Verbs) WakeSandbox(ctx context.Context, id core.ID, by By) error {
	all, err := v.Scope.ContainersOf(id)
	if err != nil {
		return err
	}
	for _, c := range all {
		if c.State == core.ContainerAsleep {
			err = errors.Join(err, v.Wake(ctx, c.ID, by))
		}
	}
	return err
}

func (v Verbs) wake(ctx context.Context, id core.ID, by By) error {
	ct, unlock, err := v.Scope.LockedContainer(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	return v.WakeLocked(ctx, &ct, by)
}

// WakeLocked is Wake for callers that hold the lock of the sandbox, after the policies have allowed it.
func (v Verbs) WakeLocked(ctx context.Context, ct *core.Container, by By) error {
	if ct.State != core.ContainerAsleep {
		return nil
	}
	if v.Sleeper == nil {
		return errNone
	}
	_, err := v.stage(ctx, ct)
	if err == nil {
		err = v.Sleeper.Wake(ctx, ct.ID, ct.Cgroup, v.back(ct.ID))
	}
	if err == nil {
		err = v.woken(ct.ID, by)
	}
	switch {
	case err == nil || v.over(ct.ID):
		return nil
	case errors.Is(err, core.ErrMemoryLost):
		return errors.Join(err, v.lose(ctx, ct, LostCall))
	}
	return err
}

// over reports whether the end of a container is recorded. Its end does not wait for the lock of the sandbox, and removes
// its files.
func (v Verbs) over(id core.ID) bool {
	ct, err := v.Scope.Container(id)
	return errdefs.IsNotFound(err) || err == nil && !ct.State.Live()
}

// stage returns the stage of a container. If a sleeping container has no files, its memory is lost.
func (v Verbs) stage(ctx context.Context, ct *core.Container) (core.SleepStage, error) {
	stage, err := v.Sleeper.Stage(ctx, ct.ID)
	if err == nil && stage == core.StageNone && ct.MemoryOut() && ct.Rest.Phase == core.RestAsleep {
		err = core.ErrMemoryLost
	}
	return stage, err
}

// woken records that a container runs.
func (v Verbs) woken(id core.ID, by By) error {
	return v.change(id, core.VerbWake, func(c *core.Container, n *scope.Change) {
		if c.Rest == nil {
			c.Rest = &core.Rest{}
		}
		if c.Rest.Phase != core.RestOver { // all pages may be restored already
			c.Rest.Phase = core.RestWaking
		}
		c.Rest.Woken, c.Rest.By = now(), string(by)
		if by == ByRequest {
			v.Scope.Forced(n, &c.Meta, scope.By{Verb: string(core.VerbWake)})
		}
		n.Add(core.Event{Kind: core.EventContainerWoken, Note: string(by)})
	})
}

// back returns a function that records the end of a wake.
func (v Verbs) back(id core.ID) func(core.Woken) {
	return func(w core.Woken) {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		if w.Err == nil {
			err := v.change(id, "", func(c *core.Container, _ *scope.Change) {
				if c.Rest != nil {
					c.Rest.Phase, c.Rest.Faults, c.Rest.Pages, c.Rest.Back = core.RestOver, w.Faults, w.Pages, w.Took
				}
			})
			if err != nil && !ended(err) {
				v.Logger.ErrorContext(ctx, "could not record that a container has woken", "container", id, "error", err)
			}
			return
		}
		call := LostCall
		if w.Short {
			call = ShortCall
		}
		v.Logger.ErrorContext(ctx, "a container that woke cannot go on, and is ended", "container", id, "error", w.Err)
		ct, err := v.Scope.Container(id)
		if err == nil {
			err = v.lose(ctx, &ct, call)
		}
		if err != nil && !ended(err) {
			v.Logger.ErrorContext(ctx, "could not end a container whose memory is lost", "container", id, "error", err)
		}
	}
}

// lose ends a container because its processes would find empty pages.
func (v Verbs) lose(ctx context.Context, ct *core.Container, call string) error {
	req := v.Scope.Request(core.StopRequest{Owner: ct.Owner, Signal: sigkill}, call)
	if err := v.Record(core.Ref{Container: ct.ID}, req); err != nil {
		return err
	}
	return errors.Join(v.Kill(ctx, ct), v.Sleeper.Forget(ctx, ct.ID))
}

const sigkill = 9

func now() time.Time { return time.Now().Round(0).UTC() }

// Ended removes the files of a container that has ended.
func (v Verbs) Ended(ctx context.Context, id core.ID) {
	if v.Sleeper == nil {
		return
	}
	if err := v.Sleeper.Forget(ctx, id); err != nil {
		v.Logger.WarnContext(ctx, "could not remove the memory of a container that has ended; the next recovery does", "container", id, "error", err)
	}
}

// Recover continues after a start of the agent. It wakes the containers that were falling asleep, ends those
// that have lost their memory, and removes the files of others.
func (v Verbs) Recover(ctx context.Context) error {
	if v.Sleeper == nil {
		return nil
	}
	kept, err := v.Sleeper.Asleep(ctx)
	if err != nil {
		return err
	}
	for _, id := range kept {
		ct, err := v.Scope.Container(id)
		if errdefs.IsNotFound(err) || err == nil && (!ct.State.Live() || !ct.MemoryOut()) {
			err = v.Sleeper.Forget(ctx, id)
		}
		if err != nil {
			return err
		}
	}
	var out []core.Container
	err = v.Scope.Store.View(func(tx core.Tx) error {
		for c, err := range tx.Containers().All("") {
			if err != nil {
				return err
			}
			if c.State.Live() && c.MemoryOut() {
				out = append(out, c)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, c := range out {
		if err := v.recoverOne(ctx, &c); err != nil {
			v.Logger.ErrorContext(ctx, "could not recover a sleeping container", "container", c.ID, "error", err)
		}
	}
	return nil
}

func (v Verbs) recoverOne(ctx context.Context, ct *core.Container) error {
	stage, err := v.stage(ctx, ct)
	switch {
	case errors.Is(err, core.ErrMemoryLost):
		return v.lose(ctx, ct, LostCall)
	case err != nil:
		return err
	}
	by := byAgent
	if ct.Rest.Phase == core.RestAsleep && stage == core.StageAsleep {
		kept, err := v.watch(ctx, ct)
		if err == nil && kept {
			return nil
		}
		by = byLoss
	}
	if err := v.Sleeper.Wake(ctx, ct.ID, ct.Cgroup, v.back(ct.ID)); err != nil {
		if errors.Is(err, core.ErrMemoryLost) {
			err = errors.Join(err, v.lose(ctx, ct, LostCall))
		}
		return err
	}
	if ct.State == core.ContainerAsleep {
		return v.woken(ct.ID, by)
	}
	return nil
}

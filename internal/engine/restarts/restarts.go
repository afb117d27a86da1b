// Package restarts has the verbs of restart policies: the start of a container that is due, and the
// changes of a policy and of a pending restart. The core.Restarter of the engine decides about them. Start at Starter.Start.
package restarts

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
)

// ErrNotDue means that a container's restart policy does not want it started any more.
var ErrNotDue = fmt.Errorf("its restart was cancelled: %w", errdefs.ErrFailedPrecondition) //nolint:gochecknoglobals // an error value

// Verbs are the verbs on the containers of a scope. All fields are required.
type Verbs struct {
	Scope scope.Scope
	// Kill kills everything in a container.
	Kill func(ctx context.Context, c *core.Container) error
	// Record stores a caller's request to end the main process.
	Record func(ref core.Ref, r core.StopRequest) error
}

// Starter starts the containers of a scope. All fields are required. It is apart from Verbs, so that a
// program that starts nothing again does not link it.
type Starter struct {
	Verbs
	// Renew makes an ended container ready to be started again.
	Renew func(ctx context.Context, c *core.Container) error
	// StartRenewed starts it, or returns ErrNotDue if no restart is pending.
	StartRenewed func(ctx context.Context, c *core.Container) error
}

// Start starts a container again for its restart policy. It succeeds without a start if the policy
// does not want one any more.
func (v Starter) Start(ctx context.Context, id core.ID) error {
	ct, err := v.Scope.Container(id)
	if err != nil {
		return ignoreNotFound(err)
	}
	if !ct.Restarting() {
		return nil
	}
	if ct.State == core.ContainerExited {
		err = v.Renew(ctx, &ct)
	}
	if err == nil {
		err = v.StartRenewed(ctx, &ct)
	}
	if err == nil {
		return nil
	}
	cur, unlock, gerr := v.Scope.LockedContainer(ctx, id)
	if gerr != nil {
		return ignoreNotFound(gerr)
	}
	defer unlock()
	switch {
	case !errors.Is(err, ErrNotDue) && (cur.Restarting() || cur.State == core.ContainerExited && cur.Restarts.Error != "" && !cur.Restarts.Cancelled):
		return fmt.Errorf("start container %s again: %w", id, err)
	case cur.State != core.ContainerCreated || !errors.Is(err, ErrNotDue):
		return nil // a caller has stopped, started or removed it meanwhile
	}
	// A caller has cancelled the restart while the container was made ready for it.
	if err := v.Kill(ctx, &cur); err != nil {
		return fmt.Errorf("end container %s, because its restart was cancelled: %w", id, err)
	}
	return nil
}

// Started completes the record of a container that its policy has started, and returns the note of
// the event.
func Started(ct *core.Container) (note string) {
	r := &ct.Restarts
	note = fmt.Sprintf("by its restart policy, restart %d", r.Count)
	if r.Boot {
		note = "by its restart policy after the boot"
	}
	r.Due, r.Boot, r.Down, r.Error = time.Time{}, false, false, ""
	return note
}

// PutOff changes a pending restart that has failed, by decide: to a later time, or to none. Without a
// further try it ends the process that waits for its program, which holds addresses and ports.
func (v Verbs) PutOff(ctx context.Context, id core.ID, decide func(*core.Container)) error {
	var waits *core.Container
	err := v.Scope.ChangeContainer(id, scope.By{Verb: "restart"}, func(ct *core.Container, n *scope.Change) error {
		if !ct.Restarting() {
			return nil
		}
		decide(ct)
		note := "its restart policy could not start it and gives up: "
		if ct.Restarting() {
			note = fmt.Sprintf("its restart policy could not start it and tries again in %v: ", ct.Restarts.Delay)
		}
		n.Add(core.Event{Kind: core.EventContainerUpdated, Note: note + ct.Restarts.Error})
		if waits = nil; ct.State == core.ContainerCreated && !ct.Restarting() {
			waits = ct
		}
		return nil
	})
	if err == nil && waits != nil {
		err = v.Kill(ctx, waits)
	}
	return ignoreNotFound(err)
}

// Retry changes the restarts of a container by decide, after a failed start that has ended them.
func (v Verbs) Retry(id core.ID, decide func(*core.Container)) error {
	err := v.Scope.ChangeContainer(id, scope.By{Verb: "restart"}, func(ct *core.Container, n *scope.Change) error {
		if ct.State == core.ContainerExited && !ct.Restarting() && ct.Restarts.Error != "" {
			if decide(ct); ct.Restarting() {
				n.Add(core.Event{Kind: core.EventContainerUpdated, Note: fmt.Sprintf("its restart policy tries again in %v", ct.Restarts.Delay)})
			}
		}
		return nil
	})
	return ignoreNotFound(err)
}

// SetPolicy changes a container's restart policy. It cancels a pending restart if the policy is now
// RestartNever.
func (v Verbs) SetPolicy(id core.ID, p core.RestartPolicy) error {
	err := v.Scope.ChangeContainer(id, scope.By{Verb: "update"}, func(ct *core.Container, n *scope.Change) error {
		if ct.Config.Restart == p {
			return nil
		}
		ct.Config.Restart = p
		if p.Name == core.RestartNever {
			ct.Restarts.Due, ct.Restarts.Boot = time.Time{}, false
		}
		n.Add(core.Event{Kind: core.EventContainerUpdated, Note: "restart policy"})
		return nil
	})
	if err == nil {
		err = v.Scope.Store.Sync()
	}
	if err != nil {
		return fmt.Errorf("set the restart policy of container %s: %w", id, err)
	}
	return nil
}

// End cancels the pending restart of a container that has ended, for the caller of a stop. It returns
// false for a container that runs again.
func (v Verbs) End(ctx context.Context, id core.ID, req core.StopRequest) (ended bool, err error) {
	req.Stop = true
	return v.Signal(ctx, id, v.Scope.Request(req, "StopContainer"))
}

// Signal records a caller's signal to the program of a container that has ended; it may cancel the
// pending restart. It returns false for a container that runs again.
func (v Verbs) Signal(ctx context.Context, id core.ID, req core.StopRequest) (ended bool, err error) {
	cur, err := v.Scope.Container(id)
	if err != nil || cur.State != core.ContainerExited || !cur.Restarting() {
		return cur.State == core.ContainerExited, err
	}
	cur, unlock, err := v.Scope.LockedContainer(ctx, id) // a renewal holds the lock
	if err != nil {
		return false, err
	}
	defer unlock()
	if cur.State != core.ContainerExited {
		return false, nil
	}
	err = v.Record(core.Ref{Container: id}, req)
	if err == nil && cur.Config.Durable {
		err = v.Scope.Store.Sync()
	}
	return true, err
}

func ignoreNotFound(err error) error {
	if errdefs.IsNotFound(err) {
		return nil
	}
	return err
}

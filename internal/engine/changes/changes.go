// Package changes has the changes of a container besides its state: its name, its limits for the
// next start, and the results of its health checks.
package changes

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
	"github.com/longshore/longshore/internal/engine/scope"
)

// Changes changes the objects of a scope.
type Changes struct{ Scope scope.Scope }

// Rename gives a container another key, and its sandbox too where both were created together and
// have the same one. AlreadyExists when another container or sandbox has that key.
func (c Changes) Rename(ctx context.Context, id core.ID, to core.Key) error {
	ct, unlock, err := c.locked(ctx, id)
	if err != nil {
		return fmt.Errorf("rename container %s: %w", id, err)
	}
	defer unlock()
	if ct.Key == to {
		return nil
	}
	err = c.Scope.Store.Update(func(tx core.Tx) error {
		ct, err := tx.Containers().Get(id)
		if err != nil {
			return err
		}
		sb, err := tx.Sandboxes().Get(ct.Sandbox)
		if err != nil {
			return err
		}
		was := ct.Key
		ct.Key = to
		var n scope.Change
		n.Add(core.Event{Kind: core.EventContainerUpdated, Note: "renamed, it was " + string(was)})
		c.Scope.Forced(&n, &ct.Meta, scope.By{Verb: "rename"})
		if err := n.Write(tx, &ct.Meta, ct.Sandbox, ct.ID); err != nil {
			return err
		}
		if sb.Pair && sb.Key == was {
			sb.Key = to
			if err := tx.Sandboxes().Put(sb); err != nil {
				return err
			}
		}
		return tx.Containers().Put(ct)
	})
	if err == nil && ct.Config.Durable {
		err = c.Scope.Store.Sync()
	}
	if err != nil {
		return fmt.Errorf("rename container %s: %w", id, err)
	}
	return nil
}

// Keep stores limits in a container's spec, for its next start. Limits that are nil in res stay. It
// does not change the limits in force.
func (c Changes) Keep(ctx context.Context, id core.ID, res *specs.LinuxResources) error {
	ct, unlock, err := c.locked(ctx, id)
	if err == nil {
		err = c.store(&ct, res)
		unlock()
	}
	if err != nil {
		return fmt.Errorf("keep the limits of container %s: %w", id, err)
	}
	return nil
}

func (c Changes) store(ct *core.Container, res *specs.LinuxResources) error {
	if ct.Bundle == "" {
		return fmt.Errorf("it has no spec: %w", errdefs.ErrFailedPrecondition)
	}
	path := filepath.Join(ct.Bundle, "config.json")
	raw, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	var spec specs.Spec
	if err := json.Unmarshal(raw, &spec); err != nil {
		return fmt.Errorf("read its spec: %w", err)
	}
	if spec.Linux == nil {
		spec.Linux = &specs.Linux{}
	}
	spec.Linux.Resources = Merge(spec.Linux.Resources, res)
	if raw, err = json.Marshal(&spec); err != nil {
		return err
	}
	if err := atomicfile.Replace(path, raw, 0o600); err != nil {
		return err
	}
	ended := ct.State == core.ContainerExited
	if !ended && !ct.Config.Durable {
		return nil // the change of the limits in force has its own event
	}
	err = c.Scope.ChangeContainer(ct.ID, scope.By{Verb: "update"}, func(ct *core.Container, n *scope.Change) error {
		if ct.Config.Durable {
			ct.SavedSpec = core.Blob(raw)
		}
		if !ended {
			return nil
		}
		n.Add(core.Event{Kind: core.EventContainerUpdated, Note: "limits for its next start"})
		return nil
	})
	if err != nil || !ct.Config.Durable {
		return err
	}
	return c.Scope.Store.Sync()
}

// healthStarting is the status before the first health check, and maxNote bounds a check's output
// in an event, in characters.
const (
	healthStarting = "starting"
	maxNote        = 200
)

// Health stores the result of the health checks of a container's program, with an event if the
// status has changed. FailedPrecondition if the program no longer runs, or was started again since.
func (c Changes) Health(ctx context.Context, id core.ID, h core.Health) error {
	ct, unlock, err := c.locked(ctx, id)
	if err == nil {
		err = c.health(ct.ID, h)
		unlock()
	}
	if err != nil {
		return fmt.Errorf("store the health of container %s: %w", id, err)
	}
	return nil
}

func (c Changes) health(id core.ID, h core.Health) error {
	return c.Scope.ChangeContainer(id, scope.By{Verb: "health check"}, func(ct *core.Container, n *scope.Change) error {
		if !ct.State.Live() || !ct.Main.Started.Equal(h.Since) {
			return fmt.Errorf("its program was started at another time, or has ended: %w", errdefs.ErrFailedPrecondition)
		}
		was := healthStarting
		if now := ct.HealthNow(); now != nil {
			was = now.Status
		}
		ct.Health = &h
		if was == h.Status {
			return nil
		}
		note := h.Status
		if n := len(h.Probes); n > 0 && h.Probes[n-1].Output != "" && h.Failures > 0 {
			output := []rune(h.Probes[n-1].Output)
			note += ": " + string(output[:min(len(output), maxNote)])
		}
		n.Add(core.Event{Kind: core.EventContainerHealth, Note: note})
		return nil
	})
}

// locked returns a container that may be changed, with its sandbox's lock held.
func (c Changes) locked(ctx context.Context, id core.ID) (ct core.Container, unlock func(), err error) {
	if ct, unlock, err = c.Scope.LockedContainer(ctx, id); err != nil {
		return ct, nil, err
	}
	if ct.State == core.ContainerCreating || ct.Removing {
		unlock()
		return ct, nil, fmt.Errorf("it is being created or removed: %w", errdefs.ErrFailedPrecondition)
	}
	return ct, unlock, nil
}

// Merge returns old with the values of update that are not nil: limits of memory, of the CPU and of
// processes.
func Merge(old, update *specs.LinuxResources) *specs.LinuxResources {
	out := specs.LinuxResources{}
	if old != nil {
		out = *old
	}
	if update == nil {
		return &out
	}
	if m := update.Memory; m != nil {
		to := specs.LinuxMemory{}
		if out.Memory != nil {
			to = *out.Memory
		}
		set(&to.Limit, m.Limit)
		set(&to.Swap, m.Swap)
		set(&to.Reservation, m.Reservation)
		out.Memory = &to
	}
	if u := update.CPU; u != nil {
		to := specs.LinuxCPU{}
		if out.CPU != nil {
			to = *out.CPU
		}
		set(&to.Shares, u.Shares)
		set(&to.Quota, u.Quota)
		set(&to.Period, u.Period)
		if u.Cpus != "" {
			to.Cpus = u.Cpus
		}
		if u.Mems != "" {
			to.Mems = u.Mems
		}
		out.CPU = &to
	}
	if update.Pids != nil {
		out.Pids = update.Pids
	}
	return &out
}

func set[T any](to **T, value *T) {
	if value != nil {
		*to = value
	}
}

package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/etc"
	"github.com/longshore/longshore/internal/engine/networks"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/stages"
	"github.com/longshore/longshore/internal/engine/underway"
)

// teardown releases the resources of sandboxes and containers on the node. Every step succeeds if
// its resource is gone, so each can be tried again.
type teardown struct {
	e        *Engine
	by       scope.Change     // the events of the removal's caller
	pipeline *stages.Pipeline // gets the stages; nil for none
}

// container releases all resources of a container and then drops its record.
func (t teardown) container(ctx context.Context, ct *core.Container) error {
	return t.run(ctx, t.containerStages(ct))
}

func (t teardown) containerStages(ct *core.Container) []stages.Stage {
	return []stages.Stage{
		{Name: "runtime", Do: func(ctx context.Context) error {
			rt, err := t.e.runtime(ct.Runtime)
			if err != nil {
				return nil //nolint:nilerr // its runtime is no longer configured, so nothing of it can run
			}
			return t.processes(ctx, rt, ct)
		}},
		{Name: "unmount", Do: func(ctx context.Context) error {
			return errors.Join(t.e.o.Roots.Unmount(ctx, filepath.Join(ct.Bundle, "rootfs")), t.e.imageVolumes().Release(ctx, ct))
		}},
		{Name: "discard", Do: func(ctx context.Context) error {
			if ct.Image == "" {
				return nil
			}
			return t.e.o.Images.Discard(ctx, ct.ID)
		}},
		{Name: "cgroup", Do: func(ctx context.Context) error { return t.e.o.Cgroups.Remove(ctx, ct.Cgroup) }},
		{Name: "bundle", Do: func(ctx context.Context) error {
			if t.e.o.Checkpoints != nil {
				if err := t.e.o.Checkpoints(t.e.All()).Ended(ctx, ct.ID); err != nil {
					return err
				}
			}
			return removeBundle(ct.Bundle)
		}},
		{Name: "record", Do: func(context.Context) error { return t.e.records.DropContainer(ct.ID, t.by) }},
		// The records tell the users of a volume. Recovery finds a mount that a crash leaves here.
		{Name: "volumes", Do: func(ctx context.Context) error {
			err := t.e.volumes.Release(ctx, ct.Owner, ct.Config.Volumes)
			if ct.State == core.ContainerCreating { // its create was interrupted: nobody has seen its volumes
				err = errors.Join(err, t.e.volumes.Abandon(ctx, ct.Owner, ct.Config.Volumes))
			}
			return err
		}},
	}
}

// run executes stages in order, up to the first that fails.
func (t teardown) run(ctx context.Context, list []stages.Stage) error {
	for _, s := range list {
		if err := s.Do(ctx); err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		if t.pipeline == nil {
			continue
		}
		if err := t.pipeline.Pass(s.Name); err != nil {
			return err
		}
	}
	return nil
}

// release releases a sandbox's namespaces, network, init and shared memory, and records that.
// Preconditions: the sandbox's lock is held.
func (t teardown) release(ctx context.Context, sb *core.Sandbox) error {
	return t.run(ctx, t.releaseStages(sb))
}

func (t teardown) releaseStages(sb *core.Sandbox) []stages.Stage {
	return []stages.Stage{
		{Name: "network", Do: func(ctx context.Context) error {
			if sb.Config.Namespaces.Net.Mode != core.Shared {
				return nil
			}
			ctx, cancel := underway.Attend(ctx)
			defer cancel()
			if err := networks.KeepRefused(t.e.records.Records, sb, t.e.o.EgressRefused); err != nil {
				return err
			}
			return t.e.o.Network.Teardown(ctx, sb.NetworkRequest())
		}},
		{Name: "unpin", Do: func(ctx context.Context) error {
			var err error
			if sb.Config.Namespaces.PID.Mode == core.Shared {
				err = t.init(ctx, sb)
			}
			if err == nil && sb.Dir != "" {
				err = t.unmountShm(ctx, sb.Dir)
			}
			return errors.Join(err, t.e.o.Pinner.Unpin(ctx, sb.ID))
		}},
		{Name: "done", Do: func(context.Context) error {
			_, err := t.e.records.EditSandbox(sb.ID, func(sb *core.Sandbox, _ *scope.Change) error {
				for _, ns := range owned.Pinned(&sb.Config.Namespaces) {
					ns.Path = ""
				}
				sb.Init, sb.Renewing = 0, false
				if sb.Config.Namespaces.PID.Mode == core.Shared {
					sb.Config.Namespaces.PID.Path = ""
				}
				return nil
			})
			return err
		}},
	}
}

// init removes a sandbox's tiny init with its container.
func (t teardown) init(ctx context.Context, sb *core.Sandbox) error {
	if rt, err := t.e.runtime(sb.Config.Runtime); err == nil {
		if err := rt.Delete(ctx, sb.ID, true); err != nil {
			return err
		}
	}
	bundle := t.e.bundle(sb.ID)
	if err := t.e.o.Roots.Unmount(ctx, filepath.Join(bundle, "rootfs")); err != nil {
		return err
	}
	cg, err := t.e.o.Cgroups.Place(core.Cgroup{}, sb.Cgroup, "init")
	if err != nil {
		return err
	}
	return errors.Join(t.e.o.Cgroups.Remove(ctx, cg), removeBundle(bundle))
}

// sandbox releases the other resources of a released sandbox and then drops its record.
func (t teardown) sandbox(ctx context.Context, sb *core.Sandbox) error {
	return t.run(ctx, t.sandboxStages(sb))
}

func (t teardown) sandboxStages(sb *core.Sandbox) []stages.Stage {
	return []stages.Stage{
		{Name: "runtime", Do: func(ctx context.Context) error {
			if sb.Config.Namespaces.PID.Mode != core.Shared {
				return nil
			}
			return t.e.forgetKilled(ctx, core.Ref{Container: sb.ID})
		}},
		{Name: "cgroup", Do: func(ctx context.Context) error { return t.e.o.Cgroups.Remove(ctx, sb.Cgroup) }},
		{Name: "files", Do: func(ctx context.Context) error { return t.sandboxDir(ctx, sb.Dir) }},
		{Name: "record", Do: func(context.Context) error { return t.e.records.DropSandbox(sb.ID, t.by) }},
	}
}

// processes has the runtime and the keeper forget a container's processes.
func (t teardown) processes(ctx context.Context, rt core.Runtime, ct *core.Container) error {
	if err := rt.Delete(ctx, ct.ID, true); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	for _, p := range slices.Concat([]core.Process{ct.Main}, ct.Execs, t.e.quiet.In(ct.ID)) {
		err := t.e.o.Supervisor.Forget(ctx, core.Ref{Container: ct.ID, Process: p.ID})
		// A process that is just dying is forgotten when its exit comes.
		if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
			return fmt.Errorf("forget: %w", err)
		}
	}
	t.e.quiet.Forget(ct.ID)
	return nil
}

// sandboxDir unmounts the mounts in a sandbox's directory and removes it.
func (t teardown) sandboxDir(ctx context.Context, dir string) error {
	if dir == "" {
		return nil
	}
	if err := t.unmountShm(ctx, dir); err != nil {
		return err
	}
	if err := etc.Remove(ctx, t.e.o.Roots, dir); err != nil {
		return err
	}
	return os.RemoveAll(dir)
}

func (t teardown) unmountShm(ctx context.Context, dir string) error {
	shm := filepath.Join(dir, owned.ShmDir)
	if _, err := os.Lstat(shm); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		return err
	}
	if err := t.e.o.Roots.Unmount(ctx, shm); err != nil {
		return err
	}
	// Should it still be mounted, this fails and nothing in it is deleted.
	return os.Remove(shm)
}

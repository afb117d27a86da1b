package engine

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/etc"
	"github.com/longshore/longshore/internal/engine/fallback"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/stages"
	"github.com/longshore/longshore/internal/engine/validate"
)

var errJoin = errdefs.ErrFailedPrecondition //nolint:gochecknoglobals // an error value that never changes

// CreateContainer creates a container in a ready sandbox. Its process waits before the program
// until StartContainer, unless cfg.Run is set. With a Key that is in use it returns the first
// object and AlreadyExists; an empty Key becomes the ID. Stopping or removing the sandbox or the container
// meanwhile ends the create with Aborted.
func (c *Client) CreateContainer(ctx context.Context, cfg core.ContainerConfig) (core.Container, error) {
	b, err := c.view.newBuild(cfg)
	if err != nil {
		return core.Container{}, err
	}
	return b.result(c.e.perform(ctx, &core.Operation{Verb: core.VerbCreate, Container: &b.c}, func() error {
		return c.e.creates.Run(ctx, b.c.Sandbox, stages.Crashed, func(ctx context.Context) error {
			unlock, err := c.e.sandboxes.Lock(ctx, b.c.Sandbox)
			if err != nil {
				return err
			}
			defer unlock()
			sb, err := c.view.Sandbox(b.c.Sandbox)
			if err != nil {
				return err
			}
			b.pipeline = c.e.pipeline(ctx, b.c.Owner, "create")
			return b.in(ctx, c.view, sb)
		})
	}))
}

// build is the state of one CreateContainer.
type build struct {
	e        *Engine
	pipeline *stages.Pipeline
	cfg      core.ContainerConfig // the caller's config, with the fields that are not stored
	sb       core.Sandbox
	rt       core.Runtime
	c        core.Container
	first    *core.Container // the container that has the key
	fs       *os.Root
	image    *ocispec.ImageConfig
	volumes  []specs.Mount
	relabel  []core.Relabel
	images   []string
	spec     *specs.Spec
	made     func() error // waits until the cgroup exists, without limits
	ridmap   bool         // the runtime maps the owners of mounts below a mount
}

// newBuild does the part of a create that needs no sandbox.
func (v view) newBuild(cfg core.ContainerConfig) (*build, error) {
	owner, err := v.Creates("create container")
	if err != nil {
		return nil, err
	}
	if err := validate.Container(&cfg); err != nil {
		return nil, fmt.Errorf("create container %q: %w", cfg.Key, err)
	}
	id := newID()
	if v.e.o.Logs != nil {
		if err := v.e.o.Logs.Complete(id, &cfg); err != nil {
			return nil, fmt.Errorf("create container %q: %w", cfg.Key, err)
		}
	}
	if cfg.Key == "" {
		cfg.Key = core.Key(id)
	}
	cfg.Durable = cfg.Durable && v.e.o.Return != nil
	stored := cfg
	stored.Volumes = withoutOptions(cfg.Volumes)
	return &build{e: v.e, cfg: cfg, c: core.Container{
		Meta:    core.Meta{ID: id, Owner: owner, Key: cfg.Key, Labels: cfg.Labels, Data: cfg.Data, Created: now()},
		Config:  stored,
		Sandbox: cfg.Sandbox, Parent: cfg.Parent, State: core.ContainerCreating,
		Main:   core.Process{TTY: cfg.IO.TTY, Hold: cfg.IO.Hold},
		Bundle: v.e.bundle(id), Image: cfg.Root.Image,
	}}, nil
}

// in creates the container in its sandbox with b.pipeline. Preconditions: the sandbox's lock is
// held.
func (b *build) in(ctx context.Context, v view, sb core.Sandbox) error {
	b.sb = sb
	if b.cfg.Labelled && b.cfg.Root.Image != "" {
		b.cfg.FileLabel, b.c.Config.FileLabel = sb.Config.FileLabel, sb.Config.FileLabel
	}
	if b.cfg.Durable && !sb.Config.Durable {
		return fmt.Errorf("a durable container is in a durable sandbox: %w", errdefs.ErrInvalidArgument)
	}
	err := b.place(v)
	if err == nil {
		err = b.users(ctx)
	}
	if err != nil {
		b.pipeline.End(ctx, err)
		return err
	}
	// With this lock held, nobody can record the end of the process before its start is recorded.
	unlock, err := b.e.launches.Lock(ctx, core.Ref{Container: b.c.ID})
	if err != nil {
		b.pipeline.End(ctx, err)
		return err
	}
	defer unlock()
	defer b.close()
	return b.e.creates.Run(ctx, b.c.ID, stages.Crashed, func(ctx context.Context) error { return b.pipeline.Run(ctx, b.stages()) })
}

// users decides whether the container has the user namespace of its sandbox.
func (b *build) users(ctx context.Context) error {
	b.c.Config.Users.Host = ""
	if b.e.o.Users == nil || len(b.sb.Config.UIDs) == 0 {
		return nil
	}
	f, err := b.e.featuresOf(ctx, b.rt)
	b.ridmap = f.RecursiveIDMaps
	b.c.Config.Users.Host = b.e.o.Users.Exempt(&b.sb.Config, &b.cfg, b.rt.Name(), f)
	b.sb = b.sb.Of(&b.c.Config)
	return err
}

// place chooses the container's runtime and cgroup.
func (b *build) place(v view) (err error) {
	if b.rt, err = b.e.runtime(runtimeName(&b.sb, &b.cfg)); err != nil {
		return err
	}
	if b.c.Parent != "" {
		parent, err := v.Container(b.c.Parent)
		if err != nil {
			return err
		}
		if parent.Sandbox != b.sb.ID {
			return fmt.Errorf("parent %s is in another sandbox: %w", b.c.Parent, errdefs.ErrInvalidArgument)
		}
	}
	b.c.Runtime = b.rt.Name()
	// This holds for a nested container too: cgroup v2 allows no cgroup below one with processes.
	b.c.Cgroup, err = b.e.o.Cgroups.Place(b.cfg.Cgroup, b.sb.Cgroup, b.cfg.CgroupName(b.c.ID))
	return err
}

func (b *build) stages() []stages.Stage {
	return []stages.Stage{
		{Name: "reserve", Do: b.reserve},
		{Name: "root", Do: b.root},
		{Name: "volumes", Do: b.takeVolumes},
		{Name: "images", Do: b.mountImages},
		{Name: "spec", Do: b.callSpec},
		{Name: "own", Do: b.own},
		{Name: "adjust", Do: b.adjust},
		{Name: "cgroup", Do: b.cgroup},
		{Name: "launch", Do: b.launch},
		{Name: "commit", Do: b.commit},
	}
}

// result returns the results of CreateContainer.
func (b *build) result(err error) (core.Container, error) {
	switch {
	case err == nil:
		return b.c, nil
	case b.first != nil:
		return *b.first, fmt.Errorf("create container %q: %w", b.c.Key, err)
	default:
		return core.Container{}, fmt.Errorf("create container %q: %w", b.c.Key, notOurs(err))
	}
}

// levelsOf returns the cgroups with limits for a container: its own first, the sandbox's last.
func levelsOf(sb *core.Sandbox, c *core.Container) []core.CgroupRef {
	return []core.CgroupRef{c.Cgroup, sb.Cgroup}
}

func (b *build) close() {
	if b.fs != nil {
		_ = b.fs.Close()
	}
}

func (b *build) reserve(context.Context) error {
	err := b.e.o.Store.Update(func(tx core.Tx) error {
		if first, err := tx.Containers().ByKey(b.c.Owner, b.c.Key); err == nil {
			b.first = &first
			return fmt.Errorf("its name is in use by container %s, which is %s: %w", first.ID, first.State, errdefs.ErrAlreadyExists)
		}
		// The sandbox's lock is held, so its state is as it was read.
		if b.sb.State != core.SandboxReady {
			return fmt.Errorf("sandbox %s is %s: %w", b.sb.ID, b.sb.State, errdefs.ErrFailedPrecondition)
		}
		if b.c.Parent != "" {
			if p, err := tx.Containers().Get(b.c.Parent); err != nil {
				return err
			} else if p.State == core.ContainerExited {
				return fmt.Errorf("parent %s is %s: %w", p.ID, p.State, errdefs.ErrFailedPrecondition)
			}
		}
		n := scope.Change{}
		n.Add(core.Event{Kind: core.EventContainerCreating})
		if err := n.Write(tx, &b.c.Meta, b.c.Sandbox, b.c.ID); err != nil {
			return err
		}
		return tx.Containers().Put(b.c)
	})
	if err == nil {
		// The records tell the users of a volume, so this comes after the removal of the record.
		b.pipeline.Undo.Add("anonymous volumes", func(ctx context.Context) error { return b.e.volumes.Abandon(ctx, b.c.Owner, b.c.Config.Volumes) })
		b.pipeline.Undo.Add("volumes", func(ctx context.Context) error { return b.e.volumes.Release(ctx, b.c.Owner, b.c.Config.Volumes) })
		b.pipeline.Undo.Add("record", func(context.Context) error { return b.e.records.DropContainer(b.c.ID, scope.Change{}) })
	}
	return err
}

// root checks out and mounts the root filesystem. It also begins to create the cgroup; its limits
// follow with the spec.
func (b *build) root(ctx context.Context) error {
	b.made = b.pipeline.Beside(func() error { return b.e.o.Cgroups.Create(ctx, b.c.Cgroup, nil) })
	b.pipeline.Undo.Add("cgroup", func(ctx context.Context) error {
		_ = b.made()
		return b.e.o.Cgroups.Remove(ctx, b.c.Cgroup)
	})
	rootfs := filepath.Join(b.c.Bundle, "rootfs")
	b.pipeline.Undo.Add("bundle", func(context.Context) error { return removeBundle(b.c.Bundle) })
	if err := makeBundle(b.c.Bundle); err != nil {
		return err
	}
	mounts := owned.RootMounts(b.cfg.Root)
	if b.cfg.Root.Image != "" {
		b.pipeline.Undo.Add("checkout", func(ctx context.Context) error { return b.e.o.Images.Discard(ctx, b.c.ID) })
		// The checkout is writable even for a read-only root, because the runtime creates mount
		// points in it before it makes the root read-only.
		co, err := b.e.o.Images.Checkout(ctx, core.CheckoutRequest{
			Container: b.c.ID, Image: b.cfg.Root.Image, UIDs: owned.Ranges(b.sb.Config.UIDs), GIDs: owned.Ranges(b.sb.Config.GIDs), Durable: b.cfg.Durable, Disk: b.cfg.Disk,
		})
		if err != nil {
			return err
		}
		mounts, b.image = co.Mounts, &co.Config.Config
	}
	b.pipeline.Undo.Add("mount", func(ctx context.Context) error { return b.e.o.Roots.Unmount(ctx, rootfs) })
	if err := b.e.o.Roots.Mount(ctx, rootfs, owned.Labelled(mounts, b.cfg.FileLabel), false); err != nil {
		return err
	}
	var err error
	b.fs, err = os.OpenRoot(rootfs)
	return err
}

func (b *build) callSpec(ctx context.Context) error {
	spec, data, err := b.cfg.Spec(ctx, core.Rootfs{
		FS: b.fs, Image: b.image, Sandbox: b.sb, ReadOnly: b.cfg.Root.ReadOnly && b.cfg.Root.Image != "", ID: b.c.ID, Images: b.images,
	})
	if err != nil {
		return err
	}
	if spec == nil {
		return fmt.Errorf("spec: none was made: %w", errdefs.ErrInvalidArgument)
	}
	b.spec = spec
	if data != nil {
		b.c.Data = data
	}
	if spec.Process != nil {
		b.c.Main.Args = spec.Process.Args
		b.c.Main.TTY = b.cfg.IO.TTY
	}
	if b.cfg.Stop.Signal == "" && b.image != nil {
		b.c.Config.Stop.Signal = b.image.StopSignal
	}
	return nil
}

func (b *build) cgroup(ctx context.Context) error {
	if err := b.made(); err != nil {
		return err
	}
	var res *specs.LinuxResources
	if b.spec.Linux != nil {
		res = b.spec.Linux.Resources
	}
	return b.e.o.Cgroups.Update(ctx, b.c.Cgroup, res)
}

func (b *build) launch(ctx context.Context) error {
	if b.cfg.Rest != nil {
		return owned.Rest(&b.c, b.spec, b.cfg.Rest)
	}
	b.pipeline.Undo.Add("launch", func(ctx context.Context) error { return teardown{e: b.e}.processes(ctx, b.rt, &b.c) })
	b.c.Warnings = append(b.c.Warnings, etc.Without(&b.sb)...)
	if b.cfg.Run {
		// Everything is recorded before the launch: after a crash, recovery finds the process and
		// may have to complete the create.
		err := b.e.records.EditContainer(b.c.ID, func(c *core.Container, _ *scope.Change) error {
			c.Main, c.Config, c.Warnings, c.Data = b.c.Main, b.c.Config, b.c.Warnings, b.c.Data
			return nil
		})
		if err != nil {
			return err
		}
	}
	return b.refuse(ctx, b.process(ctx, b.sb.AnyRuntime && b.cfg.Runtime == ""))
}

// process has the runtime create the main process; others may stand in if the request names no runtime, and the container has no
// SELinux label: they would not label its standard streams, and the kernel would replace these.
func (b *build) process(ctx context.Context, others bool) error {
	uid, gid := owned.HostIDs(&b.sb, b.spec.Process)
	try := fallback.Runtimes{First: b.rt, Others: b.e.o.Runtimes, Any: others && b.c.Config.FileLabel == "", Version: b.e.version, Take: func(rt core.Runtime) error {
		b.rt, b.c.Runtime = rt, rt.Name()
		return b.e.records.EditContainer(b.c.ID, func(c *core.Container, _ *scope.Change) error { c.Runtime = rt.Name(); return nil })
	}}
	pid, warnings, err := try.Create(ctx, core.RuntimeCreate{
		Run: b.cfg.Run, ID: b.c.ID, Bundle: b.c.Bundle, Spec: b.spec, IO: b.cfg.IO, Cgroup: b.c.Cgroup, Limited: true,
		Levels: levelsOf(&b.sb, &b.c), UID: uid, GID: gid, Confined: func(k core.Confinement) { b.c.Confinement = &k }, Identity: owned.Identity(&b.c), Grants: b.c.Config.Grants, HookID: b.cfg.HookID,
	})
	b.c.Main.Pid, b.c.Warnings = pid, append(b.c.Warnings, warnings...)
	return err
}

func (b *build) commit(context.Context) error {
	if b.c.Config.Durable {
		raw, err := json.Marshal(b.spec)
		if err != nil {
			return err
		}
		b.c.SavedSpec = core.Blob(raw)
	}
	err := b.e.o.Store.Update(func(tx core.Tx) error {
		c := b.c
		c.Trace = b.e.pulls.Of(c.Image).With(b.pipeline.Trace())
		n := scope.Change{}
		if err := created(&c, &n); err != nil {
			return err
		}
		if err := n.Write(tx, &c.Meta, c.Sandbox, c.ID); err != nil {
			return err
		}
		if err := tx.Containers().Put(c); err != nil {
			return err
		}
		b.c, b.c.Config.Spec = c, nil // as it is stored
		return nil
	})
	if err == nil && b.c.Config.Durable && !b.cfg.Run { // a failure undoes the create
		err = b.e.o.Store.Sync()
	}
	return err
}

// created completes a create, and marks the container running if it was started in the same call.
func created(c *core.Container, n *scope.Change) error {
	n.Add(core.Event{Kind: core.EventContainerCreated})
	err := step(c, core.VerbCommit)
	if err == nil && c.Resting {
		return step(c, core.VerbExit)
	}
	if err != nil || !c.Config.Run {
		return err
	}
	c.Main.Started = now()
	n.Add(core.Event{Kind: core.EventContainerStarted})
	return step(c, core.VerbStart)
}

// Container returns one container.
func (c *Client) Container(_ context.Context, id core.ID) (core.Container, error) {
	return c.view.Container(id)
}

// ContainerByKey returns the container with the name that its face gave it.
func (c *Client) ContainerByKey(_ context.Context, key core.Key) (ct core.Container, err error) {
	owner, err := c.view.Creates("container by key")
	if err != nil {
		return ct, err
	}
	err = c.e.o.Store.View(func(tx core.Tx) error { ct, err = tx.Containers().ByKey(owner, key); return err })
	return ct, err
}

// Containers returns those that match f, oldest first. Filter.Kinds does not apply.
func (c *Client) Containers(_ context.Context, f core.Filter) (list []core.Container, err error) {
	selected, ok := c.view.Selects(f)
	if !ok {
		return nil, nil
	}
	match := func(ct *core.Container) bool {
		return selected.Sees(&ct.Meta) && (f.Sandbox == "" || ct.Sandbox == f.Sandbox) && f.MatchLabels(ct.Labels)
	}
	err = c.e.o.Store.View(func(tx core.Tx) error {
		if f.Container != "" {
			if ct, err := tx.Containers().Get(f.Container); err == nil && match(&ct) {
				list = append(list, ct)
			}
			return nil
		}
		if f.Sandbox != "" {
			for ct := range tx.ContainersOf(f.Sandbox) {
				if match(&ct) {
					list = append(list, ct)
				}
			}
			return nil
		}
		for ct, err := range tx.Containers().All(selected.Owner) {
			if err != nil {
				return err
			}
			if match(&ct) {
				list = append(list, ct)
			}
		}
		return nil
	})
	return list, err
}

// SetContainerData replaces the face's own record of a container.
func (c *Client) SetContainerData(_ context.Context, id core.ID, data []byte) error {
	return c.view.ChangeContainer(id, scope.By{Verb: "set data"}, func(ct *core.Container, _ *scope.Change) error {
		ct.Data = data
		return nil
	})
}

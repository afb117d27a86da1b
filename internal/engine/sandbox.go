package engine

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/etc"
	"github.com/longshore/longshore/internal/engine/fallback"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/stages"
	"github.com/longshore/longshore/internal/engine/without"
)

// CreateSandbox creates a sandbox and returns it ready. With a Key that is in use it returns the
// first object and AlreadyExists, after the first object's create has ended; an empty Key becomes
// the ID. Stopping or removing the sandbox meanwhile ends the create with Aborted.
func (c *Client) CreateSandbox(ctx context.Context, cfg core.SandboxConfig) (core.Sandbox, error) {
	for {
		b, err := c.view.newSandboxBuild(ctx, cfg)
		if err != nil {
			return core.Sandbox{}, err
		}
		sb, err := b.result(c.e.perform(ctx, &core.Operation{Verb: core.VerbCreate, Sandbox: &b.sb}, func() error {
			unlock, err := c.e.sandboxes.Lock(ctx, b.sb.ID)
			if err != nil {
				return err
			}
			defer unlock()
			return c.e.creates.Run(ctx, b.sb.ID, stages.Crashed, func(ctx context.Context) error { return b.pipeline.Run(ctx, b.stages()) })
		}))
		again, werr := c.e.awaitFirst(ctx, b.first)
		if werr != nil {
			return core.Sandbox{}, werr
		}
		if !again {
			return sb, err
		}
	}
}

// awaitFirst waits for the end of the create of the sandbox that has a key, if it is under way. It
// reports whether the key may be free, or the sandbox ready.
func (e *Engine) awaitFirst(ctx context.Context, first *core.Sandbox) (again bool, err error) {
	if first == nil || first.State != core.SandboxCreating {
		return false, nil
	}
	unlock, err := e.sandboxes.Lock(ctx, first.ID)
	if err != nil {
		return false, fmt.Errorf("create sandbox %q: another call is creating it: %w", first.Key, err)
	}
	unlock()
	now, err := e.records.Sandbox(first.ID)
	if errdefs.IsNotFound(err) {
		return true, nil
	}
	return err == nil && now.State != core.SandboxCreating, err
}

// sandboxBuild is the state of one CreateSandbox.
type sandboxBuild struct {
	e        *Engine
	pipeline *stages.Pipeline
	rt       core.Runtime
	sb       core.Sandbox
	first    *core.Sandbox // the sandbox that has the key
	rest     bool          // its container rests: see core.ContainerConfig
	// limited waits until the cgroup exists and has its limits.
	limited func() error
}

func (v view) newSandboxBuild(ctx context.Context, cfg core.SandboxConfig) (*sandboxBuild, error) {
	owner, err := v.Creates("create sandbox")
	if err != nil {
		return nil, err
	}
	id := newID()
	if cfg.Key == "" {
		cfg.Key = core.Key(id)
	}
	rt, err := v.e.runtime(cfg.Runtime)
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	place, err := v.e.o.Cgroups.Place(cfg.Cgroup, core.CgroupRef{}, string(id))
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	if err := v.e.joins().Resolve(owner, &cfg); err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	if err := v.e.All().Attachments.Complete(owner, &cfg); err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	cfg.Durable = cfg.Durable && v.e.o.Return != nil
	anyRuntime := cfg.Runtime == ""
	cfg.Runtime = rt.Name()
	return &sandboxBuild{e: v.e, pipeline: v.e.pipeline(ctx, owner, "create_sandbox"), rt: rt, sb: core.Sandbox{
		Meta:   core.Meta{ID: id, Owner: owner, Key: cfg.Key, Labels: cfg.Labels, Data: cfg.Data, Created: now()},
		Config: cfg, State: core.SandboxCreating, Cgroup: place, Dir: v.e.sandboxDir(id), AnyRuntime: anyRuntime,
	}}, nil
}

func (b *sandboxBuild) stages() []stages.Stage {
	return []stages.Stage{
		{Name: "reserve", Do: b.reserve},
		{Name: "pin", Do: b.pin},
		{Name: "network", Do: b.network},
		{Name: "files", Do: b.files},
		{Name: "cgroup", Do: func(context.Context) error { return b.limited() }},
		{Name: "init", Do: b.init},
		{Name: "admit", Do: b.admit},
		{Name: "commit", Do: b.commit},
	}
}

// result returns the results of CreateSandbox.
func (b *sandboxBuild) result(err error) (core.Sandbox, error) {
	switch {
	case err == nil:
		return b.sb, nil
	case b.first != nil:
		return *b.first, fmt.Errorf("create sandbox %q: %w", b.sb.Key, err)
	default:
		return core.Sandbox{}, fmt.Errorf("create sandbox %q: %w", b.sb.Key, notOurs(err))
	}
}

func (b *sandboxBuild) reserve(ctx context.Context) error {
	if err := b.users(ctx); err != nil {
		return err
	}
	f, err := b.e.featuresOf(ctx, b.rt)
	if err != nil {
		return err
	}
	err = b.e.o.Store.Update(func(tx core.Tx) error {
		if first, err := tx.Sandboxes().ByKey(b.sb.Owner, b.sb.Key); err == nil {
			b.first = &first
			return fmt.Errorf("its name is in use by sandbox %s, which is %s: %w", first.ID, first.State, errdefs.ErrAlreadyExists)
		}
		if b.e.o.Users != nil {
			if err := b.e.o.Users.Take(tx, &b.sb.Config); err != nil {
				return err
			}
		}
		if b.e.o.Labels != nil {
			if err := b.e.o.Labels.Take(tx, &b.sb.Config, f); err != nil {
				return err
			}
		}
		n := scope.Change{}
		n.Add(core.Event{Kind: core.EventSandboxCreating})
		if err := n.Write(tx, &b.sb.Meta, b.sb.ID, ""); err != nil {
			return err
		}
		return tx.Sandboxes().Put(b.sb)
	})
	if err == nil {
		b.pipeline.Undo.Add("record", func(context.Context) error { return b.e.records.DropSandbox(b.sb.ID, scope.Change{}) })
	}
	return err
}

// users decides whether the sandbox gets a user namespace of its own.
func (b *sandboxBuild) users(ctx context.Context) error {
	switch {
	case b.e.o.Users == nil && b.sb.Config.Users.Own:
		return fmt.Errorf("a user namespace with ids of its own: %w", errdefs.ErrNotImplemented)
	case b.e.o.Users == nil:
		return nil
	}
	f, err := b.e.featuresOf(ctx, b.rt)
	if err != nil {
		return err
	}
	return b.e.o.Users.Resolve(&b.sb.Config, b.rt.Name(), f)
}

// pin makes the namespaces. It also begins to create the cgroup, which does not depend on them.
func (b *sandboxBuild) pin(ctx context.Context) error {
	b.limited = b.pipeline.Beside(func() error { return b.e.o.Cgroups.Create(ctx, b.sb.Cgroup, b.sb.Config.Resources) })
	b.pipeline.Undo.Add("cgroup", func(ctx context.Context) error {
		_ = b.limited()
		return b.e.o.Cgroups.Remove(ctx, b.sb.Cgroup)
	})
	return b.namespaces(ctx)
}

// namespaces makes the namespaces that the sandbox's containers share.
func (b *sandboxBuild) namespaces(ctx context.Context) error {
	cfg := &b.sb.Config
	shared := owned.Pinned(&cfg.Namespaces)
	if len(shared) == 0 {
		return nil
	}
	req := core.PinRequest{
		Sandbox: b.sb.ID, Hostname: cfg.Hostname, Domainname: cfg.Domainname, Sysctls: cfg.Sysctls, UIDs: cfg.UIDs, GIDs: cfg.GIDs, Rest: b.rest,
	}
	for _, kind := range []specs.LinuxNamespaceType{specs.UserNamespace, specs.NetworkNamespace, specs.IPCNamespace, specs.UTSNamespace} {
		if n := shared[kind]; n != nil && n.Mode == core.Shared {
			req.Kinds = append(req.Kinds, kind)
		}
	}
	b.pipeline.Undo.Add("pins", func(ctx context.Context) error { return b.e.o.Pinner.Unpin(ctx, b.sb.ID) })
	return b.e.joins().Pin(ctx, &b.sb, req)
}

func (e *Engine) joins() core.Joiner {
	if e.o.Joins == nil {
		return without.Joins{Pinner: e.o.Pinner}
	}
	return e.o.Joins(e.records.Records, e.sandboxes.Lock)
}

func (b *sandboxBuild) network(ctx context.Context) error {
	if b.rest {
		return nil
	}
	switch b.sb.Config.Namespaces.Net.Mode {
	case core.Host:
		b.sb.Network.Mode = "host"
		return nil
	case core.Shared:
	case core.Joined:
		b.sb.Network.Mode = core.NetworkJoined + string(b.sb.Config.Namespaces.Net.Container)
		return nil
	case core.PerContainer, core.Adopted:
		return nil
	}
	b.pipeline.Undo.Add("network", func(ctx context.Context) error { return b.e.o.Network.Teardown(ctx, b.sb.NetworkRequest()) })
	status, err := b.e.o.Network.Setup(ctx, b.sb.NetworkRequest())
	b.sb.Network = status
	return err
}

// files writes the sandbox's files in /etc and mounts its shared /dev/shm.
func (b *sandboxBuild) files(ctx context.Context) error {
	b.pipeline.Undo.Add("files", func(ctx context.Context) error { return teardown{e: b.e}.sandboxDir(ctx, b.sb.Dir) })
	if err := os.MkdirAll(filepath.Dir(b.sb.Dir), 0o700); err != nil {
		return err
	}
	if err := os.Mkdir(b.sb.Dir, 0o700); err != nil {
		return err
	}
	files, err := b.e.files(ctx, b.sb)
	if err != nil {
		return err
	}
	if err := etc.Save(b.sb.Dir, files); err != nil {
		return err
	}
	if b.sb.Config.Namespaces.IPC.Mode != core.Shared || b.rest {
		return nil
	}
	shm := filepath.Join(b.sb.Dir, owned.ShmDir)
	if err := os.Mkdir(shm, 0o1777); err != nil {
		return err
	}
	size := b.sb.Config.ShmBytes
	if size == 0 {
		size = 64 << 20
	}
	return b.e.o.Roots.Mount(ctx, shm, owned.Labelled([]core.Mount{{
		Type: "tmpfs", Source: "shm", Options: append(b.rootOwner(), "nosuid", "nodev", "noexec", "mode=1777", fmt.Sprintf("size=%d", size)),
	}}, b.sb.Config.FileLabel), false)
}

// files returns a sandbox's files in /etc, by their names.
func (e *Engine) files(ctx context.Context, sb core.Sandbox) (map[string][]byte, error) {
	if e.o.Files == nil {
		return nil, nil //nolint:nilnil // nil is the empty map
	}
	sb, err := e.joins().Shown(sb)
	if err != nil {
		return nil, err
	}
	f, err := e.o.Files(ctx, sb)
	return map[string][]byte{etc.Resolv: f.ResolvConf, etc.Hosts: f.Hosts, etc.Hostname: f.Hostname}, err
}

// rootOwner returns the mount options that give a tmpfs to the sandbox's root user.
func (b *sandboxBuild) rootOwner() []string {
	uid, gid := owned.HostIDs(&b.sb, &specs.Process{})
	return []string{fmt.Sprintf("uid=%d", uid), fmt.Sprintf("gid=%d", gid)}
}

// init starts the tiny init that holds a shared pid namespace.
func (b *sandboxBuild) init(ctx context.Context) error {
	if b.sb.Config.Namespaces.PID.Mode != core.Shared {
		return nil
	}
	e, id := b.e, b.sb.ID
	ref := core.Ref{Container: id}
	unlock, err := e.launches.Lock(ctx, ref)
	if err != nil {
		return err
	}
	defer unlock()
	cg, err := e.o.Cgroups.Place(core.Cgroup{}, b.sb.Cgroup, "init")
	if err != nil {
		return err
	}
	b.pipeline.Undo.Add("init", func(ctx context.Context) error { return teardown{e: e}.init(ctx, &b.sb) })
	if err := e.o.Cgroups.Create(ctx, cg, nil); err != nil {
		return err
	}
	bundle := e.bundle(id)
	if err := makeBundle(bundle); err != nil {
		return err
	}
	root := []core.Mount{{Type: "tmpfs", Source: "init", Options: append(b.rootOwner(), "nosuid", "nodev", "mode=755", "size=64k")}}
	if err := e.o.Roots.Mount(ctx, filepath.Join(bundle, "rootfs"), root, false); err != nil {
		return err
	}
	create := core.RuntimeCreate{ID: id, Bundle: bundle, Spec: owned.Init(&b.sb, e.o.Init, e.version(ctx, b.rt), cg), Cgroup: cg, Limited: true, Init: true, Run: true}
	try := fallback.Runtimes{First: b.rt, Others: e.o.Runtimes, Any: b.sb.AnyRuntime, Version: e.version, Take: func(rt core.Runtime) error {
		b.rt, b.sb.Config.Runtime = rt, rt.Name()
		_, err := e.records.EditSandbox(id, func(sb *core.Sandbox, _ *scope.Change) error { sb.Config.Runtime = rt.Name(); return nil })
		return err
	}}
	pid, _, err := try.Create(ctx, create)
	if err != nil {
		return err
	}
	b.sb.Init = pid
	b.sb.Config.Namespaces.PID.Path = fmt.Sprintf("/proc/%d/ns/pid", pid)
	return nil
}

func (b *sandboxBuild) commit(context.Context) error {
	err := b.e.o.Store.Update(func(tx core.Tx) error {
		next, ok := core.NextSandbox(b.sb.State, core.VerbCommit)
		if !ok {
			return fmt.Errorf("commit sandbox: it is %s: %w", b.sb.State, errdefs.ErrFailedPrecondition)
		}
		b.sb.State, b.sb.Trace = next, b.pipeline.Trace()
		n := scope.Change{}
		n.Add(core.Event{Kind: core.EventSandboxReady})
		if err := n.Write(tx, &b.sb.Meta, b.sb.ID, ""); err != nil {
			return err
		}
		return tx.Sandboxes().Put(b.sb)
	})
	if err == nil {
		// A caller that has seen the sandbox ready must see it stop. Only the container of a pair
		// can still fail after this stage.
		b.pipeline.Undo.Add("ready", func(context.Context) error {
			_, err := b.e.records.EditSandbox(b.sb.ID, func(sb *core.Sandbox, n *scope.Change) error { return stopped(sb, n, "its container was not made") })
			return err
		})
	}
	return err
}

// stopped records the end of a sandbox, and why, when nobody asked for it.
func stopped(sb *core.Sandbox, n *scope.Change, why string) error {
	if sb.State != core.SandboxStopped {
		sb.State, _ = core.NextSandbox(sb.State, core.VerbExit)
		sb.Note = why
		n.Add(core.Event{Kind: core.EventSandboxStopped, Note: why})
	}
	return nil
}

// Sandbox returns one sandbox.
func (c *Client) Sandbox(_ context.Context, id core.ID) (core.Sandbox, error) {
	return c.view.Sandbox(id)
}

// SandboxByKey returns the sandbox with the name that its face gave it.
func (c *Client) SandboxByKey(_ context.Context, key core.Key) (sb core.Sandbox, err error) {
	owner, err := c.view.Creates("sandbox by key")
	if err != nil {
		return sb, err
	}
	err = c.e.o.Store.View(func(tx core.Tx) error { sb, err = tx.Sandboxes().ByKey(owner, key); return err })
	return sb, err
}

// Sandboxes returns those that match f, oldest first. Filter.Container and Filter.Kinds do not
// apply.
func (c *Client) Sandboxes(_ context.Context, f core.Filter) (list []core.Sandbox, err error) {
	selected, ok := c.view.Selects(f)
	if !ok {
		return nil, nil
	}
	err = c.e.o.Store.View(func(tx core.Tx) error {
		if f.Sandbox != "" {
			sb, err := tx.Sandboxes().Get(f.Sandbox)
			if err == nil && selected.Sees(&sb.Meta) && f.MatchLabels(sb.Labels) {
				list = append(list, sb)
			}
			return nil
		}
		for sb, err := range tx.Sandboxes().All(selected.Owner) {
			if err != nil {
				return err
			}
			if f.MatchLabels(sb.Labels) {
				list = append(list, sb)
			}
		}
		return nil
	})
	return list, err
}

// SetSandboxData replaces the face's own record of a sandbox.
func (c *Client) SetSandboxData(_ context.Context, id core.ID, data []byte) error {
	_, err := c.view.ChangeSandbox(id, scope.By{Verb: "set data"}, func(sb *core.Sandbox, _ *scope.Change) error {
		sb.Data = data
		return nil
	})
	return err
}

// UpdateSandbox changes the limits of the sandbox's own cgroup.
func (c *Client) UpdateSandbox(ctx context.Context, id core.ID, res *specs.LinuxResources) error {
	sb, err := c.view.Sandbox(id)
	if err != nil {
		return err
	}
	op := core.Operation{Verb: core.VerbUpdate, Sandbox: &sb, Resources: res}
	if err := c.e.perform(ctx, &op, func() error { return c.view.limit(ctx, &sb, op.Resources) }); err != nil {
		return fmt.Errorf("update sandbox %s: %w", id, err)
	}
	return nil
}

func (v view) limit(ctx context.Context, sb *core.Sandbox, res *specs.LinuxResources) error {
	unlock, err := v.e.sandboxes.Lock(ctx, sb.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := v.e.o.Cgroups.Update(ctx, sb.Cgroup, res); err != nil {
		return err
	}
	_, err = v.ChangeSandbox(sb.ID, scope.By{Verb: "update"}, func(sb *core.Sandbox, _ *scope.Change) error {
		sb.Config.Resources = res
		return nil
	})
	return err
}

// Package boot brings durable objects back after a boot of the node: their records become those of
// ended containers and stopped sandboxes, and their roots are mounted again. It starts nothing. Start
// at Boot.Return.
package boot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/atomicfile"
	"github.com/longshore/longshore/internal/autopsy"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/owned"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/engine/volumes"
)

// why is the note of the events.
const why = "the node was restarted"

// Boot has the parts of the engine that a return needs. Restarts may be nil.
type Boot struct {
	Records  scope.Records
	Restarts core.Restarter
	Images   core.Images
	Roots    core.Roots
	Cgroups  core.Cgroups
	Volumes  *volumes.Table
	State    string // the directory of the bundles' mounts
	Logger   *slog.Logger

	newer map[core.ID]core.Event // see lastState; nil before the first call
}

var _ core.Returner = (*Boot)(nil)

// Return changes the record of a lost object that has outlived the boot, with the events of the change.
// ok is false if there is no such record. An object that was being created or removed stays as it is:
// the recovery removes it.
func (b *Boot) Return(tx core.Tx, o core.LostObject, at time.Time) (ok bool, err error) {
	if o.Container == "" {
		sb, err := tx.Sandboxes().Get(o.Sandbox)
		if err != nil {
			return false, nil //nolint:nilerr // it was not durable
		}
		var n scope.Change
		if sb.State == core.SandboxReady {
			n.Add(core.Event{Kind: core.EventSandboxStopped, Note: why})
		}
		n.Add(core.Event{Kind: core.EventSandboxReturned, Note: why})
		if sb.State != core.SandboxCreating {
			release(&sb)
		}
		if err := n.Write(tx, &sb.Meta, sb.ID, ""); err != nil {
			return true, err
		}
		return true, tx.Sandboxes().Put(sb)
	}
	c, err := tx.Containers().Get(o.Container)
	if err != nil {
		return false, nil //nolint:nilerr // it was not durable
	}
	var n scope.Change
	for _, p := range o.Execs {
		a := autopsy.Boot(at)
		n.Add(core.Event{Kind: core.EventProcessExited, Process: p, Autopsy: &a})
	}
	c.Execs = nil
	if c.State != core.ContainerCreating && !c.Removing {
		if err := b.end(tx, &c, at, &n); err != nil {
			return true, err
		}
	}
	n.Add(core.Event{Kind: core.EventContainerReturned, Note: why})
	if err := n.Write(tx, &c.Meta, c.Sandbox, c.ID); err != nil {
		return true, err
	}
	return true, tx.Containers().Put(c)
}

// release makes a sandbox's record that of a stopped one. It keeps the addresses, as a stop does.
func release(sb *core.Sandbox) {
	for _, ns := range owned.Pinned(&sb.Config.Namespaces) {
		ns.Path = ""
	}
	if sb.Config.Namespaces.PID.Mode == core.Shared {
		sb.Config.Namespaces.PID.Path = ""
	}
	sb.State, sb.Init, sb.Renewing, sb.Note = core.SandboxStopped, 0, false, why
}

// end makes a container's record that of an ended one. The event log may know more than the record,
// which is written up to a second later: an end that it has stays the container's end.
func (b *Boot) end(tx core.Tx, c *core.Container, at time.Time, n *scope.Change) error {
	last, err := b.lastState(tx, c)
	if err != nil {
		return err
	}
	switch {
	case last != nil && last.Kind == core.EventContainerExited:
		c.Main.Autopsy, c.Main.Finished = last.Autopsy, last.At
		if c.Main.Started.IsZero() {
			c.Main.Started = c.Created // its start was not recorded, and it has ended
		}
	case last == nil && c.State == core.ContainerExited:
	default:
		if last != nil && last.Kind == core.EventContainerStarted {
			c.Main.Started = last.At
		}
		a := autopsy.Boot(at)
		c.Main.Autopsy, c.Main.Finished = &a, at
		n.Add(core.Event{Kind: core.EventContainerExited, Autopsy: &a})
	}
	c.State, c.Main.Pid, c.Refused = core.ContainerExited, 0, nil
	if b.Restarts != nil {
		b.Restarts.Booted(c, at)
	}
	return nil
}

// lastState returns the last event after a container's record that changed its state; nil for none. The
// first call reads the log, before events of this boot make it longer.
func (b *Boot) lastState(tx core.Tx, c *core.Container) (*core.Event, error) {
	if b.newer == nil {
		var err error
		if b.newer, err = newer(tx); err != nil {
			return nil, err
		}
	}
	if last, ok := b.newer[c.ID]; ok {
		return &last, nil
	}
	return nil, nil //nolint:nilnil // there is none
}

// newer returns for each durable container the last event after its record that changed its state. The
// oldest of these events may have been trimmed.
func newer(tx core.Tx) (map[core.ID]core.Event, error) {
	revs := map[core.ID]uint64{}
	since := tx.LastSeq()
	for c := range tx.Containers().Stored("") {
		if c.Config.Durable {
			revs[c.ID] = c.Rev
			since = min(since, c.Rev)
		}
	}
	list := map[core.ID]core.Event{}
	for ev, err := range tx.Events(kept(tx, since)) {
		if err != nil {
			return nil, err
		}
		rev, durable := revs[ev.Container]
		if !durable || ev.Seq <= rev || ev.Process != core.Main {
			continue
		}
		switch ev.Kind {
		case core.EventContainerCreated, core.EventContainerStarted, core.EventContainerExited:
			list[ev.Container] = ev
		}
	}
	return list, nil
}

// kept returns since, or the Seq before the oldest event that is still in the log if that is later.
func kept(tx core.Tx, since uint64) uint64 {
	n := sort.Search(int(tx.LastSeq()-since), func(i int) bool {
		for _, err := range tx.Events(since + uint64(i)) {
			return err == nil
		}
		return true // the log ends there
	})
	return since + uint64(n)
}

// Mount mounts the roots of durable containers that are not mounted, and makes their bundles and
// cgroups again. A container that cannot be mounted stays, and cannot be started until it can.
func (b *Boot) Mount(ctx context.Context) error {
	var list []core.Container
	sandboxes := map[core.ID]core.Sandbox{}
	err := b.Records.Store.View(func(tx core.Tx) error {
		for c := range tx.Containers().Stored("") {
			if !c.Config.Durable || c.State == core.ContainerCreating || c.Removing {
				continue
			}
			sb, err := tx.Sandboxes().Get(c.Sandbox)
			if err != nil {
				continue // the survey reports it
			}
			list, sandboxes[sb.ID] = append(list, *c), sb
		}
		return nil
	})
	if err != nil || len(list) == 0 {
		return err
	}
	paths, err := b.Roots.Mounted(ctx, b.State)
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	mounted := map[string]bool{}
	for _, p := range paths {
		mounted[p] = true
	}
	checkouts, err := b.Images.Checkouts(ctx)
	if err != nil {
		return fmt.Errorf("list checkouts: %w", err)
	}
	for _, c := range list {
		if mounted[filepath.Join(c.Bundle, "rootfs")] {
			continue
		}
		sb := sandboxes[c.Sandbox]
		if err := b.whole(ctx, &sb, &c, checkouts); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			b.Logger.ErrorContext(ctx, "could not mount the root of a container that has outlived the boot; each start tries again", "container", string(c.ID), "error", err)
		}
	}
	return nil
}

// Ensure implements core.Returner.
func (b *Boot) Ensure(ctx context.Context, c *core.Container) error {
	paths, err := b.Roots.Mounted(ctx, c.Bundle)
	if err != nil || slices.Contains(paths, filepath.Join(c.Bundle, "rootfs")) {
		return err
	}
	sb, err := b.Records.Sandbox(c.Sandbox)
	if err != nil {
		return err
	}
	checkouts, err := b.Images.Checkouts(ctx)
	if err == nil {
		err = b.whole(ctx, &sb, c, checkouts)
	}
	if err != nil {
		return fmt.Errorf("mount its root: %v: %w", err, errdefs.ErrUnavailable) //nolint:errorlint // a restart policy tries again, whatever it is
	}
	return nil
}

// whole mounts a root, or fails without its layer. A new layer would hide a loss of data.
func (b *Boot) whole(ctx context.Context, sb *core.Sandbox, c *core.Container, checkouts []core.ID) error {
	if c.Image != "" && !slices.Contains(checkouts, c.ID) {
		return fmt.Errorf("its layer is gone: %w", errdefs.ErrDataLoss)
	}
	return b.mount(ctx, sb, c)
}

func (b *Boot) mount(ctx context.Context, sb *core.Sandbox, c *core.Container) (err error) {
	rootfs := filepath.Join(c.Bundle, "rootfs")
	if err := os.MkdirAll(rootfs, 0o700); err != nil {
		return err
	}
	if err := atomicfile.Replace(filepath.Join(c.Bundle, "config.json"), []byte(c.SavedSpec), 0o600); err != nil {
		return err
	}
	if err := errors.Join(b.Cgroups.Create(ctx, sb.Cgroup, sb.Config.Resources), b.Cgroups.Create(ctx, c.Cgroup, nil)); err != nil {
		return err
	}
	users := sb.Of(&c.Config).Config
	uids, gids := owned.Ranges(users.UIDs), owned.Ranges(users.GIDs)
	mounts := owned.RootMounts(c.Config.Root)
	if c.Config.Root.Image != "" {
		co, err := b.Images.Checkout(ctx, core.CheckoutRequest{Container: c.ID, Image: c.Image, UIDs: uids, GIDs: gids, Durable: true})
		if err != nil {
			return err
		}
		mounts = co.Mounts
	}
	if err := b.Roots.Mount(ctx, rootfs, owned.Labelled(mounts, c.Config.FileLabel), false); err != nil {
		return err
	}
	defer func() { // a mounted root says that everything is mounted
		if err != nil {
			err = errors.Join(err, b.Roots.Unmount(context.WithoutCancel(ctx), rootfs))
		}
	}()
	images := volumes.Images{Images: b.Images, Roots: b.Roots}
	if _, err := images.Mount(ctx, c, uids, gids); err != nil {
		return err
	}
	root, err := os.OpenRoot(rootfs)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, root.Close()) }()
	for _, v := range c.Config.Volumes {
		if _, err := b.Volumes.Take(ctx, volumes.Use{Owner: c.Owner, Mount: v, From: root, UIDs: users.UIDs, GIDs: users.GIDs}); err != nil {
			return err
		}
	}
	return nil
}

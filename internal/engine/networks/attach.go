// Package networks puts sandboxes on further networks while they exist, and takes them off again.
//
// An attachment is recorded after its interface is made, and the record is removed before the
// interface, because the network's recovery removes interfaces without a record. Start at Verbs.
package networks

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/beneath"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/etc"
	"github.com/longshore/longshore/internal/engine/scope"
)

// The names of the verbs.
const (
	VerbAttach = "attach"
	VerbDetach = "detach"
)

// Stages are the stages of the verbs, in their order.
func Stages() map[string][]string {
	return map[string][]string{VerbAttach: {"attached", "recorded", "files"}, VerbDetach: {"recorded", "detached", "files"}, VerbEgress: {"recorded", "restricted", "files"}}
}

// Verbs changes which networks the sandboxes of a scope are on.
type Verbs struct {
	Scope   scope.Scope
	Network core.Network
	Egress  core.EgressPolicy // nil: no sandbox can have a list
	// Files returns a sandbox's files in /etc, by their names.
	Files func(ctx context.Context, sb core.Sandbox) (map[string][]byte, error)
}

// Attach gives a sandbox an interface on a further network; one that is stopped gets it when it is
// started again. AlreadyExists when it is on that network, or another sandbox has an address that
// is wanted; NotFound, InvalidArgument; FailedPrecondition when it has no network of its own.
func (v Verbs) Attach(ctx context.Context, sandbox core.ID, a core.Attachment) error {
	if err := v.attach(ctx, sandbox, a); err != nil {
		return fmt.Errorf("connect sandbox %s to network %q: %w", sandbox.Short(), a.Network, err)
	}
	return nil
}

func (v Verbs) attach(ctx context.Context, sandbox core.ID, a core.Attachment) error {
	sb, unlock, err := v.locked(ctx, sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	if sb.Config.Network.On(a.Network) >= 0 {
		return fmt.Errorf("it is on it already: %w", errdefs.ErrAlreadyExists)
	}
	pass := v.Scope.Stages(ctx, sb.Owner, VerbAttach)
	st := sb.Network
	if sb.State == core.SandboxReady {
		if st, err = v.Network.Attach(ctx, sb.NetworkRequest(), a); err != nil {
			return err
		}
	}
	if err := pass("attached"); err != nil {
		return err
	}
	err = v.record(sandbox, VerbAttach, "connected to network "+a.Network, func(sb *core.Sandbox) {
		sb.Config.Network, sb.Network = sb.Config.Network.With(a), st
	})
	if err != nil {
		if sb.State == core.SandboxReady {
			_, back := v.Network.Detach(context.WithoutCancel(ctx), sb.NetworkRequest(), a.Network)
			err = errors.Join(err, back)
		}
		return err
	}
	if err := pass("recorded"); err != nil {
		return err
	}
	return v.refreshed(ctx, sandbox, pass)
}

// Detach takes a sandbox's interface on a network away. NotFound when it is not on that network.
func (v Verbs) Detach(ctx context.Context, sandbox core.ID, network string) error {
	if err := v.detach(ctx, sandbox, network); err != nil {
		return fmt.Errorf("disconnect sandbox %s from network %q: %w", sandbox.Short(), network, err)
	}
	return nil
}

func (v Verbs) detach(ctx context.Context, sandbox core.ID, network string) error {
	sb, unlock, err := v.locked(ctx, sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	before, at := sb, sb.Config.Network.On(network)
	ready := sb.State == core.SandboxReady
	_, overlaid := core.OverlayName(network)
	switch {
	case at < 0:
		return fmt.Errorf("it is not on it: %w", errdefs.ErrNotFound)
	case ready && sb.Network.Mode == "cni" && at == 0 && !overlaid:
		return fmt.Errorf("CNI plugins have made it, and take it away with the sandbox: %w", errdefs.ErrFailedPrecondition)
	}
	pass := v.Scope.Stages(ctx, sb.Owner, VerbDetach)
	sb.Config.Network = sb.Config.Network.Without(network)
	if ready {
		sb.Network = sb.Network.Without(network)
	}
	if err := v.record(sandbox, VerbDetach, "disconnected from network "+network, func(now *core.Sandbox) { now.Config.Network, now.Network = sb.Config.Network, sb.Network }); err != nil {
		return err
	}
	if err := pass("recorded"); err != nil {
		return err
	}
	if ready {
		st, err := v.Network.Detach(ctx, sb.NetworkRequest(), network)
		note := "" // another interface may lead out now
		if err != nil {
			st, sb.Config.Network, note = before.Network, before.Config.Network, "still connected to network "+network
		}
		err = errors.Join(err, v.record(sandbox, "", note, func(now *core.Sandbox) { now.Config.Network, now.Network = sb.Config.Network, st }))
		if err != nil {
			return err
		}
	}
	if err := pass("detached"); err != nil {
		return err
	}
	return v.refreshed(ctx, sandbox, pass)
}

// locked returns a sandbox that may be on several networks, with its lock held.
func (v Verbs) locked(ctx context.Context, id core.ID) (sb core.Sandbox, unlock func(), err error) {
	if sb, unlock, err = v.Scope.LockedSandbox(ctx, id); err != nil {
		return sb, nil, err
	}
	switch {
	case sb.State == core.SandboxCreating || sb.Renewing:
		err = fmt.Errorf("it is being created: %w", errdefs.ErrFailedPrecondition)
	case sb.Config.Namespaces.Net.Mode != core.Shared:
		err = fmt.Errorf("it has no network of its own: %w", errdefs.ErrFailedPrecondition)
	}
	if err != nil {
		unlock()
		return sb, nil, err
	}
	return sb, unlock, nil
}

// record changes the record of a sandbox. A note is added as an event to each of its containers. With
// a verb the change is the caller's.
func (v Verbs) record(id core.ID, verb, note string, change func(*core.Sandbox)) error {
	return v.Scope.Store.Update(func(tx core.Tx) error {
		sb, err := tx.Sandboxes().Get(id)
		if err != nil {
			return err
		}
		change(&sb)
		var n scope.Change
		if verb != "" {
			v.Scope.Forced(&n, &sb.Meta, scope.By{Verb: verb})
		}
		if err := n.Write(tx, &sb.Meta, id, ""); err != nil {
			return err
		}
		if note != "" {
			if err := announce(tx, id, note); err != nil {
				return err
			}
		}
		return tx.Sandboxes().Put(sb)
	})
}

// announce adds an event to each container of a sandbox.
func announce(tx core.Tx, sandbox core.ID, note string) error {
	for _, c := range slices.Collect(tx.StoredOf(sandbox)) {
		if c.State == core.ContainerCreating {
			continue
		}
		changed, err := tx.Containers().Get(c.ID)
		if err != nil {
			return err
		}
		var n scope.Change
		n.Add(core.Event{Kind: core.EventContainerUpdated, Note: note})
		if err := n.Write(tx, &changed.Meta, sandbox, c.ID); err != nil {
			return err
		}
		if err := tx.Containers().Put(changed); err != nil {
			return err
		}
	}
	return nil
}

// refreshed is the last stage of both verbs. The change of a durable sandbox is on the disk then.
func (v Verbs) refreshed(ctx context.Context, id core.ID, pass func(string) error) error {
	sb, err := v.Scope.Records.Sandbox(id)
	if err == nil && sb.Config.Durable {
		err = v.Scope.Store.Sync()
	}
	if err != nil {
		return err
	}
	if err := v.Refresh(ctx, id); err != nil {
		return fmt.Errorf("change its files in /etc: %w", err)
	}
	return pass("files")
}

// Relink updates the files in /etc of the sandboxes of an owner that have a link to a container of a sandbox;
// "" is any.
func (v Verbs) Relink(ctx context.Context, owner core.Owner, to core.ID) error {
	var list []core.ID
	err := v.Scope.Store.View(func(tx core.Tx) error {
		for sb := range tx.Sandboxes().Stored(owner) {
			for _, l := range sb.Config.Network.Links {
				c, err := tx.Containers().Get(l.Container)
				if to == "" || err == nil && c.Sandbox == to {
					list = append(list, sb.ID)
					break
				}
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	var errs []error
	for _, id := range list {
		_, unlock, err := v.Scope.LockedSandbox(ctx, id)
		if err == nil {
			err = v.Refresh(ctx, id)
			unlock()
		}
		if err != nil && !errdefs.IsNotFound(err) {
			errs = append(errs, fmt.Errorf("change the files in /etc of sandbox %s: %w", id.Short(), err))
		}
	}
	return errors.Join(errs...)
}

// Refresh updates a ready sandbox's files in /etc after a change of its networks. Files that a
// container has changed stay. The files of those that have joined its network change too. Preconditions:
// nobody else changes the sandbox.
func (v Verbs) Refresh(ctx context.Context, id core.ID) error {
	var sb core.Sandbox
	var in []*core.Container
	var joined []core.ID
	err := v.Scope.Store.View(func(tx core.Tx) (err error) {
		sb, err = tx.Sandboxes().Get(id)
		in = slices.Collect(tx.StoredOf(id))
		for other := range tx.Sandboxes().Stored(sb.Owner) {
			if other.Config.Namespaces.Net.Holder == id {
				joined = append(joined, other.ID)
			}
		}
		return err
	})
	if err != nil || sb.State != core.SandboxReady || v.Files == nil {
		return err
	}
	files, err := v.Files(ctx, sb)
	if err != nil {
		return err
	}
	var errs []error
	for _, name := range []string{etc.Resolv, etc.Hosts} {
		old, err := os.ReadFile(filepath.Join(sb.Dir, name))
		if errors.Is(err, fs.ErrNotExist) || bytes.Equal(old, files[name]) {
			continue
		}
		if err != nil {
			return err
		}
		if etc.Shared(&sb) {
			errs = append(errs, replace(sb.Dir, filepath.Join("etc", name), old, files[name]))
		}
		for _, c := range in {
			if c.Image != "" && c.State != core.ContainerCreating && c.State != core.ContainerExited {
				errs = append(errs, replace(filepath.Join(c.Bundle, "rootfs"), filepath.Join("etc", name), old, files[name]))
			}
		}
	}
	errs = append(errs, etc.Save(sb.Dir, files))
	for _, other := range joined {
		// Its lock comes before this sandbox's, so it is not held: the other may be removed meanwhile.
		if err := v.Refresh(ctx, other); !errdefs.IsNotFound(err) && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// replace replaces the content of a file below base if it is still the old one. A workload owns all
// of base, so it follows no link, and opens plain files only.
func replace(base, rel string, old, content []byte) error {
	at, err := beneath.Open(base, rel, unix.O_PATH|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil // it is the container's now
	}
	defer func() { _ = at.Close() }()
	if info, err := at.Stat(); err != nil || !info.Mode().IsRegular() || info.Size() != int64(len(old)) {
		return err
	}
	f, err := os.OpenFile("/proc/self/fd/"+strconv.Itoa(int(at.Fd())), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	have := make([]byte, len(old))
	if _, err := io.ReadFull(f, have); err != nil || !bytes.Equal(have, old) {
		return nil // somebody has changed it meanwhile
	}
	// Never shorter than the written part, so that nobody reads an empty file.
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(content)))
}

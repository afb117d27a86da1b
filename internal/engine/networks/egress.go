package networks

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// VerbEgress is the name of the verb.
const VerbEgress = "egress"

// Restrict replaces the egress list of a sandbox, and ends connections that the new one does not permit. An empty list asks for
// the node's. A stopped sandbox gets the new list with its next start. InvalidArgument, PermissionDenied for a list that it
// cannot have; FailedPrecondition where none can be enforced.
func (v Verbs) Restrict(ctx context.Context, sandbox core.ID, list []string) error {
	if err := v.restrict(ctx, sandbox, list); err != nil {
		return fmt.Errorf("change the egress list of sandbox %s: %w", sandbox.Short(), err)
	}
	return nil
}

// restrict records the list first, so that an agent that dies before the rules follow makes them at its next start.
func (v Verbs) restrict(ctx context.Context, sandbox core.ID, list []string) error {
	sb, unlock, err := v.locked(ctx, sandbox)
	if err != nil {
		return err
	}
	defer unlock()
	if v.Egress == nil {
		return errdefs.ErrNotImplemented
	}
	before := sb.Config.Network.Egress
	list, err = v.Egress.Narrow(sb.Owner, sb.Labels, list)
	if err != nil || slices.Equal(list, before) {
		return err
	}
	if len(before) == 0 && len(list) > 0 && v.running(sandbox) {
		return fmt.Errorf("it was created without one, so that its programs may have capabilities that evade it: give it a list when it is created, such as internet or learn: %w", errdefs.ErrFailedPrecondition)
	}
	pass := v.Scope.Stages(ctx, sb.Owner, VerbEgress)
	record := func(list []string, note string) error {
		return v.record(sandbox, VerbEgress, note, func(sb *core.Sandbox) { sb.Config.Network.Egress = list })
	}
	text := strings.Join(list, " ")
	if len(text) > maxNote {
		text = text[:maxNote] + " ..."
	}
	if text == "" {
		text = "none: everything is open"
	}
	if err := record(list, "egress list: "+text); err != nil {
		return err
	}
	if err := pass("recorded"); err != nil {
		return err
	}
	if sb.State == core.SandboxReady {
		old := sb.NetworkRequest()
		sb.Config.Network.Egress = list
		st, err := v.Network.Restrict(ctx, sb.NetworkRequest())
		if err != nil {
			_, back := v.Network.Restrict(context.WithoutCancel(ctx), old)
			return errors.Join(err, back, record(before, "the egress list stays as it was"))
		}
		if err := v.record(sandbox, "", "", func(sb *core.Sandbox) { sb.Network = st }); err != nil {
			return err
		}
	}
	if err := pass("restricted"); err != nil {
		return err
	}
	return v.refreshed(ctx, sandbox, pass)
}

// Complete gives a new sandbox its egress list. One in another sandbox's network has that one's, and its programs the same
// restrictions: they could change the rules of both. Errors are those of core.EgressPolicy.
func (v Verbs) Complete(owner core.Owner, cfg *core.SandboxConfig) error {
	net := &cfg.Namespaces.Net
	if net.Mode == core.Joined || net.Mode == core.Adopted {
		list, err := v.listOf(*net)
		switch {
		case err != nil:
			return err
		case len(cfg.Network.Egress) > 0 && net.Mode == core.Adopted && len(list) == 0:
			return fmt.Errorf("egress: a list needs a network of the sandbox's own: with that of somebody else, such as a group's of Nomad, it cannot be enforced: %w", errdefs.ErrInvalidArgument)
		case len(cfg.Network.Egress) > 0:
			return fmt.Errorf("egress: the sandbox uses the network of another one, whose list counts: %w", errdefs.ErrInvalidArgument)
		}
		cfg.Network.Egress = list
	}
	if v.Egress != nil {
		return v.Egress.Complete(owner, cfg)
	}
	if len(cfg.Network.Egress) > 0 {
		return fmt.Errorf("egress: this agent enforces no lists: %w", errdefs.ErrNotImplemented)
	}
	return nil
}

// listOf returns the list of the sandbox that has a network namespace, nil if none of ours has it.
func (v Verbs) listOf(net core.Namespace) (list []string, err error) {
	err = v.Scope.Store.View(func(tx core.Tx) error {
		for sb := range tx.Sandboxes().Stored("") {
			have := sb.Config.Namespaces.Net
			if len(sb.Config.Network.Egress) == 0 || have.Mode != core.Shared {
				continue
			}
			if sb.ID == net.Holder || same(net, have) { // a joined one has no path yet
				list = sb.Config.Network.Egress
			}
		}
		return nil
	})
	return list, err
}

// same reports whether two namespaces are one, perhaps by different paths. The file of a namespace that has ended is gone.
func same(a, b core.Namespace) bool {
	at, err := os.Stat(a.Path)
	if err != nil {
		return a.Path != "" && a.Path == b.Path
	}
	have, err := os.Stat(b.Path)
	return err == nil && os.SameFile(at, have)
}

// maxNote bounds the list in an event.
const maxNote = 1000

// running reports whether a container in the network of a sandbox has processes, or one that waits for its start. Another sandbox in
// its network counts: it may get containers that no list confines.
func (v Verbs) running(sandbox core.ID) bool {
	runs := false
	err := v.Scope.Store.View(func(tx core.Tx) error {
		holder, err := tx.Sandboxes().Get(sandbox)
		if err != nil {
			return err
		}
		for other := range tx.Sandboxes().Stored("") {
			net := other.Config.Namespaces.Net
			runs = runs || net.Holder == sandbox || net.Mode == core.Adopted && same(net, holder.Config.Namespaces.Net)
		}
		for c := range tx.StoredOf(sandbox) {
			rests := c.State == core.ContainerCreated && c.Config.Rest != nil
			runs = runs || c.State != core.ContainerExited && !rests
		}
		return nil
	})
	return runs || err != nil
}

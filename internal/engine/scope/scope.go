// Package scope is the engine's objects as one caller sees them: which it may read and change, under
// which lock, and the record of a change to another owner's object. The packages of the engine's
// verbs share it. Start at Scope.
package scope

import (
	"context"
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Lock keeps the verbs away from a sandbox and its containers, until unlock is called.
type Lock func(ctx context.Context, sandbox core.ID) (unlock func(), err error)

// Scope is the objects of one owner, or all objects.
type Scope struct {
	Records
	Owner core.Owner // "" sees and changes all objects, and creates none
	Locks Lock       // nil where nothing is changed
	// Stages begins a verb on an object of an owner and returns the function that ends each of its
	// stages. An error of that function means that the agent is dead: nothing is undone.
	Stages func(ctx context.Context, owner core.Owner, verb string) (pass func(stage string) error)
}

// Sees reports whether the caller may see an object with this Meta.
func (s Scope) Sees(m *core.Meta) bool { return s.Has(m.Owner) }

// Has reports whether the objects and events of an owner are in the scope.
func (s Scope) Has(owner core.Owner) bool { return s.Owner == "" || owner == s.Owner }

// Visible returns NotFound if the caller may not see an object of a kind.
func (s Scope) Visible(m *core.Meta, kind string) error {
	if s.Sees(m) {
		return nil
	}
	return fmt.Errorf("%s %s: %w", kind, m.ID, errdefs.ErrNotFound)
}

// Creates returns the owner of objects that the caller creates; InvalidArgument in the view of all
// objects.
func (s Scope) Creates(what string) (core.Owner, error) {
	if s.Owner == "" {
		return "", fmt.Errorf("%s: the unscoped view has no owner: %w", what, errdefs.ErrInvalidArgument)
	}
	return s.Owner, nil
}

// Selects returns the scope of the objects that a filter selects for this caller; ok is false if it
// selects none.
func (s Scope) Selects(f core.Filter) (selected Scope, ok bool) {
	selected = s
	if s.Owner == "" {
		selected.Owner = f.Owner
	}
	return selected, f.Owner == "" || selected.Owner == f.Owner
}

// Sandbox returns a sandbox that the caller may see.
func (s Scope) Sandbox(id core.ID) (core.Sandbox, error) {
	sb, err := s.Records.Sandbox(id)
	if err == nil {
		err = s.Visible(&sb.Meta, "sandbox")
	}
	if err != nil {
		return core.Sandbox{}, err
	}
	return sb, nil
}

// Container returns a container that the caller may see.
func (s Scope) Container(id core.ID) (core.Container, error) {
	c, err := s.Records.Container(id)
	if err == nil {
		err = s.Visible(&c.Meta, "container")
	}
	if err != nil {
		return core.Container{}, err
	}
	return c, nil
}

// LockedSandbox returns a sandbox that the caller may see, with its lock held.
func (s Scope) LockedSandbox(ctx context.Context, id core.ID) (sb core.Sandbox, unlock func(), err error) {
	if unlock, err = s.Locks(ctx, id); err != nil {
		return sb, nil, err
	}
	if sb, err = s.Sandbox(id); err != nil {
		unlock()
		return sb, nil, err
	}
	return sb, unlock, nil
}

// LockedContainer returns a container that the caller may see, with its sandbox's lock held.
func (s Scope) LockedContainer(ctx context.Context, id core.ID) (c core.Container, unlock func(), err error) {
	if c, err = s.Container(id); err != nil {
		return c, nil, err
	}
	if unlock, err = s.Locks(ctx, c.Sandbox); err != nil {
		return c, nil, err
	}
	if c, err = s.Container(id); err != nil {
		unlock()
		return c, nil, err
	}
	return c, unlock, nil
}

// By names a change of the caller for the record of a forced change.
type By struct {
	Verb    string
	Request core.StopRequest // its Call, if it has one, is shown instead of Verb
}

// Forces reports whether the caller, who sees all objects, would change another owner's. Only the
// command line's requests come through that view.
func (s Scope) Forces(m *core.Meta) bool { return s.Owner == "" && m.Owner != core.OwnerCLI }

// Forced adds an event to n if the caller forces a change.
func (s Scope) Forced(n *Change, m *core.Meta, by By) {
	if !s.Forces(m) {
		return
	}
	who, verb := string(by.Request.Owner), by.Verb
	if who == "" {
		who = string(core.OwnerCLI)
	}
	if by.Request.User != "" {
		who += " (" + by.Request.User + ")"
	}
	if by.Request.Call != "" {
		verb = by.Request.Call
	}
	n.Add(core.Event{Kind: core.EventForced, Note: fmt.Sprintf("%s: %s on an object of %s", who, verb, m.Owner)})
}

// ChangeSandbox changes a sandbox's record for the caller, as Records.EditSandbox does.
func (s Scope) ChangeSandbox(id core.ID, by By, fn func(sb *core.Sandbox, n *Change) error) (core.Sandbox, error) {
	return s.EditSandbox(id, func(sb *core.Sandbox, n *Change) error {
		if err := s.Visible(&sb.Meta, "sandbox"); err != nil {
			return err
		}
		if err := fn(sb, n); err != nil {
			return err
		}
		s.Forced(n, &sb.Meta, by)
		return nil
	})
}

// ChangeContainer changes a container's record for the caller, as Records.EditContainer does.
func (s Scope) ChangeContainer(id core.ID, by By, fn func(c *core.Container, n *Change) error) error {
	return s.EditContainer(id, func(c *core.Container, n *Change) error {
		if err := s.Visible(&c.Meta, "container"); err != nil {
			return err
		}
		if err := fn(c, n); err != nil {
			return err
		}
		s.Forced(n, &c.Meta, by)
		return nil
	})
}

// Request completes a stop request with its owner, call and time.
func (s Scope) Request(r core.StopRequest, call string) core.StopRequest {
	if r.Owner == "" {
		r.Owner = s.Owner
		if r.Owner == "" {
			r.Owner = core.OwnerCLI
		}
	}
	if r.Call == "" {
		r.Call = call
	}
	if r.At.IsZero() {
		r.At = now()
	}
	return r
}

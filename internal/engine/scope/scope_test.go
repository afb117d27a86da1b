package scope_test

import (
	"context"
	"testing"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
	"github.com/longshore/longshore/internal/state"
)

// scopes returns a constructor of scopes over a store with one sandbox and one container of the CRI.
func scopes(t *testing.T) func(core.Owner) scope.Scope {
	t.Helper()
	store := state.NewMemory(0)
	t.Cleanup(func() { _ = store.Close() })
	err := store.Update(func(tx core.Tx) error {
		if err := tx.Sandboxes().Put(core.Sandbox{Meta: core.Meta{ID: "s", Owner: core.OwnerCRI, Key: "pod"}}); err != nil {
			return err
		}
		return tx.Containers().Put(core.Container{Meta: core.Meta{ID: "c", Owner: core.OwnerCRI, Key: "app"}, Sandbox: "s"})
	})
	if err != nil {
		t.Fatal(err)
	}
	return func(owner core.Owner) scope.Scope {
		return scope.Scope{Records: scope.Records{Store: store}, Owner: owner, Locks: func(context.Context, core.ID) (func(), error) { return func() {}, nil }}
	}
}

func TestAnotherOwnersObjectsAreNotFound(t *testing.T) {
	of := scopes(t)
	held := 0
	for owner, sees := range map[core.Owner]bool{core.OwnerCRI: true, "": true, core.OwnerCLI: false, core.OwnerNomad: false} {
		s := of(owner)
		s.Locks = func(context.Context, core.ID) (func(), error) { held++; return func() { held-- }, nil }
		_, sandbox := s.Sandbox("s")
		_, container := s.Container("c")
		_, unlockSandbox, locked := s.LockedSandbox(t.Context(), "s")
		_, unlockContainer, lockedContainer := s.LockedContainer(t.Context(), "c")
		_, changed := s.ChangeSandbox("s", scope.By{Verb: "try"}, func(*core.Sandbox, *scope.Change) error { return nil })
		edited := s.ChangeContainer("c", scope.By{Verb: "try"}, func(*core.Container, *scope.Change) error { return nil })
		for call, err := range map[string]error{
			"Sandbox": sandbox, "Container": container, "LockedSandbox": locked, "LockedContainer": lockedContainer,
			"ChangeSandbox": changed, "ChangeContainer": edited,
		} {
			if sees && err != nil || !sees && !errdefs.IsNotFound(err) {
				t.Errorf("%s of %q: %v", call, owner, err)
			}
		}
		if sees {
			unlockSandbox()
			unlockContainer()
		}
		if held != 0 {
			t.Errorf("%q: %d locks are still held", owner, held)
		}
	}
}

func TestOnlyAnOwnerCreates(t *testing.T) {
	of := scopes(t)
	if owner, err := of(core.OwnerCRI).Creates("create"); owner != core.OwnerCRI || err != nil {
		t.Errorf("%q, %v", owner, err)
	}
	if _, err := of("").Creates("create"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("the view of all objects: %v", err)
	}
}

func TestAForcedChangeIsRecorded(t *testing.T) {
	of := scopes(t)
	for name, c := range map[string]struct {
		owner core.Owner
		by    scope.By
		want  string
	}{
		"its owner":              {core.OwnerCRI, scope.By{Verb: "rename"}, ""},
		"the view of all":        {"", scope.By{Verb: "rename"}, "cli: rename on an object of cri"},
		"a user, with a request": {"", scope.By{Verb: "stop", Request: core.StopRequest{Owner: core.OwnerCLI, User: "ann", Call: "StopContainer"}}, "cli (ann): StopContainer on an object of cri"},
	} {
		s := of(c.owner)
		var from uint64
		_ = s.Store.View(func(tx core.Tx) error { from = tx.LastSeq(); return nil })
		if err := s.ChangeContainer("c", c.by, func(_ *core.Container, n *scope.Change) error {
			n.Add(core.Event{Kind: core.EventContainerUpdated})
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		note, count := "", 0
		err := s.Store.View(func(tx core.Tx) error {
			for ev, err := range tx.Events(from) {
				if err != nil {
					return err
				}
				count++
				if ev.Kind == core.EventForced {
					note = ev.Note
				}
			}
			return nil
		})
		if err != nil || note != c.want || count == 0 {
			t.Errorf("%s: %d events, forced %q, want %q, %v", name, count, note, c.want, err)
		}
	}
}

func TestAFilterSelectsWithinTheScope(t *testing.T) {
	of := scopes(t)
	for _, c := range []struct {
		scope, filter, want core.Owner
		ok                  bool
	}{
		{"", "", "", true},
		{"", core.OwnerCRI, core.OwnerCRI, true},
		{core.OwnerCRI, "", core.OwnerCRI, true},
		{core.OwnerCRI, core.OwnerCRI, core.OwnerCRI, true},
		{core.OwnerCRI, core.OwnerCLI, core.OwnerCRI, false},
	} {
		if got, ok := of(c.scope).Selects(core.Filter{Owner: c.filter}); got.Owner != c.want || ok != c.ok {
			t.Errorf("%q selects %q: %q, %t", c.scope, c.filter, got.Owner, ok)
		}
	}
}

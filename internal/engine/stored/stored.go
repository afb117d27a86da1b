// Package stored shows an owner its objects as they are stored: the engine's part
// for whoever answers the same question of hundreds of objects every second.
//
// A copy is most of what such an answer would cost. So nobody may change what
// this package returns, and it may be kept: an object that has changed is another
// one. It must not know what is done with them. Start at Shelf.
package stored

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Shelf looks at objects as one owner may see them.
type Shelf struct {
	store core.Store
	owner core.Owner
}

// New returns the shelf of one owner; "" sees all.
func New(owner core.Owner, store core.Store) Shelf { return Shelf{store, owner} }

// StoredSandboxes are all there are, oldest first.
func (s Shelf) StoredSandboxes() ([]*core.Sandbox, error) { return all(s, core.Tx.Sandboxes) }

// StoredContainers are all there are, oldest first.
func (s Shelf) StoredContainers() ([]*core.Container, error) { return all(s, core.Tx.Containers) }

// StoredSandbox is one; NotFound when there is none such.
func (s Shelf) StoredSandbox(id core.ID) (*core.Sandbox, error) {
	return one(s, core.Tx.Sandboxes, (*core.Sandbox).Base, id)
}

// StoredContainer is one; NotFound when there is none such.
func (s Shelf) StoredContainer(id core.ID) (*core.Container, error) {
	return one(s, core.Tx.Containers, (*core.Container).Base, id)
}

// StoredContainersOf are those of one sandbox, oldest first.
func (s Shelf) StoredContainersOf(sandbox core.ID) (list []*core.Container, err error) {
	err = s.store.View(func(tx core.Tx) error {
		for c := range tx.StoredOf(sandbox) {
			if s.sees(&c.Meta) {
				list = append(list, c)
			}
		}
		return nil
	})
	return list, err
}

func (s Shelf) sees(m *core.Meta) bool { return s.owner == "" || m.Owner == s.owner }

func all[T any](s Shelf, table func(core.Tx) core.Table[T]) (list []*T, err error) {
	err = s.store.View(func(tx core.Tx) error { list = slices.Collect(table(tx).Stored(s.owner)); return nil })
	return list, err
}

func one[T any](s Shelf, table func(core.Tx) core.Table[T], base func(*T) *core.Meta, id core.ID) (found *T, err error) {
	err = s.store.View(func(tx core.Tx) error { found, err = table(tx).Peek(id); return err })
	if err == nil && !s.sees(base(found)) {
		found, err = nil, fmt.Errorf("object %s: %w", id, errdefs.ErrNotFound)
	}
	return found, err
}

package engine

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Stored shows an owner its objects as they are stored: for a caller that answers the
// same question about hundreds of objects every second, where copies would be most of
// the cost. Nobody may change what it returns. It may be kept: an object that has changed
// is another one in memory.
type Stored struct {
	store core.Store
	owner core.Owner
}

// Sandboxes lists all sandboxes, oldest first.
func (s Stored) Sandboxes() ([]*core.Sandbox, error) { return storedAll(s, core.Tx.Sandboxes) }

// Containers lists all containers, oldest first.
func (s Stored) Containers() ([]*core.Container, error) { return storedAll(s, core.Tx.Containers) }

// Sandbox returns one sandbox, or NotFound.
func (s Stored) Sandbox(id core.ID) (*core.Sandbox, error) {
	return storedOne(s, core.Tx.Sandboxes, (*core.Sandbox).Base, id)
}

// Container returns one container, or NotFound.
func (s Stored) Container(id core.ID) (*core.Container, error) {
	return storedOne(s, core.Tx.Containers, (*core.Container).Base, id)
}

// ContainersOf lists the containers of one sandbox, oldest first.
func (s Stored) ContainersOf(sandbox core.ID) (list []*core.Container, err error) {
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

func (s Stored) sees(m *core.Meta) bool { return s.owner == "" || m.Owner == s.owner }

func storedAll[T any](s Stored, table func(core.Tx) core.Table[T]) (list []*T, err error) {
	err = s.store.View(func(tx core.Tx) error { list = slices.Collect(table(tx).Stored(s.owner)); return nil })
	return list, err
}

func storedOne[T any](s Stored, table func(core.Tx) core.Table[T], base func(*T) *core.Meta, id core.ID) (found *T, err error) {
	err = s.store.View(func(tx core.Tx) error { found, err = table(tx).Peek(id); return err })
	if err == nil && !s.sees(base(found)) {
		found, err = nil, fmt.Errorf("object %s: %w", id, errdefs.ErrNotFound)
	}
	return found, err
}

package reads

import (
	"fmt"
	"slices"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/scope"
)

// Stored returns an owner's objects as they are stored, for callers that read hundreds of objects
// every second, where copying would be most of the cost. Callers must not change them, and may
// keep them: a change stores a new object.
type Stored struct{ Scope scope.Scope }

// Sandboxes returns all sandboxes, oldest first.
func (s Stored) Sandboxes() ([]*core.Sandbox, error) { return storedAll(s, core.Tx.Sandboxes) }

// Containers returns all containers, oldest first.
func (s Stored) Containers() ([]*core.Container, error) { return storedAll(s, core.Tx.Containers) }

// Sandbox returns one sandbox, or NotFound.
func (s Stored) Sandbox(id core.ID) (*core.Sandbox, error) {
	return storedOne(s, core.Tx.Sandboxes, (*core.Sandbox).Base, id)
}

// Container returns one container, or NotFound.
func (s Stored) Container(id core.ID) (*core.Container, error) {
	return storedOne(s, core.Tx.Containers, (*core.Container).Base, id)
}

// ContainersOf returns the containers of one sandbox, oldest first.
func (s Stored) ContainersOf(sandbox core.ID) (list []*core.Container, err error) {
	err = s.Scope.Store.View(func(tx core.Tx) error {
		for c := range tx.StoredOf(sandbox) {
			if s.Scope.Sees(&c.Meta) {
				list = append(list, c)
			}
		}
		return nil
	})
	return list, err
}

// Events returns the owner's events after since, without waiting for further ones, and the Seq of the newest event of all
// owners, which it returns with an error too. OutOfRange means that some were trimmed.
func (s Stored) Events(since uint64) (list []core.Event, last uint64, err error) {
	err = s.Scope.Store.View(func(tx core.Tx) error {
		last = tx.LastSeq()
		for e, err := range tx.Events(since) {
			if err != nil {
				return err
			}
			if s.Scope.Has(e.Owner) {
				list = append(list, e)
			}
		}
		return nil
	})
	return list, last, err
}

func storedAll[T any](s Stored, table func(core.Tx) core.Table[T]) (list []*T, err error) {
	err = s.Scope.Store.View(func(tx core.Tx) error { list = slices.Collect(table(tx).Stored(s.Scope.Owner)); return nil })
	return list, err
}

func storedOne[T any](s Stored, table func(core.Tx) core.Table[T], base func(*T) *core.Meta, id core.ID) (found *T, err error) {
	err = s.Scope.Store.View(func(tx core.Tx) error { found, err = table(tx).Peek(id); return err })
	if err == nil && !s.Scope.Sees(base(found)) {
		found, err = nil, fmt.Errorf("object %s: %w", id, errdefs.ErrNotFound)
	}
	return found, err
}

package scope

import (
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
)

// Records reads and writes the store's records, each change together with its events.
type Records struct{ Store core.Store }

// Sandbox returns a sandbox, or NotFound.
func (r Records) Sandbox(id core.ID) (sb core.Sandbox, err error) {
	err = r.Store.View(func(tx core.Tx) error { sb, err = tx.Sandboxes().Get(id); return err })
	return sb, err
}

// Container returns a container, or NotFound.
func (r Records) Container(id core.ID) (c core.Container, err error) {
	err = r.Store.View(func(tx core.Tx) error { c, err = tx.Containers().Get(id); return err })
	return c, err
}

// ContainersOf returns the containers of one sandbox, oldest first.
func (r Records) ContainersOf(sandbox core.ID) (list []core.Container, err error) {
	err = r.Store.View(func(tx core.Tx) error {
		list = slices.Collect(tx.ContainersOf(sandbox))
		return nil
	})
	return list, err
}

// Change collects the events of one change to a record.
type Change struct{ events []core.Event }

// Add adds an event. Write fills in the time and the identity of the object.
func (n *Change) Add(ev core.Event) { n.events = append(n.events, ev) }

// Join adds the events of another change.
func (n *Change) Join(other Change) { n.events = append(n.events, other.events...) }

// Write appends the events, each with m's identity, and sets m.Rev to the last one's Seq.
func (n *Change) Write(tx core.Tx, m *core.Meta, sandbox, container core.ID) error {
	for _, ev := range n.events {
		ev.At, ev.Owner, ev.Key, ev.Sandbox, ev.Container = now(), m.Owner, m.Key, sandbox, container
		seq, err := tx.Append(ev)
		if err != nil {
			return err
		}
		m.Rev = seq
	}
	return nil
}

// EditSandbox changes a sandbox's record and appends the events of the change.
func (r Records) EditSandbox(id core.ID, fn func(sb *core.Sandbox, n *Change) error) (sb core.Sandbox, err error) {
	err = r.Store.Update(func(tx core.Tx) error {
		if sb, err = tx.Sandboxes().Get(id); err != nil {
			return err
		}
		var n Change
		if err := fn(&sb, &n); err != nil {
			return err
		}
		if err := n.Write(tx, &sb.Meta, sb.ID, ""); err != nil {
			return err
		}
		return tx.Sandboxes().Put(sb)
	})
	return sb, err
}

// EditContainer changes a container's record and appends the events of the change.
func (r Records) EditContainer(id core.ID, fn func(c *core.Container, n *Change) error) error {
	return r.Store.Update(func(tx core.Tx) error {
		c, err := tx.Containers().Get(id)
		if err != nil {
			return err
		}
		var n Change
		if err := fn(&c, &n); err != nil {
			return err
		}
		if err := n.Write(tx, &c.Meta, c.Sandbox, c.ID); err != nil {
			return err
		}
		return tx.Containers().Put(c)
	})
}

// DropSandbox deletes a sandbox's record and appends the events of by, and that of the removal. It
// succeeds when there is no record.
func (r Records) DropSandbox(id core.ID, by Change) error {
	return r.Store.Update(func(tx core.Tx) error {
		sb, err := tx.Sandboxes().Get(id)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		by.Add(core.Event{Kind: core.EventSandboxRemoved})
		if err := by.Write(tx, &sb.Meta, id, ""); err != nil {
			return err
		}
		return tx.Sandboxes().Delete(id)
	})
}

// DropContainer deletes a container's record as DropSandbox deletes a sandbox's.
func (r Records) DropContainer(id core.ID, by Change) error {
	return r.Store.Update(func(tx core.Tx) error {
		c, err := tx.Containers().Get(id)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		by.Add(core.Event{Kind: core.EventContainerRemoved})
		if err := by.Write(tx, &c.Meta, c.Sandbox, id); err != nil {
			return err
		}
		return tx.Containers().Delete(id)
	})
}

// Tell appends an event that belongs to no change of a record.
func (r Records) Tell(ev core.Event) error {
	ev.At = now()
	return r.Store.Update(func(tx core.Tx) error {
		_, err := tx.Append(ev)
		return err
	})
}

func now() time.Time { return time.Now().Round(0).UTC() }

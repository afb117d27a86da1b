package engine

import (
	"encoding/hex"
	"errors"
	"fmt"
	"slices"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"

	"github.com/longshore/longshore/internal/core"
)

// records reads and writes the store's records, each change together with its events.
type records struct{ store core.Store }

// newID returns a new random ID. It asks the kernel itself: crypto/rand links ciphers and
// hashes, which a slim build has no other use for.
func newID() core.ID {
	var b [32]byte
	for got := 0; got < len(b); {
		n, err := unix.Getrandom(b[got:], 0)
		if err != nil && !errors.Is(err, unix.EINTR) {
			panic(fmt.Sprintf("the kernel gives no random numbers: %v", err)) // it does since Linux 3.17
		}
		got += max(n, 0)
	}
	return core.ID(hex.EncodeToString(b[:]))
}

func (r records) sandbox(id core.ID) (sb core.Sandbox, err error) {
	err = r.store.View(func(tx core.Tx) error { sb, err = tx.Sandboxes().Get(id); return err })
	return sb, err
}

func (r records) container(id core.ID) (c core.Container, err error) {
	err = r.store.View(func(tx core.Tx) error { c, err = tx.Containers().Get(id); return err })
	return c, err
}

// containersOf returns the containers of one sandbox, oldest first.
func (r records) containersOf(sandbox core.ID) (list []core.Container, err error) {
	err = r.store.View(func(tx core.Tx) error {
		list = slices.Collect(tx.ContainersOf(sandbox))
		return nil
	})
	return list, err
}

// change collects the events of one change to a record.
type change struct{ events []core.Event }

func (n *change) add(ev core.Event) { n.events = append(n.events, ev) }

// forced adds an event when the caller, with the unscoped view, changes another owner's object.
func (n *change) forced(v view, m *core.Meta, verb string, req core.StopRequest) {
	if !v.forces(m) {
		return
	}
	who := string(req.Owner)
	if req.User != "" {
		who += " (" + req.User + ")"
	}
	if req.Call != "" {
		verb = req.Call
	}
	n.add(core.Event{Kind: core.EventForced, Note: fmt.Sprintf("%s: %s on an object of %s", who, verb, m.Owner)})
}

// write appends the events, each with m's identity, and sets m.Rev to the last one's Seq.
func (n *change) write(tx core.Tx, m *core.Meta, sandbox, container core.ID) error {
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

// editSandbox changes a sandbox's record and appends the events of the change.
func (r records) editSandbox(id core.ID, fn func(sb *core.Sandbox, n *change) error) (sb core.Sandbox, err error) {
	err = r.store.Update(func(tx core.Tx) error {
		if sb, err = tx.Sandboxes().Get(id); err != nil {
			return err
		}
		var n change
		if err := fn(&sb, &n); err != nil {
			return err
		}
		if err := n.write(tx, &sb.Meta, sb.ID, ""); err != nil {
			return err
		}
		return tx.Sandboxes().Put(sb)
	})
	return sb, err
}

// editContainer changes a container's record and appends the events of the change.
func (r records) editContainer(id core.ID, fn func(c *core.Container, n *change) error) error {
	return r.store.Update(func(tx core.Tx) error {
		c, err := tx.Containers().Get(id)
		if err != nil {
			return err
		}
		var n change
		if err := fn(&c, &n); err != nil {
			return err
		}
		if err := n.write(tx, &c.Meta, c.Sandbox, c.ID); err != nil {
			return err
		}
		return tx.Containers().Put(c)
	})
}

// step moves a container to the next state of verb.
func step(c *core.Container, verb core.Verb) error {
	next, ok := core.NextContainer(c.State, verb)
	if !ok {
		return fmt.Errorf("it is %s: %w", c.State, errdefs.ErrFailedPrecondition)
	}
	c.State = next
	return nil
}

func (r records) dropSandbox(id core.ID, by change) error {
	return r.store.Update(func(tx core.Tx) error {
		sb, err := tx.Sandboxes().Get(id)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		by.add(core.Event{Kind: core.EventSandboxRemoved})
		if err := by.write(tx, &sb.Meta, id, ""); err != nil {
			return err
		}
		return tx.Sandboxes().Delete(id)
	})
}

func (r records) dropContainer(id core.ID, by change) error {
	return r.store.Update(func(tx core.Tx) error {
		c, err := tx.Containers().Get(id)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if err != nil {
			return err
		}
		by.add(core.Event{Kind: core.EventContainerRemoved})
		if err := by.write(tx, &c.Meta, c.Sandbox, id); err != nil {
			return err
		}
		return tx.Containers().Delete(id)
	})
}

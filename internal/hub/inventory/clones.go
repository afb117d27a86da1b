package inventory

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/store"
)

// Clones is a kind of records: Clone, as JSON.
const Clones = "clone/"

// Clone is the record of a node with a certificate in use at two places.
type Clone struct {
	// Addresses are the addresses of its users.
	Addresses []string  `json:"addresses"`
	Seen      time.Time `json:"seen"`
	// Banned has the node let in no more.
	Banned bool `json:"banned,omitempty"`
	// Since is when an operator has let it in again: from then on certificates that were issued
	// earlier are accepted from the address From alone, and from nowhere once a later one was used.
	Since time.Time `json:"since,omitzero"`
	From  string    `json:"from,omitempty"`
}

// Admits reports whether a certificate that was issued at a time is accepted from an address.
func (c Clone) Admits(issued time.Time, addr string) bool {
	return !c.Banned && (c.Since.IsZero() || !issued.Before(c.Since) || c.From != "" && addr == c.From)
}

// Put returns the write of a node's record.
func (c Clone) Put(node string, condition int64) store.Write {
	data, err := json.Marshal(c)
	if err != nil {
		err = fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
	}
	return store.Write{Key: Clones + node, Value: data, If: condition, Err: err}
}

// cloned is a record of the kind Clones.
type cloned struct {
	Clone
	rev int64
}

// cloneLocked applies a change of a node's record of clones.
func (b *Inventory) cloneLocked(id string, c store.Change) {
	all := maps.Clone(*b.clones.Load())
	delete(all, id)
	if !c.Deleted {
		next := cloned{rev: c.Rev}
		if err := json.Unmarshal(c.Value, &next.Clone); err != nil {
			b.log.Error("a clone record of the store is damaged; its node is refused", "key", c.Key, "error", err)
			next.Banned = true
		}
		all[id] = next
	}
	b.clones.Store(&all)
	if n := b.nodes[id]; n != nil {
		n.wake(true, true)
	}
}

// Clone returns a node's record of clones, with its revision; store.Absent if it has none.
func (b *Inventory) Clone(node string) (Clone, int64) {
	c, ok := (*b.clones.Load())[node]
	if !ok {
		return Clone{}, store.Absent
	}
	return c.Clone, c.rev
}

// Banned are the nodes that are let in no more, and how many have clones.
func (b *Inventory) Banned() (banned []string, clones int) {
	all := *b.clones.Load()
	for id, c := range all {
		if c.Banned {
			banned = append(banned, id)
		}
	}
	slices.Sort(banned)
	return banned, len(all)
}

// Stored is how many statuses of tasks this hub has stored.
func (b *Inventory) Stored() uint64 { return b.stored.Load() }

package inventory

import (
	"slices"
	"strings"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// Serve sets the hub's run of the inventory, before Run. moved is called with each new holder of a
// node: the session, if it is this run's, and "" if not. It must not call the inventory.
func (b *Inventory) Serve(run string, moved func(node, session string)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.run, b.moved = run, moved
}

// Hold returns the part of a record of the kind Seen with the node's holder, a run of a hub and its
// session.
func Hold(run, session string) *swarmv1.NodeSpec {
	return &swarmv1.NodeSpec{Annotations: &swarmv1.Annotations{Name: run + " " + session}}
}

func holder(seen *swarmv1.Node) (run, session string) {
	run, session, _ = strings.Cut(seen.GetSpec().GetAnnotations().GetName(), " ")
	return run, session
}

// Holder returns the run of a hub that holds a node, its session, and the record's revision; "" if
// none does.
func (b *Inventory) Holder(id string) (run, session string, rev int64) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	n := b.nodes[id]
	if n == nil {
		return "", "", 0
	}
	run, session = holder(n.seen.M)
	return run, session, n.seen.Rev
}

// Orphans returns the nodes that had a session, are not Down, and are held by no living run of a hub.
func (b *Inventory) Orphans(there func(run string) bool) (list []string) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for id, n := range b.nodes {
		switch n.seen.M.GetStatus().GetState() {
		case swarmv1.NodeStatus_READY, swarmv1.NodeStatus_DISCONNECTED, swarmv1.NodeStatus_UNKNOWN:
		default:
			continue
		}
		if run, _ := holder(n.seen.M); n.record.M != nil && n.seen.M != nil && (run == "" || !there(run)) {
			list = append(list, id)
		}
	}
	slices.Sort(list)
	return list
}

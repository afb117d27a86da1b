package session

import (
	"context"
	"time"

	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/ca"
)

// A certificate is in use at two places when two addresses take the session of its node from each other so often
// within a time. A node that has moved takes it once; one that comes back resumes it.
const (
	takesOfClones = 3
	takesTime     = 10 * time.Minute
	maxTakes      = 16 // that are remembered of a node
)

// take is a session that a node's certificate has taken from another address.
type take struct {
	to, from string
	at       time.Time
}

// inUse returns the address of another session of the caller's node, with this hub or another one, that the
// caller does not resume; "" if there is none.
func (d *Dispatcher) inUse(caller ca.Caller, resumes string) string {
	n, _, _ := d.o.Inventory.Node(caller.Node)
	run, session, _ := d.o.Inventory.Holder(caller.Node)
	if n.GetStatus().GetState() != swarmv1.NodeStatus_READY || session == resumes || n.GetStatus().GetAddr() == caller.Addr || !d.o.Peers.Alive(run) {
		return ""
	}
	return n.GetStatus().GetAddr()
}

// taken notes that a caller has begun a session while its node was in touch from another address.
func (d *Dispatcher) taken(ctx context.Context, caller ca.Caller, from string) error {
	if from == "" {
		return nil
	}
	d.mu.Lock()
	cloned := d.nodes[caller.Node].takenLocked(take{caller.Addr, from, time.Now()})
	d.mu.Unlock()
	if !cloned {
		return nil
	}
	if err := d.o.CA.Cloned(ctx, caller.Node, caller.Addr, from); err != nil {
		if ctx.Err() != nil {
			return status.FromContextError(ctx.Err()).Err()
		}
		d.o.Log.ErrorContext(ctx, "could not store that the certificate of a node is in use at two addresses", "node", caller.Node, "error", err)
		return errStopped
	}
	return nil
}

// takenLocked reports whether the two addresses of a take have taken the session from each other too often.
func (st *state) takenLocked(t take) bool {
	st.takes = append(st.takes, t)
	st.takes = st.takes[max(0, len(st.takes)-maxTakes):]
	n := 0
	for _, other := range st.takes {
		same := other.to == t.to && other.from == t.from || other.to == t.from && other.from == t.to
		if same && t.at.Sub(other.at) < takesTime {
			n++
		}
	}
	return n >= takesOfClones
}

// Counts are how many nodes are in touch with this hub, and how many sessions ended as their node began another one.
func (d *Dispatcher) Counts() (sessions int, superseded uint64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, st := range d.nodes {
		if st.current != nil {
			sessions++
		}
	}
	return sessions, d.superseded.Load()
}

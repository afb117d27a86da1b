package fleet

import (
	"crypto/sha256"
	"fmt"
	"math/big"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/inventory"
)

// Pending returns a task in the state Pending for each replica, and for each node of a global service,
// that has no task because no node takes one. The error text of its status names the nodes and the
// reasons. The tasks are not stored: their IDs stay the same while they are pending.
func Pending(s State) []inventory.Task {
	s.NewID = func() string { return "" }
	p := newScheduler(s)
	p.schedule()
	return p.pending
}

// hold records that a place has no task, and why.
func (p *scheduler) hold(s *swarmv1.Service, pl place, why string) {
	t := newTask(s, pendingID(s.GetId(), pl), pl.node, pl.slot, s.GetMeta().GetUpdatedAt().AsTime())
	p.pending = append(p.pending, inventory.Task{
		Pending: true,
		Record:  inventory.Record[*swarmv1.Task]{M: t},
		Status: inventory.Record[*swarmv1.TaskStatus]{M: &swarmv1.TaskStatus{
			Timestamp: timestamppb.New(p.Now), State: swarmv1.TaskState_PENDING, Message: "pending task scheduling", Err: why,
		}},
	})
}

// pendingID returns the ID of the pending task of a place, in the form of the IDs of tasks.
func pendingID(service string, pl place) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "pending %s %d %s", service, pl.slot, pl.node))
	text := new(big.Int).SetBytes(sum[:]).Text(36)
	return strings.Repeat("0", max(0, 25-len(text))) + text[:min(len(text), 25)]
}

// waitsFor names the silent node of a task that may still run and that a place waits for. It returns
// "" if the node answers and the task is about to end.
func waitsFor(p *scheduler, s *swarmv1.Service, tasks []inventory.Task) string {
	for _, t := range tasks {
		n := p.nodes[t.M.GetNodeId()]
		if t.Ended() || p.moved(t) || n.GetStatus().GetState() != swarmv1.NodeStatus_DOWN {
			continue
		}
		until := "is back or removed"
		if after, ok := p.moveAfter(s); ok && t.M.GetSlot() > 0 {
			until = "is back, or until " + n.GetMeta().GetUpdatedAt().AsTime().Add(after).Format(time.RFC3339)
		}
		return fmt.Sprintf("task %s may still run on node %s, which is down; the next one waits until the node %s", t.M.GetId(), nameOf(n), until)
	}
	return ""
}

// refused returns why no node takes another task of a place.
func refused(p *scheduler, s *swarmv1.Service, pl place, h home) string {
	if node := p.nodes[h.node]; h.must && node != nil {
		return fmt.Sprintf("a volume of the task is on node %s: %s", nameOf(node), reason(p, s, node))
	}
	var reasons []string
	nodes := map[string][]string{}
	for _, n := range p.Nodes {
		if pl.node != "" && n.GetId() != pl.node {
			continue
		}
		why := reason(p, s, n)
		if _, ok := nodes[why]; !ok {
			reasons = append(reasons, why)
		}
		nodes[why] = append(nodes[why], nameOf(n))
	}
	if len(reasons) == 0 {
		return "no suitable node (there is none)"
	}
	for i, why := range reasons {
		reasons[i] = why + ": " + list(nodes[why])
	}
	return "no suitable node (" + strings.Join(reasons, "; ") + ")"
}

// reason returns why a node takes no task of a service, in the words of a Swarm's managers.
func reason(p *scheduler, s *swarmv1.Service, n *swarmv1.Node) string {
	switch state := n.GetStatus().GetState(); {
	case n.GetSpec().GetMembership() != swarmv1.NodeSpec_ACCEPTED:
		return "not accepted"
	case state != swarmv1.NodeStatus_READY:
		return "not available for new tasks, " + strings.ToLower(state.String())
	case n.GetSpec().GetAvailability() != swarmv1.NodeSpec_ACTIVE:
		return "not available for new tasks, availability " + strings.ToLower(n.GetSpec().GetAvailability().String())
	case !matches(s.GetSpec().GetTask().GetPlacement(), n):
		return "scheduling constraints not satisfied"
	}
	return p.room[n.GetId()].lacks(s)
}

// nameOf returns the name of a node for messages.
func nameOf(n *swarmv1.Node) string {
	if name := n.GetDescription().GetHostname(); name != "" {
		return name
	}
	return n.GetId()
}

// maxNames is the largest number of names in a list of a message.
const maxNames = 10

// list returns names for a message.
func list(names []string) string {
	slices.Sort(names)
	if more := len(names) - maxNames; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:maxNames], ", "), more)
	}
	return strings.Join(names, ", ")
}

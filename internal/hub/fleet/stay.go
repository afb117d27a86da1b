package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/invalid"
)

// MoveAfter is a label of services. Its value is a duration or "never". Once a node has been Down for
// that duration, its replicas of the service are started on other nodes. The default is
// State.MoveAfter.
const MoveAfter = "longshore.move-after"

// never is the value of MoveAfter for replicas that wait until their node is back or removed.
const never = "never"

// maxFailures is the number of tasks of a replica that fail in a row on one node before the next one
// starts on another node.
const maxFailures = 3

// checkMoveAfter refuses a label MoveAfter that cannot be read.
func checkMoveAfter(spec *swarmv1.ServiceSpec) error {
	text, ok := spec.GetAnnotations().GetLabels()[MoveAfter]
	if d, err := time.ParseDuration(text); ok && text != never && (err != nil || d < 0) {
		return invalid.Errorf("the label %s is %.40q; it must be a duration such as 90s, or %s", MoveAfter, text, never)
	}
	return nil
}

// moveAfter returns the duration of MoveAfter for a service. It returns false for never.
func (p *scheduler) moveAfter(s *swarmv1.Service) (time.Duration, bool) {
	text := s.GetSpec().GetAnnotations().GetLabels()[MoveAfter]
	if text == never {
		return 0, false
	}
	if d, err := time.ParseDuration(text); err == nil {
		return d, true
	}
	return p.MoveAfter, true
}

// moved reports whether a task's replica must start on another node because its node has been Down for
// longer than MoveAfter. Until then the task counts as running: it may still run on a node that cannot
// report.
func (p *scheduler) moved(t inventory.Task) bool {
	n := p.nodes[t.M.GetNodeId()]
	if t.M.GetSlot() == 0 || n.GetStatus().GetState() != swarmv1.NodeStatus_DOWN {
		return false
	}
	after, ok := p.moveAfter(p.Services[t.M.GetServiceId()].M)
	if !ok {
		return false
	}
	at := n.GetMeta().GetUpdatedAt().AsTime().Add(after)
	if p.Now.Before(at) {
		p.later(at)
		return false
	}
	return true
}

// stopping reports whether a task of a place has not ended yet. The next task waits for its end. A node
// that is Down cannot report the end, so a replica waits for MoveAfter, and a task of a global service
// waits for the node.
func (p *scheduler) stopping(tasks []inventory.Task) bool {
	return slices.ContainsFunc(tasks, func(t inventory.Task) bool { return !t.Ended() && !p.moved(t) })
}

// waits reports whether the next task of a place waits for a node that is Down, for an unlimited time.
func (p *scheduler) waits(s *swarmv1.Service, tasks []inventory.Task) bool {
	_, moves := p.moveAfter(s)
	return !moves && slices.ContainsFunc(tasks, func(t inventory.Task) bool {
		return !t.Ended() && p.nodes[t.M.GetNodeId()].GetStatus().GetState() == swarmv1.NodeStatus_DOWN
	})
}

// home is the node where the last task of a replica was.
type home struct {
	node string // "" when there was none, or its node is gone
	// must is set when a volume of the replica is on the node and the next task must start there.
	must bool
	// avoid is set when the next task starts on another node if one takes it.
	avoid bool
	// left is the reason for leaving a node that has a volume of the replica, or "".
	left string
}

// homeOf returns the home of a replica. before are its earlier tasks.
func (p *scheduler) homeOf(s *swarmv1.Service, before []inventory.Task) home {
	last := newest(before)
	n := p.nodes[last.M.GetNodeId()]
	if last.M == nil || n == nil {
		return home{}
	}
	h := home{node: n.GetId()}
	volumes := sharedVolumes(last.M.GetSpec(), s.GetSpec().GetTask())
	if len(volumes) == 0 {
		h.avoid = failing(before, h.node)
		return h
	}
	switch {
	case n.GetSpec().GetAvailability() == swarmv1.NodeSpec_DRAIN:
		h.left = "is drained"
	case n.GetSpec().GetMembership() != swarmv1.NodeSpec_ACCEPTED:
		h.left = "is not accepted"
	case !matches(s.GetSpec().GetTask().GetPlacement(), n):
		h.left = "does not fulfill the constraints"
	case n.GetStatus().GetState() == swarmv1.NodeStatus_DOWN:
		after, moves := p.moveAfter(s)
		at := n.GetMeta().GetUpdatedAt().AsTime().Add(after)
		switch {
		case !moves:
			h.must = true
		case p.Now.Before(at):
			h.must = true
			p.later(at)
		default:
			h.left = fmt.Sprintf("has been down since %s", n.GetMeta().GetUpdatedAt().AsTime().Format(time.RFC3339))
		}
	default:
		h.must = true
	}
	if h.left != "" {
		h.left = fmt.Sprintf("without its volume %s of node %s, which %s", strings.Join(volumes, ", "), n.GetId(), h.left)
	}
	return h
}

// newest returns the task that was made last, or none.
func newest(tasks []inventory.Task) (last inventory.Task) {
	for _, t := range tasks {
		if last.M == nil || t.M.GetMeta().GetCreatedAt().AsTime().After(last.M.GetMeta().GetCreatedAt().AsTime()) {
			last = t
		}
	}
	return last
}

// failing reports whether the newest maxFailures tasks of a replica failed on a node, or the node
// refused the newest one.
func failing(tasks []inventory.Task, node string) bool {
	tasks = slices.SortedFunc(slices.Values(tasks), func(a, b inventory.Task) int {
		return b.M.GetMeta().GetCreatedAt().AsTime().Compare(a.M.GetMeta().GetCreatedAt().AsTime())
	})
	count := 0
	for _, t := range tasks {
		switch {
		case t.M.GetNodeId() != node, t.M.GetDesiredState() > swarmv1.TaskState_RUNNING:
			return false
		case t.State() == swarmv1.TaskState_REJECTED:
			return true
		case t.State() != swarmv1.TaskState_FAILED:
			return false
		}
		if count++; count == maxFailures {
			return true
		}
	}
	return false
}

// sharedVolumes returns the names of the volumes of one node that both tasks mount.
func sharedVolumes(a, b *swarmv1.TaskSpec) (names []string) {
	for _, m := range a.GetContainer().GetMounts() {
		if ofOneNode(m) && !slices.Contains(names, m.GetSource()) && slices.ContainsFunc(b.GetContainer().GetMounts(), func(o *swarmv1.Mount) bool {
			return ofOneNode(o) && o.GetSource() == m.GetSource()
		}) {
			names = append(names, m.GetSource())
		}
	}
	return names
}

// ofOneNode reports whether a mount is a named volume with data that is on one node only. Other nodes
// may reach volumes of other drivers, and volumes that the driver local mounts from a network.
func ofOneNode(m *swarmv1.Mount) bool {
	driver := m.GetVolumeOptions().GetDriverConfig()
	if m.GetType() != swarmv1.Mount_VOLUME || m.GetSource() == "" || driver.GetName() != "" && driver.GetName() != "local" {
		return false
	}
	switch kind := driver.GetOptions()["type"]; {
	case strings.HasPrefix(kind, "nfs"), strings.HasPrefix(kind, "cifs"), strings.HasPrefix(kind, "smb"), strings.HasPrefix(kind, "ceph"), strings.HasPrefix(kind, "glusterfs"), kind == "9p", kind == "tmpfs":
		return false
	}
	return true
}

// ready reports whether a node is ready for another task of a service and has room for it.
func (p *scheduler) ready(s *swarmv1.Service, n *swarmv1.Node) bool {
	return n.GetStatus().GetState() == swarmv1.NodeStatus_READY && n.GetSpec().GetMembership() == swarmv1.NodeSpec_ACCEPTED && n.GetSpec().GetAvailability() == swarmv1.NodeSpec_ACTIVE &&
		matches(s.GetSpec().GetTask().GetPlacement(), n) && p.room[n.GetId()].has(s)
}

// recordMove writes an event for a replica that starts without its volume.
func recordMove(p *scheduler, s *swarmv1.Service, slot uint64, node, why string) {
	e := events.Event{Time: p.Now.UTC(), Kind: "moved", What: fmt.Sprintf("replica %s.%d is started on node %s %s", s.GetSpec().GetAnnotations().GetName(), slot, node, why)}
	p.writes = append(p.writes, e.Write())
}

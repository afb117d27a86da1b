// Package fleet assigns tasks to nodes: from the declared services, the nodes and the statuses of
// tasks, a pure function computes the next changes.
//
// It has no connection to nodes. Start at Schedule and Run.
package fleet

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
)

// State is the input of a round of scheduling.
type State struct {
	Now      time.Time
	Services map[string]inventory.Record[*swarmv1.Service]
	Nodes    []*swarmv1.Node
	Tasks    map[string]inventory.Task
	Secrets  map[string]inventory.Record[*swarmv1.Secret]
	Configs  map[string]inventory.Record[*swarmv1.Config]
	// MoveAfter is how long a node is Down before its replicas are started elsewhere.
	MoveAfter time.Duration
	// NewID makes the ids of tasks.
	NewID func() string
}

// history is how many tasks that have ended are kept of each slot.
const history = 4

// scheduler computes the changes of one round.
type scheduler struct {
	State
	nodes  map[string]*swarmv1.Node
	room   map[string]*room // by node
	writes []store.Write
	done   map[string]bool // tasks with a write: a transaction has at most one of each record
	wake   time.Time       // when the next change is due, by the clock alone; zero is never
	// pending are the tasks of places that no node takes.
	pending []inventory.Task
}

// Schedule computes the changes of a round. again is the time of the next round if nothing changes before; zero is never.
func Schedule(s State) (writes []store.Write, again time.Time) {
	p := newScheduler(s)
	p.schedule()
	return p.writes, p.wake
}

func newScheduler(s State) *scheduler {
	p := &scheduler{State: s, nodes: map[string]*swarmv1.Node{}, room: map[string]*room{}, done: map[string]bool{}}
	for _, n := range s.Nodes {
		p.nodes[n.GetId()] = n
		p.room[n.GetId()] = newRoom(n)
	}
	return p
}

func (p *scheduler) schedule() {
	of := map[string][]inventory.Task{}
	for _, id := range slices.Sorted(maps.Keys(p.Tasks)) {
		t := p.Tasks[id]
		switch {
		case p.nodes[t.M.GetNodeId()] == nil, t.Ended() && t.M.GetDesiredState() == swarmv1.TaskState_REMOVE:
			p.remove(t)
			continue
		case p.live(t):
			p.room[t.M.GetNodeId()].take(t.M)
		}
		of[t.M.GetServiceId()] = append(of[t.M.GetServiceId()], t)
	}
	for _, id := range slices.Sorted(maps.Keys(of)) {
		if p.Services[id].M == nil {
			p.end(of[id])
		}
	}
	for _, id := range slices.Sorted(maps.Keys(p.Services)) {
		p.service(p.Services[id].M, of[id])
	}
	p.sweep()
}

// live reports whether a task counts as one that runs, or will.
func (p *scheduler) live(t inventory.Task) bool {
	return !t.Ended() && t.M.GetDesiredState() <= swarmv1.TaskState_RUNNING && !p.moved(t)
}

// later sets the time of the next round, at the latest.
func (p *scheduler) later(at time.Time) {
	if p.wake.IsZero() || at.Before(p.wake) {
		p.wake = at
	}
}

// remove deletes the records of a task.
func (p *scheduler) remove(t inventory.Task) {
	if p.done[t.M.GetId()] {
		return
	}
	p.done[t.M.GetId()] = true
	p.writes = append(p.writes, inventory.Delete(inventory.Tasks, t.M.GetId(), store.Any), inventory.Delete(inventory.Statuses, t.M.GetId(), store.Any))
}

// want sets the desired state of a task; it never goes backwards.
func (p *scheduler) want(t inventory.Task, s swarmv1.TaskState) {
	if t.M.GetDesiredState() >= s || p.done[t.M.GetId()] {
		return
	}
	p.done[t.M.GetId()] = true
	m := proto.CloneOf(t.M)
	m.DesiredState = s
	m.Meta = &swarmv1.Meta{CreatedAt: t.M.GetMeta().GetCreatedAt(), UpdatedAt: timestamppb.New(p.Now)}
	p.writes = append(p.writes, inventory.Put(inventory.Tasks, m.GetId(), m, t.Rev))
}

// end ends the tasks of a service that is not declared any more.
func (p *scheduler) end(tasks []inventory.Task) {
	for _, t := range tasks {
		if t.Ended() {
			p.remove(t)
		} else {
			p.want(t, swarmv1.TaskState_REMOVE)
		}
	}
}

// place is where a task of a service belongs: a slot, or a node.
type place struct {
	slot uint64
	node string
}

func placeOf(t *swarmv1.Task) place {
	if t.GetSlot() == 0 {
		return place{node: t.GetNodeId()}
	}
	return place{slot: t.GetSlot()}
}

// service moves the tasks of a service towards its declaration.
func (p *scheduler) service(s *swarmv1.Service, tasks []inventory.Task) {
	at := map[place][]inventory.Task{}
	for _, t := range tasks {
		at[placeOf(t.M)] = append(at[placeOf(t.M)], t)
	}
	wanted := p.places(s)
	keep := map[place]bool{}
	for _, pl := range wanted {
		keep[pl] = true
	}
	for _, pl := range slices.SortedFunc(maps.Keys(at), byPlace) {
		for _, t := range at[pl] {
			if !keep[pl] && !t.Ended() {
				p.want(t, swarmv1.TaskState_REMOVE)
			}
			if !t.Ended() && (p.moved(t) || !available(p.nodes[t.M.GetNodeId()])) {
				p.want(t, swarmv1.TaskState_SHUTDOWN)
			}
		}
		at[pl] = p.forget(at[pl])
		if !keep[pl] {
			for _, t := range at[pl] {
				if t.Ended() {
					p.remove(t)
				}
			}
		}
	}
	p.roll(s, wanted, at)
}

func byPlace(a, b place) int {
	return cmp.Or(cmp.Compare(a.slot, b.slot), cmp.Compare(a.node, b.node))
}

// forget removes the oldest of the tasks of a place that have ended, and returns the others.
func (p *scheduler) forget(tasks []inventory.Task) []inventory.Task {
	var past []inventory.Task
	for _, t := range tasks {
		if t.Ended() {
			past = append(past, t)
		}
	}
	slices.SortFunc(past, func(a, b inventory.Task) int { return endedAt(a).Compare(endedAt(b)) })
	gone := map[string]bool{}
	for _, t := range past[:max(0, len(past)-history)] {
		p.remove(t)
		gone[t.M.GetId()] = true
	}
	return slices.DeleteFunc(tasks, func(t inventory.Task) bool { return gone[t.M.GetId()] })
}

func endedAt(t inventory.Task) time.Time {
	if at := t.Status.M.GetAppliedAt(); at != nil {
		return at.AsTime()
	}
	return t.M.GetMeta().GetCreatedAt().AsTime()
}

// places are where a service's tasks are to be.
func (p *scheduler) places(s *swarmv1.Service) (list []place) {
	switch mode := s.GetSpec().GetMode().(type) {
	case *swarmv1.ServiceSpec_Global:
		for _, n := range p.Nodes {
			if n.GetSpec().GetMembership() == swarmv1.NodeSpec_ACCEPTED && n.GetDescription() != nil && n.GetSpec().GetAvailability() != swarmv1.NodeSpec_DRAIN && matches(s.GetSpec().GetTask().GetPlacement(), n) {
				list = append(list, place{node: n.GetId()})
			}
		}
	case *swarmv1.ServiceSpec_Replicated:
		for i := range mode.Replicated.GetReplicas() {
			list = append(list, place{slot: i + 1})
		}
	}
	return list
}

// start makes a task for a place, if its earlier tasks allow another, and reports whether it did.
func (p *scheduler) start(s *swarmv1.Service, pl place, before []inventory.Task) bool {
	if !p.again(s, before) {
		return false
	}
	node, h := pl.node, home{}
	if node == "" {
		h = p.homeOf(s, before)
		node = p.choose(s, h)
	} else if !p.room[node].has(s) || p.nodes[node].GetSpec().GetAvailability() != swarmv1.NodeSpec_ACTIVE {
		node = ""
	}
	if node == "" {
		p.hold(s, pl, refused(p, s, pl, h))
		return false // until something changes
	}
	p.create(s, node, pl.slot, swarmv1.TaskState_RUNNING)
	if h.left != "" {
		recordMove(p, s, pl.slot, node, h.left)
	}
	return true
}

// create makes a task that is to go to a state.
func (p *scheduler) create(s *swarmv1.Service, node string, slot uint64, to swarmv1.TaskState) {
	t := newTask(s, p.NewID(), node, slot, p.Now)
	t.DesiredState = to
	p.room[node].take(t)
	p.writes = append(p.writes, inventory.Put(inventory.Tasks, t.GetId(), t, store.Absent))
}

// again reports whether a place may have a task after those that it had, by the policy of restarts.
// Tasks that the hub ended, and those of earlier versions, do not count.
func (p *scheduler) again(s *swarmv1.Service, before []inventory.Task) bool {
	policy := s.GetSpec().GetTask().GetRestart()
	var last inventory.Task
	tries := uint64(0)
	for _, t := range before {
		if !t.Ended() || t.M.GetDesiredState() > swarmv1.TaskState_RUNNING || t.M.GetSpecVersion().GetIndex() != s.GetSpecVersion().GetIndex() {
			continue
		}
		if last.M == nil || endedAt(t).After(endedAt(last)) {
			last = t
		}
		if w := policy.GetWindow().AsDuration(); w == 0 || p.Now.Sub(endedAt(t)) < w {
			tries++
		}
	}
	if last.M == nil {
		return true
	}
	condition := swarmv1.RestartPolicy_ANY
	if policy != nil {
		condition = policy.GetCondition()
	}
	switch {
	case condition == swarmv1.RestartPolicy_NONE, condition == swarmv1.RestartPolicy_ON_FAILURE && last.State() == swarmv1.TaskState_COMPLETE:
		return false
	case policy.GetMaxAttempts() > 0 && tries > policy.GetMaxAttempts():
		return false
	}
	delay := defaultDelay
	if d := policy.GetDelay(); d != nil {
		delay = d.AsDuration()
	}
	if at := endedAt(last).Add(delay); p.Now.Before(at) {
		p.later(at)
		return false
	}
	return true
}

// defaultDelay is between the end of a task and the start of the next one.
const defaultDelay = 5 * time.Second

// choose returns the node for another task of a replica, "" when there is none: its home if that
// takes it, or else the node with the fewest tasks of the service, then with the fewest tasks.
func (p *scheduler) choose(s *swarmv1.Service, h home) string {
	if h.must {
		if !p.ready(s, p.nodes[h.node]) {
			return ""
		}
		return h.node
	}
	var best *room
	for _, n := range p.Nodes {
		r := p.room[n.GetId()]
		if !p.ready(s, n) {
			continue
		}
		if n.GetId() == h.node && !h.avoid {
			return h.node
		}
		if best == nil || best.id == h.node || n.GetId() != h.node && cmp.Or(cmp.Compare(r.of[s.GetId()], best.of[s.GetId()]), cmp.Compare(r.tasks, best.tasks)) < 0 {
			best = r
		}
	}
	if best == nil {
		return ""
	}
	return best.id
}

// newTask is a task of a service.
func newTask(s *swarmv1.Service, id, node string, slot uint64, now time.Time) *swarmv1.Task {
	spec := s.GetSpec()
	return &swarmv1.Task{
		Id: id, Meta: &swarmv1.Meta{CreatedAt: timestamppb.New(now), UpdatedAt: timestamppb.New(now)}, Spec: spec.GetTask(), SpecVersion: s.GetSpecVersion(),
		ServiceId: s.GetId(), Slot: slot, NodeId: node, ServiceAnnotations: spec.GetAnnotations(), DesiredState: swarmv1.TaskState_RUNNING,
		Endpoint: &swarmv1.Endpoint{Spec: spec.GetEndpoint(), Ports: spec.GetEndpoint().GetPorts()}, LogDriver: spec.GetTask().GetLogDriver(),
		Networks: attachments(spec.GetTask()),
	}
}

// declaredFiles reports whether there are secrets or configs that sweep may delete.
func (p *scheduler) declaredFiles() bool {
	for _, s := range p.Secrets {
		if s.M.GetSpec().GetAnnotations().GetLabels()[Declared] != "" {
			return true
		}
	}
	for _, c := range p.Configs {
		if c.M.GetSpec().GetAnnotations().GetLabels()[Declared] != "" {
			return true
		}
	}
	return false
}

// sweep deletes secrets and configs of declarations that no service and no task needs.
func (p *scheduler) sweep() {
	if !p.declaredFiles() {
		return
	}
	used := map[string]bool{}
	need := func(c *swarmv1.ContainerSpec) {
		for _, r := range c.GetSecrets() {
			used[inventory.Secrets+r.GetSecretId()] = true
		}
		for _, r := range c.GetConfigs() {
			used[inventory.Configs+r.GetConfigId()] = true
		}
	}
	for _, s := range p.Services {
		need(s.M.GetSpec().GetTask().GetContainer())
		need(s.M.GetPreviousSpec().GetTask().GetContainer()) // for a rollback
	}
	for _, t := range p.Tasks {
		need(t.M.GetSpec().GetContainer())
	}
	for id, s := range p.Secrets {
		if !used[inventory.Secrets+id] && s.M.GetSpec().GetAnnotations().GetLabels()[Declared] != "" {
			p.writes = append(p.writes, inventory.Delete(inventory.Secrets, id, s.Rev))
		}
	}
	for id, c := range p.Configs {
		if !used[inventory.Configs+id] && c.M.GetSpec().GetAnnotations().GetLabels()[Declared] != "" {
			p.writes = append(p.writes, inventory.Delete(inventory.Configs, id, c.Rev))
		}
	}
}

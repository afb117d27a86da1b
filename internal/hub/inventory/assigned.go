package inventory

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/store"
)

// Assignments are the assignments of one node. A changed object is another pointer.
type Assignments struct {
	Tasks   map[string]Task
	Secrets map[string]*swarmv1.Secret
	Configs map[string]*swarmv1.Config
}

// Assigned returns a node's assignments, and a channel that is closed when they change. They have
// the secrets and configs of its tasks that have not ended.
func (b *Inventory) Assigned(id string) (Assignments, <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.nodeLocked(id)
	if n.assigned == nil {
		n.assigned = make(chan struct{})
	}
	a := Assignments{Tasks: make(map[string]Task, len(n.tasks)), Secrets: map[string]*swarmv1.Secret{}, Configs: map[string]*swarmv1.Config{}}
	for id := range n.tasks {
		t := b.tasks[id]
		a.Tasks[id] = t
		if t.Ended() {
			continue
		}
		for _, ref := range t.M.GetSpec().GetContainer().GetSecrets() {
			if s, ok := b.secrets[ref.GetSecretId()]; ok {
				a.Secrets[ref.GetSecretId()] = s.M
			}
		}
		for _, ref := range t.M.GetSpec().GetContainer().GetConfigs() {
			if c, ok := b.configs[ref.GetConfigId()]; ok {
				a.Configs[ref.GetConfigId()] = c.M
			}
		}
	}
	return a, n.assigned
}

// Message is a task as it is sent: with its last status.
func (t Task) Message() *swarmv1.Task {
	m, status := t.M, t.Status.M
	if status == nil {
		status = &swarmv1.TaskStatus{State: swarmv1.TaskState_ASSIGNED, Timestamp: m.GetMeta().GetCreatedAt(), Message: "assigned by the hub"}
	}
	status = &swarmv1.TaskStatus{
		Timestamp: status.GetTimestamp(), State: status.GetState(), Message: status.GetMessage(), Err: status.GetErr(), RuntimeStatus: status.GetRuntimeStatus(),
		PortStatus: status.GetPortStatus(), AppliedBy: status.GetAppliedBy(), AppliedAt: status.GetAppliedAt(),
	}
	return &swarmv1.Task{
		Id: m.GetId(), Meta: &swarmv1.Meta{Version: &swarmv1.Version{Index: uint64(t.Rev)}, CreatedAt: m.GetMeta().GetCreatedAt(), UpdatedAt: m.GetMeta().GetUpdatedAt()},
		Spec: m.GetSpec(), SpecVersion: m.GetSpecVersion(), ServiceId: m.GetServiceId(), Slot: m.GetSlot(), NodeId: m.GetNodeId(), Annotations: m.GetAnnotations(),
		ServiceAnnotations: m.GetServiceAnnotations(), Status: status, DesiredState: m.GetDesiredState(), Networks: m.GetNetworks(), Endpoint: m.GetEndpoint(), LogDriver: m.GetLogDriver(),
	}
}

// Report takes statuses of a node's tasks. It returns the id of a task that is another node's; then
// none was taken. Unknown tasks are left out. The statuses are written soon: a node reports all
// again when it begins a session, so that nothing is lost with the hub.
func (b *Inventory) Report(node string, updates []*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate) (foreign string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, u := range updates {
		if t, ok := b.tasks[u.GetTaskId()]; ok && u.GetStatus() != nil && t.M.GetNodeId() != node {
			return u.GetTaskId()
		}
	}
	for _, u := range updates {
		id, s := u.GetTaskId(), u.GetStatus()
		t, ok := b.tasks[id]
		before := b.reported[id]
		switch {
		case !ok || !settable(s):
		case s.GetState() < t.State(), before != nil && s.GetState() < before.GetState(): // a state that was left
		case before == nil && sameStatus(s, t.Status.M): // a replay
		case before == nil:
			b.reported[id] = b.taken(s, t.RunningAt)
		default:
			b.reported[id] = b.taken(s, before.running)
		}
	}
	if len(b.reported) > 0 {
		b.poke()
	}
	return ""
}

// settable reports whether a status is one that a node may report.
func settable(s *swarmv1.TaskStatus) bool {
	switch s.GetState() {
	case swarmv1.TaskState_ASSIGNED, swarmv1.TaskState_ACCEPTED, swarmv1.TaskState_PREPARING, swarmv1.TaskState_READY, swarmv1.TaskState_STARTING, swarmv1.TaskState_RUNNING,
		swarmv1.TaskState_COMPLETE, swarmv1.TaskState_SHUTDOWN, swarmv1.TaskState_FAILED, swarmv1.TaskState_REJECTED:
		return s != nil
	default:
		return false
	}
}

// maxText is how much is kept of a text of a status, in bytes, and maxPorts how many ports.
const (
	maxText  = 8 << 10
	maxPorts = 1000
)

// taken is a status as it is stored of a task that runs since then, if not the zero time.
func (b *Inventory) taken(s *swarmv1.TaskStatus, running time.Time) *status {
	s = proto.CloneOf(s)
	s.ProtoReflect().SetUnknown(nil)
	s.Message, s.Err = cut(s.GetMessage()), cut(s.GetErr())
	if c := s.GetContainer(); c != nil {
		c.ContainerId = cut(c.GetContainerId())
	}
	if p := s.GetPortStatus(); p != nil {
		p.Ports = p.GetPorts()[:min(len(p.GetPorts()), maxPorts)]
		for _, port := range p.GetPorts() {
			port.Name = ""
			port.ProtoReflect().SetUnknown(nil)
		}
	}
	s.AppliedBy, s.AppliedAt = b.self, timestamppb.Now()
	if s.GetState() == swarmv1.TaskState_RUNNING && running.IsZero() {
		running = s.GetAppliedAt().AsTime()
	}
	return &status{s, running}
}

func cut(text string) string {
	if len(text) <= maxText {
		return text
	}
	return strings.ToValidUTF8(text[:maxText], "") + " …"
}

// sameStatus compares the node's part of two statuses, without the hub's.
func sameStatus(reported, stored *swarmv1.TaskStatus) bool {
	return stored != nil && reported.GetState() == stored.GetState() && cut(reported.GetMessage()) == stored.GetMessage() && cut(reported.GetErr()) == stored.GetErr() &&
		proto.Equal(reported.GetTimestamp(), stored.GetTimestamp()) && reported.GetContainer().GetExitCode() == stored.GetContainer().GetExitCode() &&
		reported.GetContainer().GetPid() == stored.GetContainer().GetPid()
}

// write writes reported statuses, as many in one transaction as it may have, until ctx ends. During
// a transaction, statuses gather for the next.
func (b *Inventory) write(ctx context.Context) error {
	for {
		select {
		case <-b.wake:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		b.mu.Lock()
		taken := b.reported
		b.reported = map[string]*status{}
		b.mu.Unlock()
		size := store.MaxWrites
		if !b.store.Alone() {
			size /= 2 // there is a condition more for each, as its node may have moved to another hub
		}
		for ids := range slices.Chunk(slices.Collect(maps.Keys(taken)), size) {
			err := b.writeStatuses(ctx, ids, taken)
			switch {
			case err == nil:
			case ctx.Err() != nil:
				return context.Cause(ctx)
			case errdefs.IsInvalidArgument(err):
				b.log.ErrorContext(ctx, "the statuses of tasks cannot be written; they are dropped", "error", err)
			default: // no node reports them again while its session lasts
				b.log.WarnContext(ctx, "could not write the statuses of tasks; will try again", "error", err)
				b.again(ids, taken)
			}
		}
	}
}

// again queues unwritten statuses again, except those with a newer one.
func (b *Inventory) again(ids []string, statuses map[string]*status) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range ids {
		if b.reported[id] == nil {
			b.reported[id] = statuses[id]
		}
	}
	time.AfterFunc(retry, b.poke)
}

// poke wakes write.
func (b *Inventory) poke() {
	select {
	case b.wake <- struct{}{}:
	default:
	}
}

// tries is how often statuses are written that come to nothing as their nodes move to other hubs.
const tries = 50

// writeStatuses writes some statuses, without those of tasks that are deleted meanwhile, or of nodes that have gone to
// another hub: they tell it again.
func (b *Inventory) writeStatuses(ctx context.Context, ids []string, statuses map[string]*status) (err error) {
	for range tries {
		next := b.Next()
		writes := b.statusWrites(ids, statuses)
		if len(writes) == 0 {
			return nil
		}
		if _, err = b.Commit(ctx, writes...); err == nil {
			for _, w := range writes {
				if !w.Only {
					b.stored.Add(1)
				}
			}
		}
		if !errdefs.IsAborted(err) {
			return err
		}
		select { // the inventory does not have the change yet
		case <-next:
		case <-time.After(retry):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return err
}

// retry is when statuses are written again at the latest.
const retry = 100 * time.Millisecond

// statusWrites are the writes of statuses. Each has the condition that its task exists, or a status would stay without
// one; and, where other hubs may have the nodes, that this hub still has its node.
func (b *Inventory) statusWrites(ids []string, statuses map[string]*status) (writes []store.Write) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	nodes := map[string]bool{}
	for _, id := range ids {
		t, ok := b.tasks[id]
		if !ok || statuses[id].GetState() < t.State() { // it was written before, by another hub maybe
			continue
		}
		if node := t.M.GetNodeId(); !b.store.Alone() {
			n := b.nodes[node]
			if run, _ := holder(n.seen.M); run != b.run {
				continue
			}
			if !nodes[node] {
				writes = append(writes, store.Write{Key: Seen + node, If: n.seen.Rev, Only: true})
			}
			nodes[node] = true
		}
		writes = append(writes, store.Write{Key: Tasks + id, If: store.Present, Only: true}, statuses[id].put(id))
	}
	return writes
}

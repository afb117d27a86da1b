// Package inventory holds the wanted and the reported state of the fleet: the hub's records in memory,
// indexed by node, updated by the store's watch. A waiter for a node's next change is woken by
// changes of that node alone.
//
// It decides nothing. Start at Inventory.Run, Inventory.Commit and Inventory.Assigned.
package inventory

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/store"
)

// The kinds of records, which begin their keys. Secrets and configs are sealed.
const (
	Nodes    = "node/"     // swarmv1.Node: the decisions of operators and the CA about a node
	Seen     = "seen/"     // swarmv1.Node: the description and status of its last session
	Revoked  = "revoked/"  // swarmv1.BlacklistedCertificate
	Services = "service/"  // swarmv1.Service
	Tasks    = "task/"     // swarmv1.Task without its status
	Statuses = "status/"   // status, by the id of the task
	Secrets  = "secret/"   // swarmv1.Secret
	Configs  = "config/"   // swarmv1.Config
	declared = "declared/" // empty: its revision is that of the last change of a declaration
)

// Record is a record in memory. Nobody changes M.
type Record[T proto.Message] struct {
	M   T
	Rev int64
}

// Task is a task with its reported status. They are immutable.
type Task struct {
	Record[*swarmv1.Task]
	Status Record[*swarmv1.TaskStatus]
	// RunningAt is the time of the first report that the task runs; zero is never.
	RunningAt time.Time
	// Pending is set for a task that no node takes. Such a task is not stored.
	Pending bool
}

// State is how far the task is.
func (t Task) State() swarmv1.TaskState {
	if t.Pending {
		return swarmv1.TaskState_PENDING
	}
	return max(t.Status.M.GetState(), swarmv1.TaskState_ASSIGNED)
}

// Ended reports whether the task does not run and will not run again.
func (t Task) Ended() bool { return t.State() > swarmv1.TaskState_RUNNING }

// Desired returns the state that a task is to reach, for its readers. A Swarm's managers shut down a task that has
// ended; the hub keeps the record as it is, and answers as they do.
func (t Task) Desired() swarmv1.TaskState {
	if t.Ended() {
		return max(t.M.GetDesiredState(), swarmv1.TaskState_SHUTDOWN)
	}
	return t.M.GetDesiredState()
}

// node has the records of one node.
type node struct {
	record, seen Record[*swarmv1.Node]
	tasks        map[string]bool
	assigned     chan struct{} // closed when its assignments change; nil when nobody waits
	changed      chan struct{} // closed when the node itself does; nil when nobody waits
}

// Inventory is the hub's records in memory.
type Inventory struct {
	store *store.Store
	log   *slog.Logger
	self  string // the hub's own id
	// run is the id of this run of the hub, and moved is called with each new holder of a node, with mu
	// held.
	run   string
	moved func(node, session string)

	mu       sync.RWMutex // guards nodes, tasks, services, secrets, configs, revoked, turn, rev, next, matters, round, waiting, reported
	nodes    map[string]*node
	tasks    map[string]Task
	services map[string]Record[*swarmv1.Service]
	secrets  map[string]Record[*swarmv1.Secret]
	configs  map[string]Record[*swarmv1.Config]
	revoked  map[string]time.Time // until when
	turn     int64                // the revision of the last change by Turn
	rev      int64                // the inventory has all changes up to it
	next     chan struct{}        // closed at the next change
	matters  bool                 // a change since the last wake may lead to another round of scheduling
	round    chan struct{}        // closed at the next such change
	waiting  waiting              // for revisions
	reported map[string]*status

	// barred is a copy of revoked, for calls to be answered without the lock.
	barred atomic.Pointer[map[string]time.Time]
	wake   chan struct{} // reported is not empty

	clones atomic.Pointer[map[string]cloned] // replaced, never changed: calls ask without a lock
	stored atomic.Uint64                     // statuses
}

// New is an inventory without records, of a hub with an id; Load reads them.
func New(s *store.Store, self string, log *slog.Logger) *Inventory {
	b := &Inventory{store: s, log: log, self: self, next: make(chan struct{}), round: make(chan struct{}), wake: make(chan struct{}, 1), reported: map[string]*status{}}
	b.clear()
	return b
}

// clear forgets the records. Preconditions: mu is held, or nobody else has the inventory yet.
func (b *Inventory) clear() {
	if b.nodes == nil {
		b.nodes = map[string]*node{}
	}
	for _, n := range b.nodes { // the waiters for a node stay with it
		n.record, n.seen, n.tasks = Record[*swarmv1.Node]{}, Record[*swarmv1.Node]{}, map[string]bool{}
	}
	b.tasks, b.services = map[string]Task{}, map[string]Record[*swarmv1.Service]{}
	b.secrets, b.configs = map[string]Record[*swarmv1.Secret]{}, map[string]Record[*swarmv1.Config]{}
	b.revoked, b.turn = map[string]time.Time{}, store.Absent
	b.clones.Store(&map[string]cloned{})
}

// order sorts statuses after their tasks.
func order(key string) int {
	if strings.HasPrefix(key, Statuses) {
		return 1
	}
	return 0
}

// Load reads all records.
func (b *Inventory) Load(ctx context.Context) error {
	records, rev, err := b.store.List(ctx, "")
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.clear()
	b.matters = true
	slices.SortStableFunc(records, func(a, c store.Record) int { return order(a.Key) - order(c.Key) })
	for _, r := range records {
		b.applyLocked(store.Change{Record: r})
	}
	b.rev = rev
	b.barLocked()
	for _, n := range b.nodes {
		n.wake(true, true)
	}
	b.wakeLocked()
	return nil
}

// Run follows the store and writes reported statuses, until ctx ends or the store does. Load comes
// before it.
func (b *Inventory) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var writer sync.WaitGroup
	defer writer.Wait()
	writer.Go(func() { cancel(b.write(ctx)) })
	for {
		b.mu.RLock()
		rev := b.rev
		b.mu.RUnlock()
		err := b.store.Watch(ctx, "", rev, func(rev int64, changes []store.Change) error {
			b.mu.Lock()
			defer b.mu.Unlock()
			for _, c := range changes {
				b.applyLocked(c)
			}
			b.rev = rev
			b.wakeLocked()
			return nil
		})
		if errdefs.IsOutOfRange(err) {
			err = b.Load(ctx)
		}
		if err != nil {
			err = b.store.Later(ctx, err)
		}
		if err != nil {
			cancel(err)
			return err
		}
	}
}

// wakeLocked wakes the waiters for any change, and then those for a reached revision: they may read the channels of the
// others.
func (b *Inventory) wakeLocked() {
	close(b.next)
	b.next = make(chan struct{})
	if b.matters {
		close(b.round)
		b.round, b.matters = make(chan struct{}), false
	}
	b.reachedLocked()
}

// wake wakes the waiters for this node's assignments or for the node itself.
func (n *node) wake(assigned, changed bool) {
	if assigned && n.assigned != nil {
		close(n.assigned)
		n.assigned = nil
	}
	if changed && n.changed != nil {
		close(n.changed)
		n.changed = nil
	}
}

// nodeLocked is the entry of a node, which may have no record.
func (b *Inventory) nodeLocked(id string) *node {
	n := b.nodes[id]
	if n == nil {
		n = &node{tasks: map[string]bool{}}
		b.nodes[id] = n
	}
	return n
}

// forgetLocked drops the empty entry of a node. Its waiters were woken.
func (b *Inventory) forgetLocked(id string, n *node) {
	if n.record.M == nil && n.seen.M == nil && len(n.tasks) == 0 {
		n.wake(true, true)
		delete(b.nodes, id)
	}
}

// applyLocked takes over one change. Records of other kinds are not the inventory's.
func (b *Inventory) applyLocked(c store.Change) {
	kind, id, _ := strings.Cut(c.Key, "/")
	switch kind + "/" {
	case Nodes, Seen, Tasks, Services, Secrets, Configs:
		b.matters = true
	}
	switch kind + "/" {
	case Nodes:
		n := b.nodeLocked(id)
		n.record = parse[*swarmv1.Node](b, c, new(swarmv1.Node))
		n.wake(c.Deleted, true)
		b.forgetLocked(id, n)
	case Seen:
		n := b.nodeLocked(id)
		n.seen = parse[*swarmv1.Node](b, c, new(swarmv1.Node))
		if hub, session := holder(n.seen.M); b.moved != nil && !c.Deleted { // a node that is removed may learn that it is
			if hub != b.run {
				session = ""
			}
			b.moved(id, session)
		}
		n.wake(c.Deleted, true)
		b.forgetLocked(id, n)
	case Revoked:
		delete(b.revoked, id)
		if r := parse(b, c, new(swarmv1.BlacklistedCertificate)); r.M != nil {
			b.revoked[id] = r.M.GetExpiry().AsTime()
		}
		b.barLocked()
		if _, ok := b.revoked[id]; ok {
			b.nodeLocked(id).wake(true, true)
		}
	case Clones:
		b.cloneLocked(id, c)
	case Tasks:
		b.taskLocked(id, parse(b, c, new(swarmv1.Task)))
	case Statuses:
		t, ok := b.tasks[id]
		if !ok {
			return // of a task that was deleted
		}
		before, stage := t.Ended(), stageOf(t)
		t.Status, t.RunningAt = statusOf(parse(b, c, new(swarmv1.TaskStatus)))
		b.tasks[id] = t
		b.matters = b.matters || t.Ended() || stage != stageOf(t)
		if n := b.nodes[t.M.GetNodeId()]; n != nil && before != t.Ended() {
			n.wake(true, false)
		}
	case Services:
		keep(b.services, id, parse(b, c, new(swarmv1.Service)))
	case Secrets:
		keep(b.secrets, id, parse(b, c, new(swarmv1.Secret)))
	case Configs:
		keep(b.configs, id, parse(b, c, new(swarmv1.Config)))
	case declared:
		b.turn = c.Rev
	}
}

// stage is the progress of a task as scheduling sees it. The states between do not matter to it.
type stage int

const (
	begun stage = iota
	prefetched
	runs
	ended
)

func stageOf(t Task) stage {
	switch state := t.State(); {
	case state > swarmv1.TaskState_RUNNING:
		return ended
	case state == swarmv1.TaskState_RUNNING:
		return runs
	case state >= swarmv1.TaskState_READY && t.M.GetDesiredState() < swarmv1.TaskState_RUNNING:
		return prefetched
	}
	return begun
}

// taskLocked takes over a task, or its end.
func (b *Inventory) taskLocked(id string, r Record[*swarmv1.Task]) {
	before := b.tasks[id]
	if n := b.nodes[before.M.GetNodeId()]; n != nil {
		delete(n.tasks, id)
		n.wake(true, false)
		b.forgetLocked(before.M.GetNodeId(), n)
	}
	if r.M == nil {
		delete(b.tasks, id)
		return
	}
	b.tasks[id] = Task{Record: r, Status: before.Status, RunningAt: before.RunningAt}
	n := b.nodeLocked(r.M.GetNodeId())
	n.tasks[id] = true
	n.wake(true, false)
}

func keep[T interface {
	comparable
	proto.Message
}](all map[string]Record[T], id string, r Record[T]) {
	var none T
	if r.M == none {
		delete(all, id)
		return
	}
	all[id] = r
}

// parse decodes a record; that of a deleted one has no message. One that is damaged is left
// out, and told.
func parse[T proto.Message](b *Inventory, c store.Change, into T) Record[T] {
	if c.Deleted {
		return Record[T]{}
	}
	if err := proto.Unmarshal(c.Value, into); err != nil {
		b.log.Error("a record of the store is damaged; it is ignored", "key", c.Key, "error", err)
		return Record[T]{}
	}
	return Record[T]{into, c.Rev}
}

// Put is a write of a message. One that cannot be encoded, because a string of it is not UTF-8, is
// refused when it is committed.
func Put(kind, id string, m proto.Message, condition int64) store.Write {
	data, err := proto.Marshal(m)
	if err != nil {
		err = fmt.Errorf("%w: %w", errdefs.ErrInvalidArgument, err)
	}
	return store.Write{Key: kind + id, Value: data, Secret: kind == Secrets || kind == Configs || credentials(m), If: condition, Err: err}
}

// credentials reports whether a service or task has credentials for a registry.
func credentials(m proto.Message) bool {
	has := func(t *swarmv1.TaskSpec) bool { return t.GetContainer().GetPullOptions().GetRegistryAuth() != "" }
	switch m := m.(type) {
	case *swarmv1.Service:
		return has(m.GetSpec().GetTask()) || has(m.GetPreviousSpec().GetTask())
	case *swarmv1.Task:
		return has(m.GetSpec())
	}
	return false
}

// Turn returns a write that belongs to each change of a declaration. Of changes that were computed
// from the same records the first one is committed, and the others are Aborted. A caller that gets
// it before reading the records cannot miss a change of them.
func (b *Inventory) Turn() store.Write {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return store.Write{Key: declared, If: b.turn}
}

// Delete is the deletion of a record.
func Delete(kind, id string, condition int64) store.Write {
	return store.Write{Key: kind + id, Delete: true, If: condition}
}

// Commit does writes in one transaction, and returns their revision when the inventory has them. Aborted when a
// condition does not hold.
func (b *Inventory) Commit(ctx context.Context, writes ...store.Write) (rev int64, err error) {
	rev, err = b.store.Commit(ctx, events.With(ctx, writes)...)
	if err != nil {
		return 0, err
	}
	return rev, b.Reach(ctx, rev)
}

// Next is closed at the next change of anything.
func (b *Inventory) Next() <-chan struct{} {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.next
}

// NextRound is closed at the next change that may lead to another round of scheduling: all but the states of a task on
// its way to run, and records that no round reads.
func (b *Inventory) NextRound() <-chan struct{} {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.round
}

// Services are all services, by id.
func (b *Inventory) Services() map[string]Record[*swarmv1.Service] {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return maps.Clone(b.services)
}

// Tasks are all tasks, by id.
func (b *Inventory) Tasks() map[string]Task {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return maps.Clone(b.tasks)
}

// Task is one task.
func (b *Inventory) Task(id string) (Task, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	t, ok := b.tasks[id]
	return t, ok
}

// Secrets are all secrets, by id, and Configs all configs.
func (b *Inventory) Secrets() map[string]Record[*swarmv1.Secret] {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return maps.Clone(b.secrets)
}

// Configs are all configs, by id.
func (b *Inventory) Configs() map[string]Record[*swarmv1.Config] {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return maps.Clone(b.configs)
}

// barLocked publishes the list of revoked certificates for Revoked.
func (b *Inventory) barLocked() {
	barred := maps.Clone(b.revoked)
	b.barred.Store(&barred)
}

// Revoked reports whether a node's certificates are not accepted any more. It takes no lock, as
// each call begins with it.
func (b *Inventory) Revoked(id string, now time.Time) bool {
	barred := b.barred.Load()
	if barred == nil {
		return false
	}
	until, ok := (*barred)[id]
	return ok && now.Before(until)
}

// Node is a node with its last description and status. Its revisions are those of the two
// records, 0 for one that there is not; without the first there is no such node.
func (b *Inventory) Node(id string) (n *swarmv1.Node, record, seen int64) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.nodeOfLocked(id)
}

func (b *Inventory) nodeOfLocked(id string) (*swarmv1.Node, int64, int64) {
	n := b.nodes[id]
	if n == nil || n.record.M == nil {
		return nil, 0, 0
	}
	r, s := n.record.M, n.seen.M
	return &swarmv1.Node{
		Id: id, Meta: &swarmv1.Meta{Version: &swarmv1.Version{Index: uint64(max(n.record.Rev, n.seen.Rev))}, CreatedAt: r.GetMeta().GetCreatedAt(), UpdatedAt: s.GetMeta().GetUpdatedAt()},
		Spec: r.GetSpec(), Role: r.GetRole(), Certificate: r.GetCertificate(), Description: s.GetDescription(), Status: s.GetStatus(),
	}, n.record.Rev, n.seen.Rev
}

// Nodes are all nodes, in the order of their ids.
func (b *Inventory) Nodes() (list []*swarmv1.Node) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, id := range slices.Sorted(maps.Keys(b.nodes)) {
		if n, _, _ := b.nodeOfLocked(id); n != nil {
			list = append(list, n)
		}
	}
	return list
}

// NodeChanged is closed when a node itself changes next.
func (b *Inventory) NodeChanged(id string) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.nodeLocked(id)
	if n.changed == nil {
		n.changed = make(chan struct{})
	}
	return n.changed
}

package session

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// Reports are the unsent statuses, the newest of each task, and the unpublished volumes that the
// managers wait for. Without a session they wait for one.
type Reports struct {
	mu          sync.Mutex // guards pending, unpublished
	pending     map[string]*swarmv1.TaskStatus
	unpublished map[string]bool
	wake        chan struct{}
	notify      func(task string) // nil is nobody
}

// NewReports returns none.
func NewReports() *Reports {
	return &Reports{pending: map[string]*swarmv1.TaskStatus{}, unpublished: map[string]bool{}, wake: make(chan struct{}, 1)}
}

// Put queues a status. It drops one with an older state than the last. The caller must not change
// the status afterwards.
func (r *Reports) Put(task string, s *swarmv1.TaskStatus) {
	r.mu.Lock()
	if before := r.pending[task]; before == nil || before.GetState() <= s.GetState() {
		r.pending[task] = s
	}
	r.mu.Unlock()
	r.wakeUp()
}

func (r *Reports) wakeUp() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// Unpublished queues the report that the node has unpublished a cluster volume.
func (r *Reports) Unpublished(volume string) {
	r.mu.Lock()
	r.unpublished[volume] = true
	r.mu.Unlock()
	r.wakeUp()
}

// Published removes a volume from the queue of Unpublished.
func (r *Reports) Published(volume string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unpublished, volume)
}

// volumes are those that go with the next call.
func (r *Reports) volumes() (list []*swarmv1.UpdateVolumeStatusRequest_VolumeStatusUpdate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(r.unpublished)) {
		list = append(list, &swarmv1.UpdateVolumeStatusRequest_VolumeStatusUpdate{Id: id, Unpublished: true})
	}
	return list[:min(len(list), maxBatch)]
}

// sentVolumes removes sent reports.
func (r *Reports) sentVolumes(list []*swarmv1.UpdateVolumeStatusRequest_VolumeStatusUpdate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range list {
		delete(r.unpublished, u.GetId())
	}
}

// Notify sets a function that is called when the last status of a task was sent. Call it before
// Put.
func (r *Reports) Notify(fn func(task string)) { r.notify = fn }

// Waits reports whether a task has an unsent status.
func (r *Reports) Waits(task string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.pending[task] != nil
}

// Drop forgets a task.
func (r *Reports) Drop(task string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pending, task)
}

// The bounds of one call: managers take 4 MiB.
const (
	maxBatch      = 1024
	maxBatchBytes = 1 << 20
)

type update = swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate

// batch returns the statuses for the next call, lower states first.
func (r *Reports) batch() (list []*update) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ids := slices.SortedFunc(maps.Keys(r.pending), func(a, b string) int {
		return cmp.Or(cmp.Compare(r.pending[a].GetState(), r.pending[b].GetState()), cmp.Compare(a, b))
	})
	size := 0
	for _, id := range ids {
		u := &update{TaskId: id, Status: r.pending[id]}
		if size += proto.Size(u); len(list) == maxBatch || len(list) > 0 && size > maxBatchBytes {
			break
		}
		list = append(list, u)
	}
	return list
}

// sent removes sent statuses, unless there are newer ones.
func (r *Reports) sent(list []*update) {
	var done []string
	r.mu.Lock()
	for _, u := range list {
		if id := u.GetTaskId(); r.pending[id] == u.GetStatus() {
			delete(r.pending, id)
			done = append(done, id)
		}
	}
	r.mu.Unlock()
	if r.notify == nil {
		return
	}
	for _, id := range done {
		r.notify(id)
	}
}

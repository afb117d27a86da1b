package session

import (
	"cmp"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// Reports are the statuses that the managers have not been told yet, the newest of each
// task, and the volumes that they wait for. They wait for a session when there is none.
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

// Put has a status told. One that is older than another, by its state, is not. The
// status must not be changed any more.
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

// Unpublished has the managers told that the node has let go of a cluster volume.
func (r *Reports) Unpublished(volume string) {
	r.mu.Lock()
	r.unpublished[volume] = true
	r.mu.Unlock()
	r.wakeUp()
}

// Published takes back what Unpublished has said, when nobody has been told yet.
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

// toldVolumes forgets what has been told.
func (r *Reports) toldVolumes(list []*swarmv1.UpdateVolumeStatusRequest_VolumeStatusUpdate) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, u := range list {
		delete(r.unpublished, u.GetId())
	}
}

// Notify has fn called when the last status of a task was told. Call it before anything is
// put.
func (r *Reports) Notify(fn func(task string)) { r.notify = fn }

// Waits reports whether a task has a status that is still to be told.
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

// batch is what goes with the next call, lower states first.
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

// told forgets what has been told, unless there is news since.
func (r *Reports) told(list []*update) {
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

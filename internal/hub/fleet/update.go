package fleet

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/inventory"
)

// Prefetch is the label of a service for updates that prepare the image and the container of the
// next version before the former task ends.
const Prefetch = "longshore.prefetch"

// defaultMonitor is how long a task must run until it counts as updated.
const defaultMonitor = 5 * time.Second

// rollout replaces the tasks of one service by those of its version.
type rollout struct {
	*scheduler
	s       *swarmv1.Service
	status  *swarmv1.UpdateStatus
	config  *swarmv1.UpdateConfig
	monitor time.Duration
	began   time.Time // tasks that were made before are no part of it
	all     []*spot
}

// progress is how far a place is in an update.
type progress int

const (
	same     progress = iota // no part of it: its task is of this version and was before
	done                     // its task is of this version and counts
	changing                 // is being changed
	failed                   // its task of this version failed before it counted
	outdated                 // its task is of another version, and its turn comes
	waiting                  // as outdated, but with a silent node
	away                     // as outdated, but its node takes no task now: it follows when it does
)

// spot is a place of a service with its tasks.
type spot struct {
	place
	tasks []inventory.Task
	now   inventory.Task   // of this version, that is to run or runs; without M there is none
	old   []inventory.Task // of other versions, that run
	bad   inventory.Task   // of this version, that failed before it counted
	past  bool             // one of this version has ended otherwise
	progress
}

// halfway reports whether the task of this version waits for the end of another.
func (sp *spot) halfway() bool {
	return sp.now.M != nil && sp.now.M.GetDesiredState() < swarmv1.TaskState_RUNNING && len(sp.old) > 0
}

// config is how a service is updated, or rolled back.
func config(s *swarmv1.Service) *swarmv1.UpdateConfig {
	c := s.GetSpec().GetUpdate()
	if rollingBack(s.GetUpdateStatus()) {
		c = s.GetSpec().GetRollback()
	}
	if c == nil {
		return &swarmv1.UpdateConfig{Parallelism: 1}
	}
	return c
}

func rollingBack(s *swarmv1.UpdateStatus) bool {
	return s.GetState() >= swarmv1.UpdateStatus_ROLLBACK_STARTED
}

// roll starts missing tasks and those that may be restarted, and replaces tasks of another version
// of the service, a few at a time, while those of this version run.
func (p *scheduler) roll(s *swarmv1.Service, wanted []place, at map[place][]inventory.Task) {
	r := &rollout{scheduler: p, s: s, status: s.GetUpdateStatus(), config: config(s), monitor: defaultMonitor}
	if m := r.config.GetMonitor(); m != nil {
		r.monitor = m.AsDuration()
	}
	for _, pl := range wanted {
		r.all = append(r.all, r.spot(pl, at[pl]))
	}
	if r.count(outdated) > 0 && !underWay(s) {
		r.begin()
	}
	if underWay(s) || r.status != s.GetUpdateStatus() {
		r.began = r.status.GetStartedAt().AsTime()
		r.judge()
	}
	if r.running() && r.ends() {
		return // the next round has another spec
	}
	if r.status != s.GetUpdateStatus() {
		r.store(proto.CloneOf(s))
	}
	for _, sp := range r.all {
		r.tend(sp)
	}
	if r.running() {
		r.replace()
	}
}

// running reports whether the update is running.
func (r *rollout) running() bool {
	return r.status.GetState() == swarmv1.UpdateStatus_UPDATING || r.status.GetState() == swarmv1.UpdateStatus_ROLLBACK_STARTED
}

// set sets the state of the update: one for an update, or the other one for a rollback.
func (r *rollout) set(update, rollback swarmv1.UpdateStatus_UpdateState, message string) {
	state := update
	if rollingBack(r.status) {
		state = rollback
	}
	r.status = &swarmv1.UpdateStatus{State: state, StartedAt: r.status.GetStartedAt(), Message: message}
	if state == swarmv1.UpdateStatus_COMPLETED || state == swarmv1.UpdateStatus_ROLLBACK_COMPLETED {
		r.status.CompletedAt = timestamppb.New(r.Now)
	}
}

// word is "update" or "rollback", for messages as a Swarm's managers write them.
func (r *rollout) word() string {
	if rollingBack(r.status) {
		return "rollback"
	}
	return "update"
}

func (r *rollout) begin() {
	r.set(swarmv1.UpdateStatus_UPDATING, swarmv1.UpdateStatus_ROLLBACK_STARTED, r.word()+" in progress")
	r.status.StartedAt = timestamppb.New(r.Now)
}

// store stores the service with the status of the update.
func (r *rollout) store(next *swarmv1.Service) {
	next.Meta = meta(r.s, r.Now)
	next.UpdateStatus = r.status
	r.writes = append(r.writes, inventory.Put(inventory.Services, next.GetId(), next, r.Services[next.GetId()].Rev))
}

func (r *rollout) count(p progress) (n int) {
	for _, sp := range r.all {
		if sp.progress == p {
			n++
		}
	}
	return n
}

// spot sorts the tasks of a place, and says how far it is apart from an update.
func (r *rollout) spot(pl place, tasks []inventory.Task) *spot {
	sp := &spot{place: pl, tasks: tasks}
	for _, t := range tasks {
		current := t.M.GetSpecVersion().GetIndex() == r.s.GetSpecVersion().GetIndex()
		switch {
		case r.live(t) && available(r.nodes[t.M.GetNodeId()]):
			if !current {
				sp.old = append(sp.old, t)
			} else if sp.now.M == nil || t.M.GetMeta().GetCreatedAt().AsTime().After(sp.now.M.GetMeta().GetCreatedAt().AsTime()) {
				sp.now = t
			}
		case current && t.Ended() && t.M.GetDesiredState() <= swarmv1.TaskState_RUNNING:
			sp.past = true
		}
	}
	if sp.halfway() {
		sp.progress = outdated
	} else if sp.now.M == nil && len(sp.old) > 0 {
		n := r.nodes[sp.old[0].M.GetNodeId()]
		switch {
		case n.GetStatus().GetState() == swarmv1.NodeStatus_UNKNOWN:
			sp.progress = waiting
		case n.GetStatus().GetState() != swarmv1.NodeStatus_READY, sp.slot == 0 && n.GetSpec().GetAvailability() != swarmv1.NodeSpec_ACTIVE:
			sp.progress = away
		default:
			sp.progress = outdated
		}
	}
	return sp
}

// judge says how far each place is in the update that is under way.
func (r *rollout) judge() {
	for _, sp := range r.all {
		for _, t := range sp.tasks {
			if t.M.GetSpecVersion().GetIndex() == r.s.GetSpecVersion().GetIndex() && r.early(t) && (sp.bad.M == nil || endedAt(t).After(endedAt(sp.bad))) {
				sp.bad = t
			}
		}
		switch n := r.nodes[sp.now.M.GetNodeId()]; {
		case sp.now.M == nil && sp.progress == same:
			sp.progress = changing // it has none: one is about to end, or to be made
			if sp.past {
				sp.progress = done
			} else if r.waits(r.s, sp.tasks) {
				sp.progress = away
			} else if n := r.nodes[sp.node]; n != nil && (n.GetStatus().GetState() == swarmv1.NodeStatus_DOWN || n.GetSpec().GetAvailability() != swarmv1.NodeSpec_ACTIVE) {
				sp.progress = away
			}
		case sp.now.M == nil: // as it is
		case sp.now.M.GetMeta().GetCreatedAt().AsTime().Before(r.began) && !sp.halfway():
			sp.progress = same
		case r.counts(sp.now):
			sp.progress = done
			continue // bad has the earlier failures
		case n.GetStatus().GetState() == swarmv1.NodeStatus_DOWN && n.GetMeta().GetUpdatedAt().AsTime().Before(sp.now.M.GetMeta().GetCreatedAt().AsTime()):
			sp.progress = away // it was when the task was made
		case n.GetStatus().GetState() == swarmv1.NodeStatus_DOWN:
			sp.bad = sp.now
		default:
			sp.progress = changing
		}
		if sp.bad.M != nil {
			sp.progress = failed
		}
	}
}

// counts reports whether a task of this version has run for long enough. If not, it sets the
// next round for that time.
func (r *rollout) counts(t inventory.Task) bool {
	if t.State() != swarmv1.TaskState_RUNNING {
		return false
	}
	at := runningSince(t).Add(max(r.monitor, r.config.GetDelay().AsDuration()))
	if r.Now.Before(at) {
		r.later(at)
		return false
	}
	return true
}

func runningSince(t inventory.Task) time.Time {
	if !t.RunningAt.IsZero() {
		return t.RunningAt
	}
	return endedAt(t) // when the status was taken
}

// early reports whether a task of this update has ended before it counted, though nobody told it
// to. One that may end, by the policy of restarts, does well when it does.
func (r *rollout) early(t inventory.Task) bool {
	if !t.Ended() || t.M.GetDesiredState() > swarmv1.TaskState_RUNNING || t.M.GetMeta().GetCreatedAt().AsTime().Before(r.began) {
		return false
	}
	policy := r.s.GetSpec().GetTask().GetRestart()
	if t.State() == swarmv1.TaskState_COMPLETE && policy != nil && policy.GetCondition() != swarmv1.RestartPolicy_ANY {
		return false
	}
	return t.RunningAt.IsZero() || endedAt(t).Sub(runningSince(t)) < r.monitor
}

// ends pauses, rolls back or completes the update when it is time, and reports whether the service
// has another spec now.
func (r *rollout) ends() bool {
	failures, total := 0, 0
	var last inventory.Task
	for _, sp := range r.all {
		if sp.progress != same && sp.progress != away {
			total++
		}
		if sp.bad.M != nil {
			failures++
			if last.M == nil || endedAt(sp.bad).After(endedAt(last)) {
				last = sp.bad
			}
		}
	}
	if failures > 0 && float32(failures)/float32(max(total, failures)) > r.config.GetMaxFailureRatio() {
		why := "due to failure or early termination of task " + last.M.GetId()
		if !last.Ended() {
			why = fmt.Sprintf("as node %s went away with the new task %s", last.M.GetNodeId(), last.M.GetId())
		} else if text := cmp.Or(last.Status.M.GetErr(), last.Status.M.GetMessage()); text != "" {
			why += ": " + text
		}
		switch r.config.GetFailureAction() {
		case swarmv1.UpdateConfig_ROLLBACK:
			if !rollingBack(r.status) && r.s.GetPreviousSpec() != nil {
				r.rollBack("update rolled back " + why)
				return true
			}
			fallthrough // a rollback is not rolled back
		case swarmv1.UpdateConfig_PAUSE:
			r.set(swarmv1.UpdateStatus_PAUSED, swarmv1.UpdateStatus_ROLLBACK_PAUSED, r.word()+" paused "+why)
			return false
		case swarmv1.UpdateConfig_CONTINUE:
		}
	}
	stuck := slices.ContainsFunc(r.all, func(sp *spot) bool { return sp.progress == failed && len(sp.old) > 0 })
	if r.count(changing)+r.count(outdated)+r.count(waiting) > 0 || stuck {
		return false
	}
	message := r.word() + " completed"
	if n := r.count(away); n > 0 {
		message += fmt.Sprintf("; %d tasks follow when their nodes are back", n)
	}
	r.set(swarmv1.UpdateStatus_COMPLETED, swarmv1.UpdateStatus_ROLLBACK_COMPLETED, message)
	return false
}

// rollBack gives the service the spec that it had before. The one that failed is not remembered:
// no rollback leads to it.
func (r *rollout) rollBack(why string) {
	next := proto.CloneOf(r.s)
	next.Spec, next.SpecVersion, next.PreviousSpec, next.PreviousSpecVersion = next.GetPreviousSpec(), next.GetPreviousSpecVersion(), nil, nil
	r.status = &swarmv1.UpdateStatus{State: swarmv1.UpdateStatus_ROLLBACK_STARTED, StartedAt: timestamppb.New(r.Now), Message: why}
	r.store(next)
}

// tend continues the replacement at a place, or starts a task if none runs.
func (r *rollout) tend(sp *spot) {
	switch {
	case sp.now.M == nil && len(sp.old) == 0:
		if !r.stopping(sp.tasks) {
			r.start(r.s, sp.place, sp.tasks)
		} else if why := waitsFor(r.scheduler, r.s, sp.tasks); why != "" {
			r.hold(r.s, sp.place, why)
		}
	case sp.now.M == nil:
	case sp.now.M.GetDesiredState() < swarmv1.TaskState_RUNNING: // prefetched
		others := slices.DeleteFunc(slices.Clone(sp.tasks), func(t inventory.Task) bool { return t.M.GetId() == sp.now.M.GetId() })
		if len(sp.old) > 0 && sp.now.State() >= swarmv1.TaskState_READY && r.running() {
			r.shutdown(sp.old)
		} else if len(sp.old) == 0 && !r.stopping(others) {
			r.want(sp.now, swarmv1.TaskState_RUNNING)
		}
	case sp.now.State() == swarmv1.TaskState_RUNNING:
		r.shutdown(sp.old)
	}
}

// shutdown ends tasks.
func (r *rollout) shutdown(tasks []inventory.Task) {
	for _, t := range tasks {
		r.want(t, swarmv1.TaskState_SHUTDOWN)
	}
}

// replace replaces tasks of other versions, as many at a time as the service says.
func (r *rollout) replace() {
	busy := uint64(r.count(changing))
	for _, sp := range r.all {
		if sp.progress == failed && sp.now.M == nil && len(sp.old) > 0 {
			r.change(sp) // again, as its policy of restarts says
		}
		if sp.progress != outdated {
			continue
		}
		if n := r.config.GetParallelism(); n > 0 && busy >= n {
			return
		}
		r.change(sp)
		busy++
	}
}

// inTheWay reports whether the new task of a replica belongs where the old ones are, and has room
// there only once they have ended.
func (r *rollout) inTheWay(sp *spot) bool {
	h := r.homeOf(r.s, sp.tasks)
	n := r.nodes[h.node]
	return h.must && n.GetStatus().GetState() == swarmv1.NodeStatus_READY && !r.room[h.node].has(r.s) && r.room[h.node].without(on(sp.old, h.node)).has(r.s)
}

// on returns those of the tasks that are on a node.
func on(tasks []inventory.Task, node string) []inventory.Task {
	return slices.DeleteFunc(slices.Clone(tasks), func(t inventory.Task) bool { return t.M.GetNodeId() != node })
}

// change begins the replacement at a place.
func (r *rollout) change(sp *spot) {
	if r.config.GetOrder() == swarmv1.UpdateConfig_START_FIRST && !r.inTheWay(sp) {
		if r.start(r.s, sp.place, sp.tasks) {
			r.shutdown(slices.DeleteFunc(slices.Clone(sp.old), func(t inventory.Task) bool { return t.State() == swarmv1.TaskState_RUNNING }))
		}
		return
	}
	at := sp.old[0].M.GetNodeId()
	n, left := r.nodes[at], r.room[at].without(on(sp.old, at))
	if r.s.GetSpec().GetAnnotations().GetLabels()[Prefetch] != "true" || n.GetSpec().GetAvailability() != swarmv1.NodeSpec_ACTIVE || !matches(r.s.GetSpec().GetTask().GetPlacement(), n) || !left.has(r.s) {
		r.shutdown(sp.old)
	} else if r.again(r.s, sp.tasks) {
		r.create(r.s, at, sp.slot, swarmv1.TaskState_READY)
	}
}

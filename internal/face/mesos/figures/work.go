package figures

import (
	"fmt"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/project"
)

// Work are the figures of what runs now, and of what it was promised of what the
// machine has.
func Work(st *mesosagent.Response_GetState, has []*mesosv1.Resource) []Figure {
	tasks := map[mesosv1.TaskState]float64{}
	used := map[string]float64{}
	for _, t := range st.GetGetTasks().GetLaunchedTasks() {
		tasks[t.GetState()]++
		for _, r := range t.GetResources() {
			used[r.GetName()] += r.GetScalar().GetValue()
		}
	}
	all := []Figure{
		{"slave/executors_running", float64(len(st.GetGetExecutors().GetExecutors()))},
		{"slave/frameworks_active", float64(len(st.GetGetFrameworks().GetFrameworks()))},
		{"slave/tasks_killing", tasks[mesosv1.TaskState_TASK_KILLING]},
		{"slave/tasks_running", tasks[mesosv1.TaskState_TASK_RUNNING]},
		{"slave/tasks_staging", tasks[mesosv1.TaskState_TASK_STAGING]},
		{"slave/tasks_starting", tasks[mesosv1.TaskState_TASK_STARTING]},
	}
	if !slices.ContainsFunc(has, func(r *mesosv1.Resource) bool { return r.GetName() == "gpus" }) {
		has = append(slices.Clone(has), project.Scalar("gpus", 0))
	}
	for _, r := range has {
		name, total := "slave/"+r.GetName()+"_", r.GetScalar().GetValue()
		all = append(all, Figure{name + "total", total}, Figure{name + "used", used[r.GetName()]}, Figure{name + "percent", used[r.GetName()] / max(total, 1)})
	}
	for _, n := range nothing() {
		all = append(all, Figure{n, 0})
	}
	return all
}

// nothing are the figures of what such an agent does not have: a master, revocable
// resources, and removals of sandboxes that are known beforehand.
func nothing() []string {
	all := []string{
		"containerizer/mesos/disk/project_ids_free", "containerizer/mesos/disk/project_ids_total",
		"gc/path_removals_pending",
		"slave/executors_preempted", "slave/executors_registering", "slave/executors_terminating",
		"slave/invalid_framework_messages", "slave/invalid_status_updates", "slave/recovery_errors",
		"slave/tasks_gone", "slave/valid_framework_messages", "slave/valid_status_updates",
	}
	for _, r := range []string{"cpus", "disk", "gpus", "mem"} {
		for _, what := range []string{"percent", "total", "used"} {
			all = append(all, "slave/"+r+"_revocable_"+what)
		}
	}
	return all
}

// Disk is the size of the file system at path, in bytes.
func Disk(path string) (uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return 0, fmt.Errorf("read the size of the file system at %s: %w", path, err)
	}
	return st.Blocks * uint64(st.Bsize), nil
}

// Tally counts how tasks and executors have ended since the agent was started. The
// zero Tally is ready.
type Tally struct {
	mu        sync.Mutex // guards tasks, executors, launches, cleared, uncleared, fetched, unfetched
	tasks     map[mesosv1.TaskState]float64
	executors float64
	launches  float64 // that failed
	cleared   float64 // sandboxes of ended containers
	uncleared float64 // the same, where it failed
	fetched   float64 // launches whose URIs were fetched
	unfetched float64 // the same, where it failed
}

// Add counts what an event tells of.
func (t *Tally) Add(e core.Event) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if e.Kind == core.EventSandboxRemoved {
		t.executors++
	}
	if e.Kind == core.EventContainerExited {
		if t.tasks == nil {
			t.tasks = map[mesosv1.TaskState]float64{}
		}
		t.tasks[project.Ended(e.Autopsy)]++
	}
}

// LaunchFailed counts a launch that was refused, or was taken back.
func (t *Tally) LaunchFailed() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.launches++
}

// Cleared counts what an ended container had left and was taken away, or could not be.
func (t *Tally) Cleared(ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ok {
		t.cleared++
	} else {
		t.uncleared++
	}
}

// Fetched counts a launch with URIs, which were fetched, or could not be.
func (t *Tally) Fetched(ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if ok {
		t.fetched++
	} else {
		t.unfetched++
	}
}

// Figures are what was counted.
func (t *Tally) Figures() []Figure {
	t.mu.Lock()
	defer t.mu.Unlock()
	return []Figure{
		{"containerizer/fetcher/task_fetches_failed", t.unfetched},
		{"containerizer/fetcher/task_fetches_succeeded", t.fetched},
		{"gc/path_removals_failed", t.uncleared},
		{"gc/path_removals_succeeded", t.cleared},
		{"slave/container_launch_errors", t.launches},
		{"slave/executors_terminated", t.executors},
		{"slave/tasks_failed", t.tasks[mesosv1.TaskState_TASK_FAILED]},
		{"slave/tasks_finished", t.tasks[mesosv1.TaskState_TASK_FINISHED]},
		{"slave/tasks_killed", t.tasks[mesosv1.TaskState_TASK_KILLED]},
		{"slave/tasks_lost", t.tasks[mesosv1.TaskState_TASK_LOST]},
	}
}

package view

import (
	"slices"
	"sync"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
)

// WorkMetrics are the metrics of running tasks, and of their share of the machine's resources
// (has).
func WorkMetrics(st *mesosagent.Response_GetState, has []*mesosv1.Resource) []Metric {
	tasks := map[mesosv1.TaskState]float64{}
	used := map[string]float64{}
	for _, t := range st.GetGetTasks().GetLaunchedTasks() {
		tasks[t.GetState()]++
		for _, r := range t.GetResources() {
			used[r.GetName()] += r.GetScalar().GetValue()
		}
	}
	all := []Metric{
		{"slave/executors_running", float64(len(st.GetGetExecutors().GetExecutors()))},
		{"slave/frameworks_active", float64(len(st.GetGetFrameworks().GetFrameworks()))},
		{"slave/tasks_killing", tasks[mesosv1.TaskState_TASK_KILLING]},
		{"slave/tasks_running", tasks[mesosv1.TaskState_TASK_RUNNING]},
		{"slave/tasks_staging", tasks[mesosv1.TaskState_TASK_STAGING]},
		{"slave/tasks_starting", tasks[mesosv1.TaskState_TASK_STARTING]},
	}
	if !slices.ContainsFunc(has, func(r *mesosv1.Resource) bool { return r.GetName() == "gpus" }) {
		has = append(slices.Clone(has), Scalar("gpus", 0))
	}
	for _, r := range has {
		name, total := "slave/"+r.GetName()+"_", r.GetScalar().GetValue()
		all = append(all, Metric{name + "total", total}, Metric{name + "used", used[r.GetName()]}, Metric{name + "percent", used[r.GetName()] / max(total, 1)})
	}
	for _, n := range zeroMetrics() {
		all = append(all, Metric{n, 0})
	}
	return all
}

// zeroMetrics are the metrics of features that this agent lacks, always 0: a master, revocable
// resources, and scheduled removals of sandboxes.
func zeroMetrics() []string {
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

// Counters count events since the agent was started. The zero value is ready to use.
type Counters struct {
	mu             sync.Mutex // guards tasks, sandboxes, failedLaunches, removals, failedRemovals, fetches, failedFetches
	tasks          map[mesosv1.TaskState]float64
	sandboxes      float64 // removed
	failedLaunches float64
	removals       float64 // of sandboxes of ended containers
	failedRemovals float64
	fetches        float64 // launches with fetched URIs
	failedFetches  float64 // launches with failed fetches
}

// Count counts an event of the engine.
func (c *Counters) Count(e core.Event) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.Kind == core.EventSandboxRemoved {
		c.sandboxes++
	}
	if e.Kind == core.EventContainerExited {
		if c.tasks == nil {
			c.tasks = map[mesosv1.TaskState]float64{}
		}
		c.tasks[EndState(e.Autopsy)]++
	}
}

// LaunchFailed counts a launch that was refused or undone.
func (c *Counters) LaunchFailed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.failedLaunches++
}

// Removed counts the removal of an ended container's sandbox; ok is whether it
// succeeded.
func (c *Counters) Removed(ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ok {
		c.removals++
	} else {
		c.failedRemovals++
	}
}

// Fetched counts a launch with URIs; ok is whether they were fetched.
func (c *Counters) Fetched(ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ok {
		c.fetches++
	} else {
		c.failedFetches++
	}
}

// Metrics are the counters under Mesos' names.
func (c *Counters) Metrics() []Metric {
	c.mu.Lock()
	defer c.mu.Unlock()
	return []Metric{
		{"containerizer/fetcher/task_fetches_failed", c.failedFetches},
		{"containerizer/fetcher/task_fetches_succeeded", c.fetches},
		{"gc/path_removals_failed", c.failedRemovals},
		{"gc/path_removals_succeeded", c.removals},
		{"slave/container_launch_errors", c.failedLaunches},
		{"slave/executors_terminated", c.sandboxes},
		{"slave/tasks_failed", c.tasks[mesosv1.TaskState_TASK_FAILED]},
		{"slave/tasks_finished", c.tasks[mesosv1.TaskState_TASK_FINISHED]},
		{"slave/tasks_killed", c.tasks[mesosv1.TaskState_TASK_KILLED]},
		{"slave/tasks_lost", c.tasks[mesosv1.TaskState_TASK_LOST]},
	}
}

// CacheMetrics are the metrics of the fetcher's cache, with used of size bytes in use.
func CacheMetrics(used, size int64) []Metric {
	return []Metric{
		{"containerizer/fetcher/cache_size_total_bytes", float64(size)},
		{"containerizer/fetcher/cache_size_used_bytes", float64(used)},
	}
}

// Metrics are metrics as a message.
func Metrics(list []Metric) *mesosagent.Response_GetMetrics {
	m := &mesosagent.Response_GetMetrics{}
	for _, f := range list {
		m.Metrics = append(m.Metrics, &mesosv1.Metric{Name: &f.Name, Value: &f.Value})
	}
	return m
}

package view

import (
	"encoding/json"
	"net/http"
	"path"
	"slices"
	"strconv"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/api"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
)

// jsonObject is a JSON object.
type jsonObject = map[string]any

// resourceObject has the amounts of resources by name. The four that tools look up are
// always present.
func resourceObject(list []*mesosv1.Resource) jsonObject {
	all := jsonObject{"cpus": 0.0, "gpus": 0.0, "mem": 0.0, "disk": 0.0}
	sum := map[string]float64{}
	for _, r := range list {
		sum[r.GetName()] += r.GetScalar().GetValue()
	}
	for name, v := range sum {
		all[name] = v
	}
	return all
}

func labelObjects(l *mesosv1.Labels) []jsonObject {
	var all []jsonObject
	for _, one := range l.GetLabels() {
		all = append(all, jsonObject{"key": one.GetKey(), "value": one.GetValue()})
	}
	return all
}

// taskObject is a task in the form of the documents, which differs from the API's.
func taskObject(t *mesosv1.Task) (jsonObject, error) {
	statuses := []jsonObject{}
	for _, s := range t.GetStatuses() {
		container, err := api.MarshalJSON(s.GetContainerStatus())
		if err != nil {
			return nil, err
		}
		statuses = append(statuses, jsonObject{"state": s.GetState().String(), "timestamp": s.GetTimestamp(), "container_status": json.RawMessage(container)})
	}
	o := jsonObject{
		"id": t.GetTaskId().GetValue(), "name": t.GetName(), "framework_id": t.GetFrameworkId().GetValue(), "executor_id": t.GetExecutorId().GetValue(),
		"slave_id": t.GetAgentId().GetValue(), "state": t.GetState().String(), "resources": resourceObject(t.GetResources()), "statuses": statuses,
		"container": jsonObject{"type": t.GetContainer().GetType().String()},
	}
	if l := labelObjects(t.GetLabels()); l != nil {
		o["labels"] = l
	}
	return o, nil
}

func taskObjects(list []*mesosv1.Task) ([]jsonObject, error) {
	all := make([]jsonObject, 0, len(list))
	for _, t := range list {
		o, err := taskObject(t)
		if err != nil {
			return nil, err
		}
		all = append(all, o)
	}
	return all, nil
}

// tasksByExecutor are tasks by framework and executor.
type tasksByExecutor map[[2]string][]jsonObject

// of returns an executor's tasks. It never returns nil, because an empty list must be
// shown.
func (b tasksByExecutor) of(framework, executor string) []jsonObject {
	if l := b[[2]string{framework, executor}]; l != nil {
		return l
	}
	return []jsonObject{}
}

func groupByExecutor(list []*mesosv1.Task) (tasksByExecutor, error) {
	all, err := taskObjects(list)
	if err != nil {
		return nil, err
	}
	b := tasksByExecutor{}
	for i, t := range list {
		key := [2]string{t.GetFrameworkId().GetValue(), t.GetExecutorId().GetValue()}
		b[key] = append(b[key], all[i])
	}
	return b, nil
}

func stateDocument(h Documents, r *http.Request) (any, error) {
	ctx := r.Context()
	st, err := h.get(ctx, mesosagent.Call_GET_STATE)
	if err != nil {
		return nil, err
	}
	info, err := h.get(ctx, mesosagent.Call_GET_AGENT)
	if err != nil {
		return nil, err
	}
	v, err := h.get(ctx, mesosagent.Call_GET_VERSION)
	if err != nil {
		return nil, err
	}
	all, err := h.flags(ctx)
	if err != nil {
		return nil, err
	}
	frameworks, err := frameworkObjects(st.GetGetState(), all["work_dir"])
	if err != nil {
		return nil, err
	}
	a := info.GetGetAgent().GetAgentInfo()
	has := resourceObject(a.GetResources())
	return jsonObject{
		"version": v.GetGetVersion().GetVersionInfo().GetVersion(), "id": a.GetHostname(), "pid": agentPID(r), "hostname": a.GetHostname(), "flags": all,
		"resources": has, "unreserved_resources": has, "reserved_resources": jsonObject{}, "attributes": jsonObject{},
		"frameworks": frameworks, "completed_frameworks": []jsonObject{},
	}, nil
}

func frameworkObjects(st *mesosagent.Response_GetState, work string) ([]jsonObject, error) {
	running, err := groupByExecutor(st.GetGetTasks().GetLaunchedTasks())
	if err != nil {
		return nil, err
	}
	completed, err := groupByExecutor(st.GetGetTasks().GetCompletedTasks())
	if err != nil {
		return nil, err
	}
	executors := func(list []*mesosagent.Response_GetExecutors_Executor) map[string][]jsonObject {
		of := map[string][]jsonObject{}
		for _, e := range list {
			f := e.GetExecutorInfo().GetFrameworkId().GetValue()
			of[f] = append(of[f], executorObject(e.GetExecutorInfo(), running, completed, work))
		}
		return of
	}
	now, before := executors(st.GetGetExecutors().GetExecutors()), executors(st.GetGetExecutors().GetCompletedExecutors())
	all := []jsonObject{}
	for _, one := range st.GetGetFrameworks().GetFrameworks() {
		f := one.GetFrameworkInfo()
		all = append(all, jsonObject{
			"id": f.GetId().GetValue(), "name": f.GetName(), "user": f.GetUser(), "role": f.GetRole(), "checkpoint": f.GetCheckpoint(),
			"failover_timeout": f.GetFailoverTimeout(), "hostname": f.GetHostname(),
			"executors": append([]jsonObject{}, now[f.GetId().GetValue()]...), "completed_executors": append([]jsonObject{}, before[f.GetId().GetValue()]...),
		})
	}
	return all, nil
}

func executorObject(e *mesosv1.ExecutorInfo, running, completed tasksByExecutor, work string) jsonObject {
	framework, id := e.GetFrameworkId().GetValue(), e.GetExecutorId().GetValue()
	o := jsonObject{
		"id": id, "name": e.GetName(), "source": e.GetSource(), "container": id, "resources": resourceObject(e.GetResources()), "type": e.GetType().String(),
		"tasks": running.of(framework, id), "queued_tasks": []jsonObject{}, "completed_tasks": completed.of(framework, id),
	}
	if framework == string(core.OwnerMesos) {
		o["directory"] = path.Join(work, sandbox.Nested, id)
	}
	return o
}

// agentPID is the agent's libprocess name, with its address in the client's request.
func agentPID(r *http.Request) string { return "slave(1)@" + r.Host }

// slavesDocument is a master's list of agents, which has this one only.
func slavesDocument(h Documents, r *http.Request) (any, error) {
	info, err := h.get(r.Context(), mesosagent.Call_GET_AGENT)
	if err != nil {
		return nil, err
	}
	v, err := h.get(r.Context(), mesosagent.Call_GET_VERSION)
	if err != nil {
		return nil, err
	}
	a := info.GetGetAgent().GetAgentInfo()
	all := []jsonObject{}
	if want := r.URL.Query().Get("slave_id"); want == "" || want == a.GetHostname() {
		has := resourceObject(a.GetResources())
		all = append(all, jsonObject{
			"id": a.GetHostname(), "hostname": a.GetHostname(), "pid": agentPID(r), "active": true, "version": v.GetGetVersion().GetVersionInfo().GetVersion(),
			"resources": has, "unreserved_resources": has, "reserved_resources": jsonObject{}, "attributes": jsonObject{},
		})
	}
	return jsonObject{"slaves": all, "recovered_slaves": []jsonObject{}}, nil
}

// taskLimit is the number of tasks that are listed by default.
const taskLimit = 100

// tasksDocument is a master's list of tasks, newest first by default.
func tasksDocument(h Documents, r *http.Request) (any, error) {
	q := r.URL.Query()
	limit, err := intParam(q.Get("limit"), taskLimit)
	if err != nil {
		return nil, badRequest("Failed to parse limit: " + err.Error() + ".\n")
	}
	offset, err := intParam(q.Get("offset"), 0)
	if err != nil {
		return nil, badRequest("Failed to parse offset: " + err.Error() + ".\n")
	}
	resp, err := h.get(r.Context(), mesosagent.Call_GET_TASKS)
	if err != nil {
		return nil, err
	}
	list := slices.Concat(resp.GetGetTasks().GetLaunchedTasks(), resp.GetGetTasks().GetCompletedTasks())
	list = slices.DeleteFunc(list, func(t *mesosv1.Task) bool {
		id, framework := q.Get("task_id"), q.Get("framework_id")
		return id != "" && id != t.GetTaskId().GetValue() || framework != "" && framework != t.GetFrameworkId().GetValue()
	})
	at := func(t *mesosv1.Task) float64 { return t.GetStatuses()[0].GetTimestamp() }
	slices.SortStableFunc(list, func(a, b *mesosv1.Task) int {
		if q.Get("order") == "asc" {
			a, b = b, a
		}
		switch {
		case at(a) > at(b):
			return -1
		case at(a) < at(b):
			return 1
		}
		return 0
	})
	list = list[min(max(offset, 0), len(list)):]
	if limit >= 0 { // tools send -1 for no limit
		list = list[:min(limit, len(list))]
	}
	all, err := taskObjects(list)
	return jsonObject{"tasks": all}, err
}

// intParam parses a query parameter; otherwise is its default.
func intParam(text string, otherwise int) (int, error) {
	if text == "" {
		return otherwise, nil
	}
	return strconv.Atoi(text)
}

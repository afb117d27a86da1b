package command_test

import (
	"encoding/json"
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/api"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/hub/hubtest"
)

// TestTasksThatWaitOrHaveEndedAreListed: services and tasks name the reason why a task has no node, and a task that has
// ended is to be shut down, as a Swarm's managers say it.
func TestTasksThatWaitOrHaveEndedAreListed(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	n := h.Join()
	session := hubtest.MustOpen(t, n, "").First.GetSessionId()
	service := func(name string, constraints ...string) json.RawMessage {
		data, err := protojson.Marshal(&swarmv1.ServiceSpec{
			Annotations: &swarmv1.Annotations{Name: name}, Mode: &swarmv1.ServiceSpec_Replicated{Replicated: &swarmv1.ReplicatedService{Replicas: 1}},
			Task: &swarmv1.TaskSpec{
				Runtime:   &swarmv1.TaskSpec_Container{Container: &swarmv1.ContainerSpec{Image: "busybox"}},
				Restart:   &swarmv1.RestartPolicy{Condition: swarmv1.RestartPolicy_NONE},
				Placement: &swarmv1.Placement{Constraints: constraints},
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	declared := fleet.Declaration{Name: "shop", Services: []json.RawMessage{service("ends"), service("waits", "node.labels.site==far")}}
	if _, err := api.NewClient(h.Socket).Apply(hubtest.Within(t), declared, false); err != nil {
		t.Fatal(err)
	}
	task := ""
	hubtest.Until(t, h, "a task is on the node", func() bool {
		for id, one := range h.Inventory.Tasks() {
			if one.M.GetNodeId() == n.NodeID {
				task = id
			}
		}
		return task != ""
	})
	_, err := n.Dispatcher.UpdateTaskStatus(hubtest.Within(t), &swarmv1.UpdateTaskStatusRequest{
		SessionId: session, Updates: []*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate{{TaskId: task, Status: &swarmv1.TaskStatus{State: swarmv1.TaskState_COMPLETE}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	hubtest.Until(t, h, "the task has ended", func() bool { one, _ := h.Inventory.Task(task); return one.Ended() })

	// lists runs a command and returns the fields of the line that has a word.
	lists := func(word string, args ...string) []string {
		t.Helper()
		out, errs, code := run(t, "", append([]string{"--socket", h.Socket}, args...)...)
		if code != 0 {
			t.Fatalf("%s: %d %s", args, code, errs)
		}
		for line := range strings.Lines(out) {
			if strings.Contains(line, word) {
				return strings.Fields(line)
			}
		}
		t.Fatalf("%s: no line has %s:\n%s", args, word, out)
		return nil
	}
	const reason = "no suitable node (scheduling constraints not satisfied: edge)"
	if got := strings.Join(lists("waits", "services"), " "); !strings.Contains(got, "0/1") || !strings.Contains(got, reason) {
		t.Errorf("services: %s", got)
	}
	if got := strings.Join(lists("waits", "tasks"), " "); !strings.Contains(got, " running pending "+reason) {
		t.Errorf("tasks: %s", got)
	}
	if got := strings.Join(lists(task, "tasks"), " "); !strings.HasSuffix(got, " shutdown complete") {
		t.Errorf("tasks: %s", got)
	}
	if got := strings.Join(lists("desiredState", "tasks", "inspect", task), " "); !strings.Contains(got, "SHUTDOWN") {
		t.Errorf("tasks inspect: %s", got)
	}
	if one, _ := h.Inventory.Task(task); one.M.GetDesiredState() != swarmv1.TaskState_RUNNING {
		t.Errorf("the record's desired state is %v", one.M.GetDesiredState())
	}
}

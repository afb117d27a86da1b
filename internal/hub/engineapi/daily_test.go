package engineapi

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/moby/moby/api/types/swarm"
	"github.com/moby/moby/api/types/system"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/inventory"
)

// TestAServiceWithoutAName has one of its image.
func TestAServiceWithoutAName(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	for image, want := range map[string]string{"a.example:5000/b/web_1:2@sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855": `^web_1-\w{8}$`, "busybox": `^busybox-\w{8}$`} {
		var made struct{ ID string }
		var is swarm.Service
		d.must(201, "POST", "/services/create", `{"TaskTemplate": {"ContainerSpec": {"Image": "`+image+`"}}}`, &made)
		d.must(200, "GET", "/services/"+made.ID, "", &is)
		if !regexp.MustCompile(want).MatchString(is.Spec.Name) {
			t.Errorf("%s: %s", image, is.Spec.Name)
		}
	}
}

// TestAServiceWithoutPlacementHasAnEmptyOne: docker service update --replicas-max-per-node writes to
// the placement of the answer.
func TestAServiceWithoutPlacementHasAnEmptyOne(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	for _, task := range []string{`{"ContainerSpec": {"Image": "a"}}`, `{"ContainerSpec": {"Image": "a"}, "Placement": {}}`} {
		var made struct{ ID string }
		var is swarm.Service
		d.must(201, "POST", "/services/create", `{"TaskTemplate": `+task+`}`, &made)
		d.must(200, "GET", "/services/"+made.ID, "", &is)
		if is.Spec.TaskTemplate.Placement == nil {
			t.Errorf("%s has no placement", task)
		}
	}
}

func TestATaskThatNoNodeTakesIsPending(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	var made struct{ ID string }
	d.must(201, "POST", "/services/create", `{"Name": "web", "TaskTemplate": {"ContainerSpec": {"Image": "a"}}}`, &made)
	d.pending = []inventory.Task{{
		Record: inventory.Record[*swarmv1.Task]{M: &swarmv1.Task{Id: "waits", ServiceId: made.ID, Slot: 1, DesiredState: swarmv1.TaskState_RUNNING}},
		Status: inventory.Record[*swarmv1.TaskStatus]{M: &swarmv1.TaskStatus{State: swarmv1.TaskState_PENDING, Err: "no suitable node (memory: a)"}},
	}}
	var list []swarm.Task
	var one swarm.Task
	d.must(200, "GET", "/tasks", "", &list)
	d.must(200, "GET", "/tasks/waits", "", &one)
	for _, task := range append(list, one) {
		if task.Status.State != swarm.TaskStatePending || task.Status.Err != "no suitable node (memory: a)" || task.NodeID != "" || task.DesiredState != swarm.TaskStateRunning {
			t.Errorf("task: %+v", task)
		}
	}
	if len(list) != 1 {
		t.Errorf("%d tasks", len(list))
	}
}

func TestTheHubThatLeadsIsNamed(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	d.server.Hubs = func() []Hub {
		return []Hub{{ID: "run1", Address: "hub.example:2377"}, {ID: "run2", Address: "other.example:2377", Leads: true}}
	}
	d.handler = d.server.Handler()
	var list []swarm.Node
	d.must(200, "GET", "/nodes", "", &list)
	leads := map[string]bool{}
	for _, n := range list {
		if n.ManagerStatus != nil {
			leads[n.ID+" "+n.Description.Hostname] = n.ManagerStatus.Leader
		}
	}
	if len(leads) != 2 || leads["thehub hubhost"] || !leads["run2 other.example"] {
		t.Errorf("hubs: %v", leads)
	}
	if text := d.must(412, "DELETE", "/nodes/run2?force=1", "", nil); !strings.Contains(text, "is a hub") {
		t.Errorf("removed: %s", text)
	}
}

// TestAnswersWithoutEtcdSayHowOldTheyAre wherever Docker's protocol has a place for it. Without a
// notice, no place has one.
func TestAnswersWithoutEtcdSayHowOldTheyAre(t *testing.T) {
	t.Parallel()
	const text = "as of 2026-11-28T20:00:00Z, etcd cannot be reached"
	for _, notice := range []string{"", text} {
		d := newDoor(t)
		d.server.Notice = func() string { return notice }
		d.handler = d.server.Handler()
		var info system.Info
		d.must(200, "GET", "/info", "", &info)
		var list []swarm.Node
		d.must(200, "GET", "/nodes", "", &list)
		reach, message := swarm.ReachabilityReachable, "it runs no tasks"
		header := ""
		if notice != "" {
			reach, message, header = swarm.ReachabilityUnreachable, text, "110 longshore-hub \""+text+"\""
		}
		if hub := list[0]; info.Swarm.Error != notice || hub.ManagerStatus.Reachability != reach || hub.ManagerStatus.Leader != (notice == "") || hub.Status.Message != message {
			t.Errorf("with %q: %q, %v, %v", notice, info.Swarm.Error, hub.ManagerStatus, hub.Status)
		}
		w := httptest.NewRecorder()
		d.handler.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/services", nil))
		if got := w.Header().Get("Warning"); got != header || w.Code != 200 {
			t.Errorf("with %q: %d, Warning: %q", notice, w.Code, got)
		}
	}
}

// TestASecretIsExchanged as docker's users do: the old one can be removed when the update is completed, and a
// rollback that needs it is refused then. Until the update is completed it may go back by itself.
func TestASecretIsExchanged(t *testing.T) {
	t.Parallel()
	d := newDoor(t)
	var ids []string
	for _, name := range []string{"one", "two"} {
		var made struct{ ID string }
		d.must(201, "POST", "/secrets/create", `{"Name": "`+name+`", "Data": "AAAA"}`, &made)
		ids = append(ids, made.ID)
	}
	spec := func(i int, name string) string {
		return fmt.Sprintf(`{"Name": "web", "TaskTemplate": {"ContainerSpec": {"Image": "a", "Secrets": [{"SecretID": %q, "SecretName": %q, "File": {"Name": "k", "UID": "0", "GID": "0", "Mode": 292}}]}}}`, ids[i], name)
	}
	var service swarm.Service
	d.must(201, "POST", "/services/create", spec(0, "one"), nil)
	d.must(200, "GET", "/services/web", "", &service)
	d.must(200, "POST", fmt.Sprintf("/services/web/update?version=%d", service.Version.Index), spec(1, "two"), nil)
	state := func(to swarmv1.UpdateStatus_UpdateState) {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.services[service.ID].M.UpdateStatus = &swarmv1.UpdateStatus{State: to}
	}
	used := func(why string) {
		t.Helper()
		if text := d.must(400, "DELETE", "/secrets/one", "", nil); !strings.Contains(text, "is in use by the following services: web") {
			t.Errorf("%s: %s", why, text)
		}
	}
	state(swarmv1.UpdateStatus_PAUSED)
	used("its update is paused")
	state(swarmv1.UpdateStatus_COMPLETED)
	task := &swarmv1.Task{Id: "t", ServiceId: service.ID, DesiredState: swarmv1.TaskState_RUNNING, Spec: d.services[service.ID].M.GetPreviousSpec().GetTask()}
	d.tasks["t"] = inventory.Task{Record: inventory.Record[*swarmv1.Task]{M: task}}
	used("a task has it")
	task.DesiredState = swarmv1.TaskState_SHUTDOWN
	d.must(204, "DELETE", "/secrets/one", "", nil)
	d.must(200, "GET", "/services/web", "", &service)
	if text := d.must(400, "POST", fmt.Sprintf("/services/web/update?version=%d&rollback=previous", service.Version.Index), spec(1, "two"), nil); !strings.Contains(text, `there is no secret \"one\"`) {
		t.Errorf("a rollback to what is gone: %s", text)
	}
}

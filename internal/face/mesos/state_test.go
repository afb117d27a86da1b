package mesos

import (
	"encoding/json"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	imagespec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore/longshore/internal/core"
)

// get reads a document by GET.
func (n *testNode) get(path string) (int, http.Header, string) {
	n.t.Helper()
	r, err := http.NewRequestWithContext(n.t.Context(), http.MethodGet, "http://agent.example:5051"+path, nil)
	if err != nil {
		n.t.Fatal(err)
	}
	resp, err := n.client.Do(r)
	if err != nil {
		n.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

// page reads a document of JSON into v.
func (n *testNode) page(path string, v any) {
	n.t.Helper()
	code, header, text := n.get(path)
	if code != http.StatusOK || header.Get("Content-Type") != "application/json" || json.Unmarshal([]byte(text), v) != nil {
		n.t.Fatalf("%s: %d %v %q", path, code, header, text)
	}
}

const nestedB = `{"type":"LAUNCH_NESTED_CONTAINER","launch_nested_container":{"container_id":{"value":"b","parent":{"value":"a"}},"command":{"value":"serve"}}}`

// TestGetState: standalone containers are executors of the framework mesos, and they and their
// nested ones are tasks.
func TestGetState(t *testing.T) {
	n := newTestNode(t)
	n.is(launchA, 200, "")
	n.is(nestedB, 200, "")
	st := n.answer(`{"type":"GET_STATE"}`).GetGetState()
	if f := st.GetGetFrameworks().GetFrameworks(); len(f) != 1 || f[0].GetFrameworkInfo().GetName() != "mesos" {
		t.Errorf("frameworks %v", f)
	}
	if e := st.GetGetExecutors().GetExecutors(); len(e) != 1 || e[0].GetExecutorInfo().GetExecutorId().GetValue() != "a" {
		t.Errorf("executors %v", e)
	}
	tasks := st.GetGetTasks().GetLaunchedTasks()
	if len(tasks) != 2 || tasks[0].GetTaskId().GetValue() != "a" || tasks[1].GetTaskId().GetValue() != "a.b" {
		t.Errorf("tasks %v", tasks)
	}
	n.is(killA, 200, "")
	n.is(waitA, 200, `{"type":"WAIT_CONTAINER","wait_container":{"exit_status":9}}`)
	if done := n.answer(`{"type":"GET_TASKS"}`).GetGetTasks().GetCompletedTasks(); len(done) != 2 || done[0].GetState().String() != "TASK_KILLED" {
		t.Errorf("after the end: %v", done)
	}
	if done := n.answer(`{"type":"GET_EXECUTORS"}`).GetGetExecutors().GetCompletedExecutors(); len(done) != 1 {
		t.Errorf("after the end: %v", done)
	}
	metrics := map[string]float64{}
	for metrics["slave/tasks_killed"]+metrics["slave/tasks_failed"] < 2 { // they are counted as events come
		n.page("/metrics/snapshot", &metrics)
	}
	n.is(removeA, 200, "")
	n.is(`{"type":"GET_STATE"}`, 200, `{"type":"GET_STATE","get_state":{"get_tasks":{},"get_executors":{},"get_frameworks":{}}}`)
}

// TestAllOwners: with them shown their containers are, and no call changes any.
func TestAllOwners(t *testing.T) {
	for _, all := range []bool{false, true} {
		n := newTestNode(t)
		n.shutdown()
		n.all = all
		n.serve()
		img := n.AddImage("other", imagespec.ImageConfig{Cmd: []string{"serve"}}, nil)
		sb := n.Pod(core.OwnerCRI, "pod")
		other := n.Running(sb, "c", img, "serve", "--secret")
		n.is(launchA, 200, "")
		tasks := n.answer(`{"type":"GET_TASKS"}`).GetGetTasks().GetLaunchedTasks()
		containers := n.answer(`{"type":"GET_CONTAINERS"}`).GetGetContainers().GetContainers()
		kill := `{"type":"KILL_CONTAINER","kill_container":{"container_id":{"value":"` + string(other.ID) + `"}}}`
		if !all {
			if len(tasks) != 1 || len(containers) != 0 {
				t.Errorf("without: %v, %v", tasks, containers)
			}
			n.is(kill, 404, "Container '"+string(other.ID)+"' cannot be found (or is already killed)")
			continue
		}
		if len(tasks) != 2 || tasks[0].GetFrameworkId().GetValue() != "cri" || tasks[0].GetTaskId().GetValue() != string(other.ID) {
			t.Errorf("tasks %v", tasks)
		}
		if len(containers) != 1 || containers[0].GetFrameworkId().GetValue() != "cri" || containers[0].GetExecutorId().GetValue() != string(sb.ID) ||
			containers[0].GetContainerId().GetValue() != string(other.ID) {
			t.Errorf("containers %v", containers)
		}
		n.is(kill, 403, "403 Forbidden.")
		n.is(`{"type":"WAIT_CONTAINER","wait_container":{"container_id":{"value":"`+string(other.ID)+`"}}}`, 403, "403 Forbidden.")
		n.is(`{"type":"LAUNCH_NESTED_CONTAINER","launch_nested_container":{"container_id":{"value":"x","parent":{"value":"`+string(other.ID)+`"}},"command":{"value":"ls"}}}`, 403, "403 Forbidden.")
		if code, text := n.input(framed(`{"type":"ATTACH_CONTAINER_INPUT","attach_container_input":{"type":"CONTAINER_ID","container_id":{"value":"` + string(other.ID) + `"}}}`)); code != 403 {
			t.Errorf("input: %d %q", code, text)
		}
		var entries []struct {
			Framework string `json:"framework_id"`
		}
		if n.page("/containers", &entries); len(entries) != 2 || entries[0].Framework != "cri" || entries[1].Framework != "mesos" {
			t.Errorf("the document: %v", entries)
		}
	}
}

type taskDocument struct {
	ID, State string
	Slave     string `json:"slave_id"`
	Framework string `json:"framework_id"`
	Executor  string `json:"executor_id"`
	Container struct{ Type string }
	Statuses  []struct {
		State     string
		Timestamp float64
		Container struct {
			ID struct {
				Value  string
				Parent *struct{ Value string }
			} `json:"container_id"`
		} `json:"container_status"`
	}
}

// TestDocuments reads Mesos' documents by GET, on both paths.
func TestDocuments(t *testing.T) {
	n := newTestNode(t)
	n.is(launchA, 200, "")
	n.is(nestedB, 200, "")
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if code, _, text := n.get("/health"); code != 200 || text != "" {
		t.Errorf("health: %d %q", code, text)
	}
	var v struct{ Version string }
	if n.page("/version", &v); v.Version != "1.2.3" {
		t.Errorf("version %q", v.Version)
	}
	var flags struct{ Flags map[string]string }
	if n.page("/flags", &flags); flags.Flags["work_dir"] != n.work {
		t.Errorf("flags %v", flags)
	}
	var slaves struct {
		Slaves []struct {
			ID, Hostname, Pid string
			Active            bool
			Resources         map[string]float64
		}
	}
	n.page("/slaves", &slaves)
	if s := slaves.Slaves; len(s) != 1 || s[0].ID != host || s[0].Hostname != host || s[0].Pid != "slave(1)@agent.example:5051" || !s[0].Active || s[0].Resources["mem"] < 1 {
		t.Errorf("slaves %+v", s)
	}
	if n.page("/slaves?slave_id=another", &slaves); len(slaves.Slaves) != 0 {
		t.Errorf("another: %v", slaves)
	}
	var tasks struct{ Tasks []taskDocument }
	n.page("/tasks?order=asc&limit=-1", &tasks)
	if l := tasks.Tasks; len(l) != 2 || l[0].ID != "a" || l[0].State != "TASK_RUNNING" || l[0].Slave != host || l[0].Framework != "mesos" || l[0].Executor != "a" || l[0].Container.Type != "MESOS" ||
		l[0].Statuses[0].State != "TASK_RUNNING" || l[0].Statuses[0].Timestamp == 0 || l[0].Statuses[0].Container.ID.Value != "a" ||
		l[1].Statuses[0].Container.ID.Value != "b" || l[1].Statuses[0].Container.ID.Parent.Value != "a" {
		t.Errorf("tasks %+v", l)
	}
	for query, want := range map[string]string{"": "a.b a", "?limit=1": "a.b", "?offset=1": "a", "?task_id=a": "a", "?task_id=c": "", "?offset=9": "", "?framework_id=mesos&order=asc": "a a.b"} {
		n.page("/tasks"+query, &tasks)
		var got []string
		for _, task := range tasks.Tasks {
			got = append(got, task.ID)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("tasks%s: %v, want %s", query, got, want)
		}
	}
	var state struct {
		ID, Pid    string
		Frameworks []struct {
			ID        string
			Executors []struct {
				ID, Source, Directory string
				Tasks                 []taskDocument
			}
		}
	}
	for _, p := range []string{"/state", "/slave(1)/state", "/state/"} {
		n.page(p, &state)
		if f := state.Frameworks; state.ID != host || len(f) != 1 || f[0].ID != "mesos" || len(f[0].Executors) != 1 || f[0].Executors[0].Directory != filepath.Join(n.work, "containers", "a") || len(f[0].Executors[0].Tasks) != 2 {
			t.Errorf("%s: %+v", p, state)
		}
	}
	var metrics map[string]float64
	n.page("/metrics/snapshot", &metrics)
	for name, want := range map[string]float64{"slave/tasks_running": 2, "slave/executors_running": 1, "slave/cpus_used": 0.5, "slave/mem_used": 64, "slave/container_launch_errors": 0, "slave/registered": 0} {
		if got, ok := metrics[name]; !ok || got != want {
			t.Errorf("%s is %v %v, want %v", name, got, ok, want)
		}
	}
	n.containersByGet()
	for path, want := range map[string]int{"/nowhere": 404, "/containers?executor_id=a": 400, "/tasks?limit=x": 400, "/files/browse": 400} {
		if code, _, text := n.get(path); code != want {
			t.Errorf("%s: %d %q", path, code, text)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://mesos/state", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := n.client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusMethodNotAllowed || resp.Header.Get("Allow") != "GET" {
		t.Errorf("a POST: %d %v", resp.StatusCode, resp.Header)
	}
}

func (n *testNode) containersByGet() {
	n.t.Helper()
	for path, want := range map[string]int{"/containers": 1, "/containers?container_id=a": 1, "/containers?container_id=b": 0, "/containers?framework_id=mesos&executor_id=a": 1, "/monitor/statistics": 1} {
		var list []struct {
			Executor   string `json:"executor_id"`
			Statistics map[string]any
		}
		if n.page(path, &list); len(list) != want || want > 0 && (list[0].Executor != "a" || list[0].Statistics["timestamp"] == nil) {
			n.t.Errorf("%s: %v", path, list)
		}
	}
}

// TestFilesByGet: a sandbox's files, in parts and as a whole.
func TestFilesByGet(t *testing.T) {
	n := newTestNode(t)
	n.is(launchA, 200, "")
	dir := filepath.Join(n.work, "containers", "a")
	long := strings.Repeat("0123456789abcdef", 10_000)
	if err := os.WriteFile(filepath.Join(dir, "long"), []byte(long), 0o640); err != nil {
		t.Fatal(err)
	}
	q := "?path=" + url.QueryEscape(dir)
	var list []struct {
		Path, Mode string
		Size       int
	}
	n.page("/files/browse"+q, &list)
	found := map[string]string{}
	for _, f := range list {
		found[filepath.Base(f.Path)] = f.Mode
	}
	if found["long"] != "-rw-r-----" || found["containers"] != "drwxr-xr-x" {
		t.Errorf("listed %v", found)
	}
	var part struct {
		Offset int
		Data   string
	}
	q += "/long"
	for query, want := range map[string]struct {
		offset int
		data   string
	}{
		"": {len(long), ""}, "&offset=-1": {len(long), ""}, "&offset=1&length=3": {1, "123"}, "&offset=0&length=0": {0, ""}, "&offset=2&length=-1": {2, long[2 : 2+65536]},
	} {
		part.Data = ""
		if n.page("/files/read"+q+query, &part); part.Offset != want.offset || part.Data != want.data {
			t.Errorf("read%s: %d, %d bytes", query, part.Offset, len(part.Data))
		}
	}
	code, header, text := n.get("/files/download" + q)
	if code != 200 || text != long || header.Get("Content-Disposition") != "attachment; filename=long" {
		t.Errorf("download: %d %v, %d bytes", code, header, len(text))
	}
	var known map[string]string
	if n.page("/files/debug", &known); known[filepath.Dir(dir)] == "" {
		t.Errorf("known %v", known)
	}
	q = "?path=" + url.QueryEscape(dir)
	for path, want := range map[string]string{
		"/files/read" + q + "&offset=0":        "Cannot read a directory.\n",
		"/files/download" + q:                  "Cannot download a directory.\n",
		"/files/read" + q + "&offset=x":        "Failed to parse offset: invalid syntax.\n",
		"/files/read" + q + "&offset=-2":       "Negative offset provided: -2.\n",
		"/files/read" + q + "&length=-2":       "Negative length provided: -2.\n",
		"/files/read?path=":                    "Expecting 'path=value' in query.\n",
		"/files/download?path=/etc/passwd":     "404 Not Found.",
		"/files/browse?path=" + dir + "/../..": "404 Not Found.",
	} {
		if _, _, text := n.get(path); text != want {
			t.Errorf("%s: %q, want %q", path, text, want)
		}
	}
}

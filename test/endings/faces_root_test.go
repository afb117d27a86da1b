package endings

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/durationpb"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// face starts containers and tells of their ends, as the clients of one protocol do.
type face interface {
	// start runs d's program; it returns whether this face can have it.
	start(t *testing.T, name string, d death) bool
	// signal sends a signal; false where the protocol has no such call.
	signal(t *testing.T, sig syscall.Signal) bool
	stop(t *testing.T, sig syscall.Signal, grace time.Duration)
	// ended waits for the end, and returns the protocol's words for it.
	ended(t *testing.T) string
	// asks are its words, as regular expressions, for the origin of an end: by stop, and by signal.
	asks() (stop, signal string)
	// told asserts that the protocol's events tell of the end, where it has events.
	told(t *testing.T, e ending, why string)
	// says returns its words for such an end, if the container still exists; why is the verdict.
	says(e ending, why string) string
	remove(t *testing.T)
}

// stream keeps the last events of a stream, by subject.
type stream[T any] struct {
	mu   sync.Mutex // guards last, more
	last map[string]T
	more chan struct{} // closed by the next event
}

// newStream calls read until ctx ends, again and again when it returns.
func newStream[T any](ctx context.Context, read func(tell func(id string, event T))) *stream[T] {
	s := &stream[T]{last: map[string]T{}, more: make(chan struct{})}
	go func() {
		for ctx.Err() == nil {
			read(func(id string, event T) {
				s.mu.Lock()
				defer s.mu.Unlock()
				s.last[id] = event
				close(s.more)
				s.more = make(chan struct{})
			})
		}
	}()
	return s
}

// of waits for an event about id.
func (s *stream[T]) of(t *testing.T, id string) T {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), roottest.Patience())
	defer cancel()
	for {
		s.mu.Lock()
		event, ok := s.last[id]
		more := s.more
		s.mu.Unlock()
		if ok {
			return event
		}
		select {
		case <-more:
		case <-ctx.Done():
			t.Fatalf("no event tells of the end of %s", id)
		}
	}
}

// shell is the command of a death's program.
func shell(d death) []string {
	if d.command != nil {
		return d.command
	}
	return []string{"/bin/sh", "-c", d.script}
}

// cliFace is the command line.
type cliFace struct {
	n     *nodetest.Node
	image string
	name  string
}

func (f *cliFace) start(t *testing.T, name string, d death) bool {
	t.Helper()
	if d.shared {
		return false
	}
	f.name = name
	args := []string{"run", "-d", "--name", name}
	if d.memory > 0 {
		args = append(args, "--memory", fmt.Sprint(d.memory), "--memory-swap", fmt.Sprint(d.memory))
	}
	if d.pids > 0 {
		args = append(args, "--pids-limit", fmt.Sprint(d.pids))
	}
	if d.stopSignal != "" {
		args = append(args, "--stop-signal", d.stopSignal)
	}
	if d.init {
		args = append(args, "--init")
	}
	for _, c := range d.caps {
		args = append(args, "--cap-add", c)
	}
	args = append(args, d.flags...)
	if _, err := f.n.CLI(append(append(args, f.image), shell(d)...)...); err != nil && d.end.start == 0 {
		t.Fatal(err)
	}
	return true
}

func (f *cliFace) must(t *testing.T, args ...string) string {
	t.Helper()
	out, err := f.n.CLI(args...)
	if err != nil {
		t.Error(err)
	}
	return out
}

func (f *cliFace) signal(t *testing.T, sig syscall.Signal) bool {
	t.Helper()
	f.must(t, "kill", "-s", fmt.Sprint(int(sig)), f.name)
	return true
}

func (f *cliFace) stop(t *testing.T, _ syscall.Signal, grace time.Duration) {
	t.Helper()
	f.must(t, "stop", "-t", fmt.Sprint(grace.Seconds()), f.name)
}

func (f *cliFace) ended(t *testing.T) string {
	t.Helper()
	out, err := f.n.CLI("wait", f.name)
	if err != nil {
		t.Error(err)
	}
	return "wait " + strings.TrimSpace(out)
}

func (*cliFace) asks() (stop, signal string) {
	return `cli longshore stop \(uid 0, pid \d+\)`, `cli longshore kill \(uid 0, pid \d+\)`
}

func (*cliFace) told(*testing.T, ending, string) {} // every face's test reads the event log's

func (*cliFace) says(e ending, _ string) string { return fmt.Sprint("wait ", e.status()) }

func (f *cliFace) remove(t *testing.T) {
	t.Helper()
	f.must(t, "rm", "-f", f.name)
}

// criFace is a container of a pod.
type criFace struct {
	n     *nodetest.Node
	image string
	pod   *nodetest.Pod
	c     *nodetest.Container
	ends  *stream[*runtimeapi.ContainerStatus]
	// adjust changes a pod's config for another server.
	adjust func(*runtimeapi.PodSandboxConfig)
}

func newCRIFace(t *testing.T, n *nodetest.Node, image string) *criFace {
	t.Helper()
	f := &criFace{n: n, image: image}
	f.listen(t)
	return f
}

// listen follows the events as kubelet does, which opens the stream again when the agent was away.
func (f *criFace) listen(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	f.ends = newStream(ctx, func(tell func(string, *runtimeapi.ContainerStatus)) {
		events, err := f.n.CRI.GetContainerEvents(ctx, &runtimeapi.GetEventsRequest{}, grpc.WaitForReady(true))
		for err == nil && ctx.Err() == nil {
			var e *runtimeapi.ContainerEventResponse
			if e, err = events.Recv(); err != nil || e.GetContainerEventType() != runtimeapi.ContainerEventType_CONTAINER_STOPPED_EVENT {
				continue
			}
			for _, st := range e.GetContainersStatuses() {
				if st.GetId() == e.GetContainerId() {
					tell(st.GetId(), st)
				}
			}
		}
	})
}

func (f *criFace) told(t *testing.T, _ ending, _ string) {
	t.Helper()
	st, want := f.ends.of(t, f.c.ID), f.c.Status(t)
	if st.GetState() != want.GetState() || st.GetReason() != want.GetReason() || st.GetExitCode() != want.GetExitCode() || st.GetMessage() != want.GetMessage() || st.GetFinishedAt() != want.GetFinishedAt() {
		t.Errorf("the event tells %v, the status is %v", st, want)
	}
}

func (f *criFace) start(t *testing.T, name string, d death) bool {
	t.Helper()
	if d.pids > 0 || d.init || d.flags != nil {
		return false // the kubelet limits pods, by their cgroup, and knows no init
	}
	pod := f.n.PodConfig(name)
	if d.shared {
		pod.Linux.SecurityContext.NamespaceOptions.Pid = runtimeapi.NamespaceMode_POD
	}
	if f.adjust != nil {
		f.adjust(pod)
	}
	f.pod = f.n.RunPod(t, pod)
	cfg := nodetest.ContainerConfig(name, f.image, shell(d)...)
	cfg.Linux.Resources = &runtimeapi.LinuxContainerResources{MemoryLimitInBytes: d.memory, MemorySwapLimitInBytes: d.memory}
	if d.stopSignal != "" {
		cfg.StopSignal = runtimeapi.Signal(runtimeapi.Signal_value["SIGNAL_"+strings.ReplaceAll(d.stopSignal, "+", "PLUS")])
	}
	cfg.Linux.SecurityContext = &runtimeapi.LinuxContainerSecurityContext{
		NamespaceOptions: pod.GetLinux().GetSecurityContext().GetNamespaceOptions(), Capabilities: &runtimeapi.Capability{AddCapabilities: d.caps},
	}
	if d.high > 0 {
		cfg.Linux.Resources.Unified = map[string]string{"memory.high": fmt.Sprint(d.high)}
	}
	f.c = f.pod.Create(t, cfg)
	if _, err := f.n.CRI.StartContainer(t.Context(), &runtimeapi.StartContainerRequest{ContainerId: f.c.ID}); err != nil && d.end.start == 0 {
		t.Fatal(err)
	}
	return true
}

func (*criFace) signal(*testing.T, syscall.Signal) bool { return false }

func (f *criFace) stop(t *testing.T, _ syscall.Signal, grace time.Duration) {
	t.Helper()
	if _, err := f.n.CRI.StopContainer(t.Context(), &runtimeapi.StopContainerRequest{ContainerId: f.c.ID, Timeout: int64(grace.Seconds())}); err != nil {
		t.Error(err)
	}
}

func (f *criFace) ended(t *testing.T) string {
	t.Helper()
	st := f.c.WaitExited(t)
	return strings.TrimSpace(fmt.Sprintf("%s %d %s", st.GetReason(), st.GetExitCode(), st.GetMessage()))
}

func (*criFace) asks() (stop, signal string) { return "cri StopContainer", "" }

func (*criFace) says(e ending, why string) string {
	switch {
	case e.start != 0:
		return "StartError 128 " + strings.TrimPrefix(why, "could not be started: ")
	case e.lost:
		return "Unknown 255 " + why
	case e.oom:
		return fmt.Sprint("OOMKilled ", e.status())
	case e.status() == 0:
		return "Completed 0"
	default:
		return fmt.Sprint("Error ", e.status())
	}
}

func (f *criFace) remove(t *testing.T) {
	t.Helper()
	f.pod.Remove(t)
}

// nomadFace is Nomad's driver.
type nomadFace struct {
	n      *nodetest.Node
	client *nomadtest.Client
	image  string
	task   *nomaddriver.TaskConfig
	failed string
	ends   *stream[*nomaddriver.DriverTaskEvent]
}

// listen follows the driver's events, as a Nomad client does for all tasks.
func (f *nomadFace) listen(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	f.ends = newStream(ctx, func(tell func(string, *nomaddriver.DriverTaskEvent)) {
		events, err := f.client.Driver.TaskEvents(ctx, &nomaddriver.TaskEventsRequest{})
		for err == nil && ctx.Err() == nil {
			var e *nomaddriver.DriverTaskEvent
			if e, err = events.Recv(); err == nil && e.GetAnnotations()["exit_status"] != "" {
				tell(e.GetTaskId(), e)
			}
		}
	})
}

func (f *nomadFace) told(t *testing.T, e ending, why string) {
	t.Helper()
	got := f.ends.of(t, f.task.GetId())
	oom := ""
	if e.oom || e.childOOM {
		oom = "true"
	}
	if a := got.GetAnnotations(); got.GetMessage() != why || a["exit_status"] != fmt.Sprint(e.status()) || a["oom"] != oom {
		t.Errorf("the task's event says %v", got)
	}
}

const allocID = "5f0f0c4e-8d5c-4f3d-9a5d-000000000001"

func newNomadFace(t *testing.T, n *nodetest.Node, image string) *nomadFace {
	t.Helper()
	c := nomadtest.Plugin(t, filepath.Join(nodetest.Bin(t), "longshore"))
	c.Configure(t, map[string]any{"socket": filepath.Join(n.State, "nomad.sock")}, &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{{BaseSpeed: 2000}}})
	f := &nomadFace{n: n, client: c, image: image}
	f.listen(t)
	return f
}

func (f *nomadFace) start(t *testing.T, name string, d death) bool {
	t.Helper()
	if d.flags != nil {
		return false
	}
	dir := filepath.Join(f.n.Dir, "alloc")
	for _, sub := range []string{"alloc/logs", "alloc/data", name + "/local", name + "/secrets"} {
		if err := os.MkdirAll(filepath.Join(dir, allocID, sub), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	command := shell(d)
	config := map[string]any{"image": f.image, "image_pull_timeout": "5m", "command": command[0], "args": command[1:]}
	if d.pids > 0 {
		config["pids_limit"] = d.pids
	}
	if d.init {
		config["init"] = true
	}
	if d.stopSignal != "" {
		config["stop_signal"] = d.stopSignal
	}
	if d.caps != nil || d.shared {
		return false // a client allows capabilities by its configuration
	}
	f.task, f.failed = nomadtest.Task(dir, allocID, name, "aaaaaaaa", config), ""
	if d.memory > 0 {
		f.task.Resources.AllocatedResources.Memory.MemoryMb = d.memory >> 20
		f.task.Resources.LinuxResources.MemoryLimitBytes = d.memory
	}
	if _, err := f.client.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: f.task}); err != nil {
		if d.end.start == 0 {
			t.Fatal(err)
		}
		f.failed = err.Error()
	}
	return true
}

func (f *nomadFace) signal(t *testing.T, sig syscall.Signal) bool {
	t.Helper()
	if _, err := f.client.Driver.SignalTask(t.Context(), &nomaddriver.SignalTaskRequest{TaskId: f.task.GetId(), Signal: fmt.Sprint(int(sig))}); err != nil {
		t.Error(err)
	}
	return true
}

func (f *nomadFace) stop(t *testing.T, _ syscall.Signal, grace time.Duration) {
	t.Helper()
	if _, err := f.client.Driver.StopTask(t.Context(), &nomaddriver.StopTaskRequest{TaskId: f.task.GetId(), Timeout: durationpb.New(grace)}); err != nil {
		t.Error(err)
	}
}

func (f *nomadFace) ended(t *testing.T) string {
	t.Helper()
	if f.failed != "" {
		return "failed " + f.failed
	}
	w, err := f.client.Driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: f.task.GetId()})
	if err != nil {
		t.Error(err)
	}
	r := w.GetResult()
	return strings.TrimSpace(fmt.Sprintf("code %d signal %d oom %v %s", r.GetExitCode(), r.GetSignal(), r.GetOomKilled(), w.GetErr()))
}

func (*nomadFace) asks() (stop, signal string) { return "nomad StopTask", "nomad SignalTask" }

func (*nomadFace) says(e ending, why string) string {
	oom := (e.oom || e.childOOM) && e.status() != 0
	said := fmt.Sprintf("code %d signal %d oom %v", e.status(), e.signal, oom)
	if oom || e.lost {
		said += " " + why
	}
	return said
}

func (f *nomadFace) remove(t *testing.T) {
	t.Helper()
	if f.failed != "" {
		return
	}
	if _, err := f.client.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: f.task.GetId(), Force: true}); err != nil {
		t.Error(err)
	}
}

// mesosFace is a standalone container of the Mesos agent API.
type mesosFace struct {
	n      *nodetest.Node
	image  string
	name   string
	failed string
}

type object = map[string]any

func (f *mesosFace) call(t *testing.T, kind string, payload object) (int, string) {
	t.Helper()
	body, err := json.Marshal(object{"type": kind, strings.ToLower(kind): payload})
	if err != nil {
		t.Fatal(err)
	}
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://mesos/api/v1", bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("Accept", "application/json")
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(f.n.State, "mesos.sock"))
	}}}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

func (f *mesosFace) id() object { return object{"container_id": object{"value": f.name}} }

func (f *mesosFace) start(t *testing.T, name string, d death) bool {
	t.Helper()
	if d.pids > 0 || d.stopSignal != "" || d.init || d.shared || d.caps != nil || d.flags != nil {
		return false // a container of Mesos has none of these
	}
	f.name, f.failed = name, ""
	command := shell(d)
	launch := f.id()
	launch["command"] = object{"shell": false, "value": command[0], "arguments": command}
	launch["container"] = object{"type": "MESOS", "mesos": object{"image": object{"type": "DOCKER", "docker": object{"name": f.image}}}}
	if d.memory > 0 {
		launch["resources"] = []object{{"name": "mem", "type": "SCALAR", "scalar": object{"value": d.memory >> 20}}}
	}
	if code, text := f.call(t, "LAUNCH_CONTAINER", launch); code != http.StatusOK {
		if d.end.start == 0 {
			t.Fatalf("launch: %d %s", code, text)
		}
		f.failed = text
	}
	return true
}

func (f *mesosFace) signal(t *testing.T, sig syscall.Signal) bool {
	t.Helper()
	kill := f.id()
	kill["signal"] = int(sig)
	if code, text := f.call(t, "KILL_CONTAINER", kill); code != http.StatusOK {
		t.Errorf("kill: %d %s", code, text)
	}
	return true
}

// stop acts as a framework's executor.
func (f *mesosFace) stop(t *testing.T, sig syscall.Signal, grace time.Duration) {
	t.Helper()
	f.signal(t, sig)
	if grace == 0 {
		f.signal(t, syscall.SIGKILL)
	}
}

func (f *mesosFace) ended(t *testing.T) string {
	t.Helper()
	if f.failed != "" {
		return "failed " + f.failed
	}
	code, text := f.call(t, "WAIT_CONTAINER", f.id())
	var resp struct {
		Wait struct {
			Status  *int   `json:"exit_status"`
			State   string `json:"state"`
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"wait_container"`
	}
	if err := json.Unmarshal([]byte(text), &resp); err != nil || code != http.StatusOK {
		t.Errorf("wait: %d %s, %v", code, text, err)
		return ""
	}
	status := "unknown"
	if resp.Wait.Status != nil {
		status = fmt.Sprint(*resp.Wait.Status)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s %s %s", status, resp.Wait.State, resp.Wait.Reason, resp.Wait.Message))
}

func (*mesosFace) asks() (stop, signal string) { return "mesos KILL_CONTAINER", "mesos KILL_CONTAINER" }

func (*mesosFace) says(e ending, why string) string {
	if e.lost {
		return "unknown TASK_LOST  " + why
	}
	said := fmt.Sprint(e.code << 8)
	if e.signal != 0 {
		said = fmt.Sprint(e.signal)
	}
	if (e.oom || e.childOOM) && e.status() != 0 {
		said += " TASK_FAILED REASON_CONTAINER_LIMITATION_MEMORY " + why
	}
	return said
}

func (*mesosFace) told(*testing.T, ending, string) {} // its clients wait

func (f *mesosFace) remove(t *testing.T) {
	t.Helper()
	if f.failed == "" {
		if code, text := f.call(t, "REMOVE_CONTAINER", f.id()); code != http.StatusOK {
			t.Errorf("remove: %d %s", code, text)
		}
	}
}

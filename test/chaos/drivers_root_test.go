package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// grace is how long a container has to end by itself.
const grace = 20 * time.Second

// TestKillMatrixOfTheCommandLine is the kill matrix by `longshore run`, `exec`, `logs`, `stop`, `rm`.
func TestKillMatrixOfTheCommandLine(t *testing.T) {
	matrixOf(t, "[network]\nmode = \"builtin\"\n", func(m *matrix) driver { return &byCLI{m: m, image: m.n.Busybox(m.t)} })
}

// byCLI types commands.
type byCLI struct {
	m     *matrix
	image string
	force bool // the containers are another owner's
}

func (d *byCLI) start(name, script string) error {
	_, err := d.m.n.CLI("run", "-d", "--init=false", "--log-opt", "max-size=9000m", "--name", name, d.image, "sh", "-c", script)
	return err
}

func (d *byCLI) ended(name string) int {
	d.m.t.Helper()
	out, err := d.m.n.CLI("wait", name)
	code, bad := strconv.Atoi(strings.TrimSpace(out))
	if err != nil || bad != nil {
		d.m.t.Fatalf("wait %s: %q, %v", name, out, err)
	}
	return code
}

func (d *byCLI) output(name string) string {
	out, _ := d.m.n.CLI("logs", name) // it may not have any yet
	return out
}

func (d *byCLI) exec(name, script string) (int, error) {
	args := []string{"exec", name, "sh", "-c", script}
	if d.force {
		args = slices.Insert(args, 1, "--force")
	}
	_, err := d.m.n.CLI(args...)
	if ended := (*exec.ExitError)(nil); errors.As(err, &ended) && ended.ExitCode() < 125 {
		return ended.ExitCode(), nil
	}
	return 0, err
}

func (d *byCLI) stop(name string) error {
	_, err := d.m.n.CLI("stop", "--time", "20", name)
	return err
}

func (d *byCLI) remove(name string) { _, _ = d.m.n.CLI("rm", "-f", name) } // it may not exist

// TestKillMatrixOfMesos is the kill matrix by the Mesos agent API.
func TestKillMatrixOfMesos(t *testing.T) {
	matrixOf(t, "[face.mesos]\nenabled = true\n", func(m *matrix) driver {
		d := &byMesos{m: m, image: m.n.Busybox(m.t)}
		d.http.Transport = &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", filepath.Join(m.n.State, "mesos.sock"))
		}}
		return d
	})
}

// byMesos posts calls of the agent API.
type byMesos struct {
	m     *matrix
	image string
	http  http.Client
	execs atomic.Int32
}

type object = map[string]any

// post makes a call; the answer is an error unless it has one of the statuses.
func (d *byMesos) post(kind string, payload object, statuses ...int) ([]byte, error) {
	body, err := json.Marshal(object{"type": kind, strings.ToLower(kind): payload})
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(d.m.t.Context(), roottest.Patience())
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/api/v1", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json"}}
	answer, err := d.http.Do(r)
	if err != nil {
		return nil, err
	}
	text, err := io.ReadAll(answer.Body)
	_ = answer.Body.Close()
	if err == nil && !slices.Contains(statuses, answer.StatusCode) {
		err = fmt.Errorf("%s: %s %q", kind, answer.Status, text)
	}
	return text, err
}

func (d *byMesos) launch(id object, script string) error {
	_, err := d.post("LAUNCH_CONTAINER", object{
		"container_id": id, "command": object{"value": script},
		"container": object{"type": "MESOS", "mesos": object{"image": object{"type": "DOCKER", "docker": object{"name": d.image}}}},
	}, http.StatusOK)
	return err
}

func (d *byMesos) start(name, script string) error { return d.launch(object{"value": name}, script) }

// wait returns a container's status; 255 if it is lost for Mesos.
func (d *byMesos) wait(id object) (int, error) {
	text, err := d.post("WAIT_CONTAINER", object{"container_id": id}, http.StatusOK)
	if err != nil {
		return 0, err
	}
	var end struct {
		Wait struct {
			Status *int   `json:"exit_status"`
			State  string `json:"state"`
		} `json:"wait_container"`
	}
	if err := json.Unmarshal(text, &end); err != nil {
		return 0, err
	}
	switch s := end.Wait.Status; {
	case s == nil && end.Wait.State == "TASK_LOST":
		return 255, nil
	case s == nil:
		return 0, fmt.Errorf("no status in %s", text)
	case *s&0x7f != 0:
		return 128 + *s&0x7f, nil
	default:
		return *s >> 8, nil
	}
}

func (d *byMesos) ended(name string) int {
	d.m.t.Helper()
	code, err := d.wait(object{"value": name})
	if err != nil {
		d.m.t.Fatal(err)
	}
	return code
}

func (d *byMesos) output(name string) string {
	b, _ := os.ReadFile(filepath.Join(d.m.n.Root, "mesos", "containers", name, "stdout")) // not yet there
	return string(b)
}

// exec is a nested container with its parent's root, which is how Mesos executes in a container.
func (d *byMesos) exec(name, script string) (int, error) {
	id := object{"value": fmt.Sprintf("x%d", d.execs.Add(1)), "parent": object{"value": name}}
	if _, err := d.post("LAUNCH_NESTED_CONTAINER_SESSION", object{"container_id": id, "command": object{"value": script}}, http.StatusOK); err != nil {
		return 0, err
	}
	return d.wait(id)
}

func (d *byMesos) stop(name string) error {
	id := object{"container_id": object{"value": name}, "signal": 15}
	if _, err := d.post("KILL_CONTAINER", id, http.StatusOK, http.StatusNotFound); err != nil {
		return err
	}
	_, err := d.wait(object{"value": name})
	return err
}

func (d *byMesos) remove(name string) {
	id := object{"container_id": object{"value": name}}
	_, _ = d.post("KILL_CONTAINER", id, http.StatusOK)
	_, _ = d.post("WAIT_CONTAINER", id, http.StatusOK)
	if _, err := d.post("REMOVE_CONTAINER", id, http.StatusOK); err != nil && !strings.Contains(err.Error(), "Unknown root container") {
		d.m.t.Error(err)
	}
}

// TestKillMatrixOfNomad is the kill matrix by the calls that Nomad makes to its plugin, which makes
// them again where the agent died.
func TestKillMatrixOfNomad(t *testing.T) {
	matrixOf(t, "", func(m *matrix) driver {
		d := &byNomad{m: m, image: registered(m.t)}
		d.Client = nomadtest.Plugin(m.t, filepath.Join(nodetest.Bin(m.t), "longshore"))
		d.Configure(m.t, map[string]any{"socket": filepath.Join(m.n.State, "nomad.sock")}, &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{{BaseSpeed: 2000}}})
		return d
	})
}

// registered is the name of an image in a registry of the test's.
func registered(t *testing.T) string {
	t.Helper()
	built, err := nodetest.BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	return imagetest.NewRegistry(t).Push("busybox", "1", built)
}

const matrixAlloc = "5f0f0c4e-8d5c-4f3d-9a5d-000000000033"

// byNomad calls the plugin.
type byNomad struct {
	*nomadtest.Client
	m     *matrix
	image string
}

// task is the id of a task.
func (d *byNomad) task(name string) string { return matrixAlloc + "/" + name + "/aaaaaaaa" }

func (d *byNomad) dir(parts ...string) string {
	return filepath.Join(append([]string{d.m.n.Dir, "alloc", matrixAlloc}, parts...)...)
}

func (d *byNomad) start(name, script string) error {
	for _, dir := range []string{d.dir("alloc", "logs"), d.dir("alloc", "data"), d.dir(name, "local"), d.dir(name, "secrets")} {
		if err := os.MkdirAll(dir, 0o777); err != nil {
			return err
		}
	}
	task := nomadtest.Task(filepath.Join(d.m.n.Dir, "alloc"), matrixAlloc, name, "aaaaaaaa", map[string]any{"image": d.image, "command": "/bin/sh", "args": []string{"-c", script}})
	_, err := d.Driver.StartTask(d.m.t.Context(), &nomaddriver.StartTaskRequest{Task: task})
	return err
}

func (d *byNomad) ended(name string) int {
	d.m.t.Helper()
	w, err := d.Driver.WaitTask(d.m.t.Context(), &nomaddriver.WaitTaskRequest{TaskId: d.task(name)})
	if err != nil {
		d.m.t.Fatal(err)
	}
	if s := w.GetResult().GetSignal(); s != 0 {
		return 128 + int(s)
	}
	return int(w.GetResult().GetExitCode())
}

func (d *byNomad) output(name string) string {
	var all []byte
	for i := 0; ; i++ {
		b, err := os.ReadFile(d.dir("alloc", "logs", fmt.Sprintf("%s.stdout.%d", name, i)))
		if err != nil {
			return string(all)
		}
		all = append(all, b...)
	}
}

func (d *byNomad) exec(name, script string) (int, error) {
	e, err := d.Driver.ExecTask(d.m.t.Context(), &nomaddriver.ExecTaskRequest{TaskId: d.task(name), Command: []string{"/bin/sh", "-c", script}, Timeout: durationpb.New(grace)})
	code := int(e.GetResult().GetExitCode())
	if code == -2 { // Nomad's plugins return it for a lost status
		code = 255
	}
	return code, err
}

func (d *byNomad) stop(name string) error {
	_, err := d.Driver.StopTask(d.m.t.Context(), &nomaddriver.StopTaskRequest{TaskId: d.task(name), Signal: "SIGTERM", Timeout: durationpb.New(grace)})
	return err
}

func (d *byNomad) remove(name string) {
	_, err := d.Driver.DestroyTask(d.m.t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: d.task(name), Force: true})
	// A start that failed with the keeper has left no task, as Nomad expects.
	if err != nil && strings.Contains(err.Error(), "task not found") {
		if list, lerr := d.m.n.CLI("ps", "-a", "--json"); lerr == nil && !strings.Contains(list, name) {
			return
		}
	}
	if err != nil {
		d.m.t.Errorf("destroy %s: %v", name, err)
	}
}

// TestKillMatrixOfSwarm is the kill matrix by a manager's tasks. Its output and its programs in
// containers are those of the command line, because a manager has no call for the latter.
func TestKillMatrixOfSwarm(t *testing.T) {
	matrixOf(t, "[face.swarm]\nenabled = true\n", func(m *matrix) driver {
		d := &bySwarm{byCLI: byCLI{m: m, force: true}, image: registered(m.t), manager: swarmtest.New(m.t)}
		d.manager.Period = 5 * time.Second
		if _, err := m.n.CLI("swarm", "join", d.manager.Addr, "--token", d.manager.Token); err != nil {
			m.t.Fatal(err)
		}
		return d
	})
}

// bySwarm assigns tasks.
type bySwarm struct {
	byCLI
	image   string
	manager *swarmtest.Manager
}

// id is the container of a task.
func (d *bySwarm) id(name string) string {
	m := facesMatrix{matrix: d.m}
	r, _ := m.record(name)
	return r.ID
}

func (d *bySwarm) start(name, script string) error {
	task := swarmtest.Task(name, d.image, "sh", "-c", script)
	task.Spec.Restart = &swarmv1.RestartPolicy{Condition: swarmv1.RestartPolicy_NONE}
	task.Spec.GetContainer().StopGracePeriod = durationpb.New(grace)
	task.Spec.LogDriver = &swarmv1.Driver{Name: "json-file", Options: map[string]string{"max-size": "9000m"}}
	d.manager.Assign(task)
	return nil
}

func (d *bySwarm) ended(name string) int {
	d.m.t.Helper()
	var last *swarmv1.TaskStatus
	d.manager.Until(name+" has ended", func() bool {
		list := d.manager.Statuses(name)
		if len(list) > 0 {
			last = list[len(list)-1]
		}
		return last.GetState() > swarmv1.TaskState_RUNNING
	})
	return int(last.GetContainer().GetExitCode())
}

func (d *bySwarm) output(name string) string { return d.byCLI.output(d.id(name)) }

func (d *bySwarm) exec(name, script string) (int, error) { return d.byCLI.exec(d.id(name), script) }

func (d *bySwarm) stop(name string) error {
	d.manager.Want(name, swarmv1.TaskState_SHUTDOWN)
	d.ended(name)
	return nil
}

func (d *bySwarm) remove(name string) {
	d.m.t.Helper()
	d.manager.Remove(name)
	roottest.Eventually(d.m.t, "nothing is left of the task", func() bool { return d.id(name) == "" })
}

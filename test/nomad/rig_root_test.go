package nomad

import (
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/test/nodetest"
)

const allocID = "5f0f0c4e-8d5c-4f3d-9a5d-000000000001"

// rig is an agent and a plugin process that brings it calls.
type rig struct {
	*nodetest.Node
	*nomadtest.Client
	t     *testing.T
	image string
	dir   string // Nomad's directory of allocations
}

// newRig configures the plugin with more than where the agent is.
func newRig(t *testing.T, more map[string]any) *rig {
	t.Helper()
	return newRigOn(t, nodetest.Options{}, more)
}

// newRigOn is newRig with another agent.
func newRigOn(t *testing.T, o nodetest.Options, more map[string]any) *rig {
	t.Helper()
	built, err := nodetest.BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	n := nodetest.Start(t, o)
	r := &rig{Node: n, t: t, image: imagetest.NewRegistry(t).Push("busybox", "1", built), dir: filepath.Join(n.Dir, "alloc")}
	r.mkdir("alloc/logs", "alloc/data", "web/local", "web/secrets")
	r.Client = r.plugin(more)
	return r
}

func (r *rig) mkdir(dirs ...string) {
	r.t.Helper()
	for _, d := range dirs {
		if err := os.MkdirAll(filepath.Join(r.dir, allocID, d), 0o777); err != nil {
			r.t.Fatal(err)
		}
	}
}

func (r *rig) plugin(more map[string]any, args ...string) *nomadtest.Client {
	r.t.Helper()
	c := nomadtest.Plugin(r.t, filepath.Join(nodetest.Bin(r.t), "longshore"), args...)
	config := map[string]any{"socket": filepath.Join(r.State, "nomad.sock")}
	maps.Copy(config, more)
	c.Configure(r.t, config, &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{{BaseSpeed: 2000}}})
	return c
}

// task runs a shell script.
func (r *rig) task(suffix, script string) *nomaddriver.TaskConfig {
	return nomadtest.Task(r.dir, allocID, "web", suffix, map[string]any{"image": r.image, "command": "/bin/sh", "args": []string{"-c", script}})
}

func (r *rig) start(t *nomaddriver.TaskConfig) *nomaddriver.TaskHandle {
	r.t.Helper()
	resp, err := r.Driver.StartTask(r.t.Context(), &nomaddriver.StartTaskRequest{Task: t})
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.GetHandle()
}

func (r *rig) log(want string) {
	r.t.Helper()
	nodetest.Eventually(r.t, "the log says "+want, func() bool {
		b, _ := os.ReadFile(filepath.Join(r.dir, allocID, "alloc/logs/web.stdout.0"))
		return strings.Contains(string(b), want)
	})
}

func (r *rig) wait(id string) *nomaddriver.WaitTaskResponse {
	r.t.Helper()
	w, err := r.Driver.WaitTask(r.t.Context(), &nomaddriver.WaitTaskRequest{TaskId: id})
	if err != nil {
		r.t.Fatal(err)
	}
	return w
}

// given is a task of a name of its own, with its directories; more is put over
// its configuration, and a nil there takes a key away.
func (r *rig) given(name, script string, more map[string]any) *nomaddriver.TaskConfig {
	r.t.Helper()
	r.mkdir(name+"/local", name+"/secrets")
	config := map[string]any{"image": r.image, "command": "/bin/sh", "args": []string{"-c", script}}
	maps.Copy(config, more)
	maps.DeleteFunc(config, func(_ string, v any) bool { return v == nil })
	return nomadtest.Task(r.dir, allocID, name, "aaaaaaaa", config)
}

// said runs a task to its end, and returns its output and its result.
func (r *rig) said(t *nomaddriver.TaskConfig) (string, *nomaddriver.ExitResult) {
	r.t.Helper()
	r.start(t)
	w := r.wait(t.GetId())
	out, err := os.ReadFile(filepath.Join(r.dir, allocID, "alloc/logs", t.GetName()+".stdout.0"))
	if err != nil {
		r.t.Error(err)
	}
	r.destroy(t)
	return string(out), w.GetResult()
}

func (r *rig) destroy(t *nomaddriver.TaskConfig) {
	r.t.Helper()
	if _, err := r.Driver.DestroyTask(r.t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: t.GetId(), Force: true}); err != nil {
		r.t.Errorf("destroy %s: %v", t.GetName(), err)
	}
}

func (r *rig) stop(t *nomaddriver.TaskConfig, signal string, grace time.Duration) {
	r.t.Helper()
	if _, err := r.Driver.StopTask(r.t.Context(), &nomaddriver.StopTaskRequest{TaskId: t.GetId(), Signal: signal, Timeout: durationpb.New(grace)}); err != nil {
		r.t.Errorf("stop %s: %v", t.GetName(), err)
	}
}

func (r *rig) inspect(t *nomaddriver.TaskConfig) *nomaddriver.TaskStatus {
	r.t.Helper()
	resp, err := r.Driver.InspectTask(r.t.Context(), &nomaddriver.InspectTaskRequest{TaskId: t.GetId()})
	if err != nil {
		r.t.Fatal(err)
	}
	return resp.GetTask()
}

// nothingLeft asserts that no container and no sandbox is left of the tasks.
func (r *rig) nothingLeft() {
	r.t.Helper()
	for _, list := range [][]string{{"ps", "-a", "--json"}, {"sandboxes", "--json"}} {
		if out, err := r.CLI(list...); err != nil || strings.TrimSpace(out) != "[]" {
			r.t.Errorf("left: %v %s, %v", list, out, err)
		}
	}
	r.Check()
}

func (r *rig) eventuallyIn(file, want string) {
	r.t.Helper()
	nodetest.Eventually(r.t, file+" says "+want, func() bool {
		b, _ := os.ReadFile(file)
		return strings.Contains(string(b), want)
	})
}

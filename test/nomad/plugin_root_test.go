package nomad

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	nomadbase "github.com/longshore/longshore/api/nomad/base"
	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/face/nomad/nomadtest"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/internal/roottest"
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

func newRig(t *testing.T) *rig {
	t.Helper()
	built, err := nodetest.BusyboxImage()
	if err != nil {
		t.Skipf("no busybox-static: %v", err)
	}
	n := nodetest.Start(t, nodetest.Options{})
	r := &rig{Node: n, t: t, image: imagetest.NewRegistry(t).Push("busybox", "1", built), dir: filepath.Join(n.Dir, "alloc")}
	for _, d := range []string{"alloc/logs", "alloc/data", "web/local", "web/secrets"} {
		if err := os.MkdirAll(filepath.Join(r.dir, allocID, d), 0o777); err != nil {
			t.Fatal(err)
		}
	}
	r.Client = r.plugin()
	return r
}

func (r *rig) plugin() *nomadtest.Client {
	r.t.Helper()
	c := nomadtest.Plugin(r.t, filepath.Join(nodetest.Bin(r.t), "longshore"))
	c.Configure(r.t, map[string]any{"socket": filepath.Join(r.State, "nomad.sock")}, &nomadbase.ClientTopology{Cores: []*nomadbase.ClientTopologyCore{{BaseSpeed: 2000}}})
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

// TestATaskOverThePlugin is a task's whole life on the real kernel.
func TestATaskOverThePlugin(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t)
		task := r.task("aaaaaaaa", "trap 'echo hup' HUP; trap 'echo bye; exit 9' INT; echo up; touch /alloc/logs/x || echo no writing; while true; do sleep 0.05; done")
		r.start(task)
		r.log("no writing")
		if _, err := r.Driver.SignalTask(t.Context(), &nomaddriver.SignalTaskRequest{TaskId: task.GetId(), Signal: "SIGHUP"}); err != nil {
			t.Error(err)
		}
		r.log("hup")
		e, err := r.Driver.ExecTask(t.Context(), &nomaddriver.ExecTaskRequest{TaskId: task.GetId(), Command: []string{"/bin/sh", "-c", "echo $NOMAD_TASK_NAME; echo bad >&2; exit 4"}})
		if err != nil || e.GetResult().GetExitCode() != 4 || string(e.GetStdout()) != "web\n" || string(e.GetStderr()) != "bad\n" {
			t.Errorf("exec %v, %v", e, err)
		}
		s, err := r.Driver.TaskStats(t.Context(), &nomaddriver.TaskStatsRequest{TaskId: task.GetId()})
		if err != nil {
			t.Fatal(err)
		}
		if st, err := s.Recv(); err != nil || st.GetStats().GetAggResourceUsage().GetMemory().GetUsage() == 0 || len(st.GetStats().GetResourceUsageByPid()) == 0 {
			t.Errorf("figures %v, %v", st, err)
		}
		if _, err := r.Driver.StopTask(t.Context(), &nomaddriver.StopTaskRequest{TaskId: task.GetId(), Signal: "SIGINT", Timeout: durationpb.New(time.Minute)}); err != nil {
			t.Error(err)
		}
		if w := r.wait(task.GetId()); w.GetResult().GetExitCode() != 9 || w.GetResult().GetSignal() != 0 {
			t.Errorf("wait %v", w)
		}
		r.log("bye")
		if _, err := r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId(), Force: true}); err != nil {
			t.Error(err)
		}
		// What a task leaves running goes with it, and a limit of 10 MiB is enough to
		// start one.
		small := r.task("bbbbbbbb", "sleep 987 & echo small; sleep 987")
		small.Resources.AllocatedResources.Memory.MemoryMb = 10
		r.start(small)
		r.log("small")
		if _, err := r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: small.GetId(), Force: true}); err != nil {
			t.Error(err)
		}
		if left := nodetest.Processes("busybox", "987"); len(left) > 0 {
			t.Errorf("left: %v", left)
		}
		r.Check()
	})
}

// TestThePluginsProcess: ^C is not for it, it goes when it is told, and tasks do
// not care.
func TestThePluginsProcess(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t)
		task := r.task("aaaaaaaa", "echo up; until test -e /alloc/data/go; do sleep 0.05; done; exit 5")
		h := r.start(task)
		r.log("up")
		r.Signal(t, syscall.SIGINT)
		if _, err := r.Base.PluginInfo(t.Context(), &nomadbase.PluginInfoRequest{}); err != nil {
			t.Errorf("after ^C: %v", err)
		}
		// A second client of the same process, as a Nomad that was killed comes back.
		nomadtest.Reattach(t, r.Address, r.Log)
		r.Shutdown(t)
		if strings.Contains(r.Log.String(), "panic") {
			t.Errorf("it said %s", r.Log)
		}
		r.Kill() // the agent, too
		if err := os.WriteFile(filepath.Join(r.dir, allocID, "alloc/data/go"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		r.Client = r.plugin()
		waited := make(chan *nomaddriver.WaitTaskResponse, 1)
		go func() {
			w, err := r.Driver.WaitTask(t.Context(), &nomaddriver.WaitTaskRequest{TaskId: task.GetId()})
			if err != nil {
				t.Error(err)
			}
			waited <- w
		}()
		r.Up()
		if _, err := r.Driver.RecoverTask(t.Context(), &nomaddriver.RecoverTaskRequest{Handle: h}); err != nil {
			t.Errorf("recover: %v", err)
		}
		if w := <-waited; w.GetResult().GetExitCode() != 5 {
			t.Errorf("wait %v", w)
		}
		if _, err := r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId(), Force: true}); err != nil {
			t.Error(err)
		}
		r.Check()
	})
}

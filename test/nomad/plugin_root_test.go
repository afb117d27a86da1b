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
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestATaskOverThePlugin is a task's whole life on the real kernel.
func TestATaskOverThePlugin(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		task := r.task("aaaaaaaa", "trap 'echo hup' HUP; trap 'echo bye; exit 9' INT; echo up; touch /alloc/logs/x || echo no writing; while true; do sleep 0.05; done")
		r.start(task)
		r.log("no writing")
		if _, err := r.Driver.SignalTask(t.Context(), &nomaddriver.SignalTaskRequest{TaskId: task.GetId(), Signal: "SIGHUP"}); err != nil {
			t.Error(err)
		}
		r.log("hup")
		e, err := r.Driver.ExecTask(t.Context(), &nomaddriver.ExecTaskRequest{TaskId: task.GetId(), Command: []string{"/bin/sh", "-c", "echo $NOMAD_TASK_NAME; echo bad >&2; exit 4"}})
		if out := string(e.GetStdout()); err != nil || e.GetResult().GetExitCode() != 4 || out != "web\nbad\n" && out != "bad\nweb\n" || string(e.GetStderr()) != "bad\n" {
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
		// A task's other processes go with it, and a limit of 10 MiB is enough to start one.
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

// TestThePluginsProcess: ^C is not for it, a shutdown ends it, and tasks do not care.
func TestThePluginsProcess(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
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
		r.Client = r.plugin(nil)
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

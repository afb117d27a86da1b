package nomad

import (
	"strings"
	"syscall"
	"testing"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestTheAgentDiesOverATask kills it after every stage of a task's start and of its
// destruction. The plugin makes the call again, and Nomad learns nothing of it.
func TestTheAgentDiesOverATask(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRig(t, nil)
		r.said(r.given("warm", "exit 0", nil)) // pulls the image
		for _, stage := range engine.Stages() {
			switch verb, _, _ := strings.Cut(stage, "."); verb {
			case "create_sandbox", "create":
				t.Run(stage, func(t *testing.T) { r.diesInAStart(t, stage) })
			case "stop_sandbox", "remove", "remove_sandbox":
				t.Run(stage, func(t *testing.T) { r.diesInADestroy(t, stage) })
			}
		}
	})
}

// dies kills the agent at a stage of a call, which continues.
func (r *rig) dies(t *testing.T, stage string, call func() error) {
	t.Helper()
	r.Kill()
	r.SetEnv("LONGSHORE_FAILPOINT=" + stage)
	r.Up()
	answered := make(chan error, 1)
	go func() { answered <- call() }()
	if ws := r.Died(); ws.Signal() != syscall.SIGKILL {
		t.Errorf("the agent did not die at the stage: %#x", ws)
	}
	r.SetEnv()
	r.Up()
	if err := <-answered; err != nil {
		t.Errorf("the call: %v", err)
	}
	r.Check()
}

func (r *rig) diesInAStart(t *testing.T, stage string) {
	task := r.given("crash", "exec sleep 4326", nil)
	var started *nomaddriver.StartTaskResponse
	r.dies(t, stage, func() (err error) {
		started, err = r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task})
		return err
	})
	if _, err := r.Driver.RecoverTask(t.Context(), &nomaddriver.RecoverTaskRequest{Handle: started.GetHandle()}); err != nil {
		t.Errorf("the handle: %v", err)
	}
	nodetest.Eventually(t, "the task runs", func() bool { return len(nodetest.Processes("sleep", "4326")) > 0 })
	if running := nodetest.Processes("sleep", "4326"); len(running) != 1 {
		t.Errorf("the task runs as %v", running)
	}
	r.destroy(task)
	r.nothingLeft()
}

func (r *rig) diesInADestroy(t *testing.T, stage string) {
	task := r.given("crash", "exec sleep 4326", nil)
	if _, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: task}); err != nil {
		t.Fatal(err)
	}
	r.dies(t, stage, func() error {
		_, err := r.Driver.DestroyTask(t.Context(), &nomaddriver.DestroyTaskRequest{TaskId: task.GetId(), Force: true})
		return err
	})
	if left := nodetest.Processes("sleep", "4326"); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	r.nothingLeft()
}

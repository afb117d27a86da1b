package nomad

import (
	"strings"
	"testing"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
	"github.com/longshore/longshore/internal/roottest"
	"github.com/longshore/longshore/test/nodetest"
)

// TestAnIdleTaskSleeps by its key sleep_after. An end of the task wakes it.
func TestAnIdleTaskSleeps(t *testing.T) {
	roottest.Run(t, func(t *testing.T) {
		r := newRigOn(t, nodetest.Options{}, nil)
		_, err := r.Driver.StartTask(t.Context(), &nomaddriver.StartTaskRequest{Task: r.given("refused", "true", map[string]any{"sleep_after": "soon"})})
		if err == nil || !strings.Contains(err.Error(), "config.sleep_after") {
			t.Errorf("no duration: %v", err)
		}
		task := r.given("idle", "exec sleep 1000", map[string]any{"sleep_after": "1s"})
		r.start(task)
		r.Bed(t).FallsAsleep("nomad")
		if _, err := r.Driver.StopTask(t.Context(), &nomaddriver.StopTaskRequest{TaskId: task.GetId(), Signal: "SIGKILL"}); err != nil {
			t.Error(err)
		}
		if w := r.wait(task.GetId()); w.GetResult().GetSignal() != 9 {
			t.Errorf("its end: %v", w)
		}
		r.destroy(task)
		r.Check()
	})
}

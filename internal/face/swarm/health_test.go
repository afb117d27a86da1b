package swarm_test

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
	"github.com/longshore/longshore/internal/roottest"
)

// checkedTask is a task that runs "check" again and again.
func checkedTask(id string, edit func(h *swarmv1.HealthConfig)) *swarmv1.Task {
	task := swarmtest.Task(id, image, "sleep")
	h := &swarmv1.HealthConfig{Test: []string{"CMD", "check"}, Interval: durationpb.New(2 * time.Millisecond), Retries: 3}
	if edit != nil {
		edit(h)
	}
	task.GetSpec().GetContainer().Healthcheck = h
	return task
}

// fails makes the health checks fail, from the first of the given probes to the last; the others
// succeed.
func (r *rig) fails(first, last int32) (probes *atomic.Int32) {
	probes = &atomic.Int32{}
	r.Supervisor.Program("check", func(p *enginetest.Process) int {
		n := probes.Add(1)
		if n < first || n > last {
			return 0
		}
		_, _ = fmt.Fprintf(p.Stdout(), "probe %d\nsays no\n", n)
		return 1
	})
	return probes
}

// removes asserts that nothing is left when the tasks are removed and the node has left.
func (r *rig) removes(ids ...string) {
	r.t.Helper()
	for _, id := range ids {
		r.Remove(id)
		r.gone(id)
	}
	if err := r.face.Leave(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.clean()
}

// TestATaskRunsWhenItIsHealthy, not before.
func TestATaskRunsWhenItIsHealthy(t *testing.T) {
	r := newRig(t)
	r.join()
	probes := r.fails(1, 20)
	r.Assign(checkedTask("a", func(h *swarmv1.HealthConfig) {
		h.StartPeriod, h.StartInterval = durationpb.New(time.Hour), durationpb.New(time.Millisecond)
	}))
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	if n := probes.Load(); n < 21 {
		t.Errorf("it runs after %d probes", n)
	}
	r.rises("a", swarmv1.TaskState_RUNNING)
	r.removes("a")
}

// TestAnUnhealthyTaskHasFailed, before it runs and afterwards, also when its program ends well at
// the signal. The last probe's output is the error.
func TestAnUnhealthyTaskHasFailed(t *testing.T) {
	for name, first := range map[string]int32{"starting": 1, "running": 5} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.join()
			r.fails(first, 1<<30)
			task := checkedTask("a", nil)
			task.GetSpec().GetContainer().Command = []string{"obeys"}
			r.Assign(task)
			r.happens("a", core.EventContainerStarted)
			ref := core.Ref{Container: r.container("a").ID}
			r.Supervisor.Ignore(ref, 15)
			roottest.Eventually(r.t, "it is told to end", func() bool { return len(r.Supervisor.Signals(ref)) > 0 })
			r.Supervisor.Exit(ref, 0)
			s := r.Reaches("a", swarmv1.TaskState_FAILED)
			if !strings.HasPrefix(s.GetErr(), "unhealthy container: probe ") || !strings.HasSuffix(s.GetErr(), " says no") {
				t.Errorf("error %q", s.GetErr())
			}
			ran := false
			for _, s := range r.Statuses("a") {
				ran = ran || s.GetState() == swarmv1.TaskState_RUNNING
			}
			if ran != (name == "running") {
				t.Errorf("it has run: %v", ran)
			}
			r.removes("a")
		})
	}
}

// TestTheImagesCheck is the task's, unless that has one of its own, or none.
func TestTheImagesCheck(t *testing.T) {
	r := newRig(t)
	r.join()
	probes := r.fails(1, 1<<30)
	r.Images.OfferAs("checked:latest", core.Image{
		ID:     "sha256:c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00c0ffee00",
		Health: &core.HealthCheck{Test: []string{"CMD-SHELL", "-x"}, Interval: time.Millisecond, Retries: 2}, Shell: []string{"check", "-c"},
	})
	task := func(id string, h *swarmv1.HealthConfig) *swarmv1.Task {
		task := swarmtest.Task(id, "checked:latest", "sleep")
		task.GetSpec().GetContainer().Healthcheck = h
		return task
	}
	r.Assign(task("none", &swarmv1.HealthConfig{Test: []string{"NONE"}}))
	r.Reaches("none", swarmv1.TaskState_RUNNING)
	if n := probes.Load(); n != 0 {
		t.Errorf("%d probes of a task that wants none", n)
	}
	r.Assign(task("its", nil))
	if s := r.Reaches("its", swarmv1.TaskState_FAILED); !strings.Contains(s.GetErr(), "says no") {
		t.Errorf("the image's check: %q", s.GetErr())
	}
	r.Supervisor.Program("true", func(*enginetest.Process) int { return 0 })
	r.Assign(task("own", &swarmv1.HealthConfig{Test: []string{"CMD", "true"}}))
	r.Reaches("own", swarmv1.TaskState_RUNNING)
}

// TestAProgramThatEndsBeforeItIsHealthy has failed, or is complete, as without a check.
func TestAProgramThatEndsBeforeItIsHealthy(t *testing.T) {
	r := newRig(t)
	r.join()
	for id, want := range map[string]swarmv1.TaskState{"well": swarmv1.TaskState_COMPLETE, "badly": swarmv1.TaskState_FAILED} {
		task := checkedTask(id, func(h *swarmv1.HealthConfig) { h.Interval = durationpb.New(time.Hour) })
		task.GetSpec().GetContainer().Command = []string{id}
		r.Assign(task)
		if s := r.Reaches(id, want); (s.GetErr() != "") != (id == "badly") {
			t.Errorf("%s: %v", id, s)
		}
		r.rises(id, want)
	}
}

// TestAnAgentsRestartContinuesTheChecks: a task that was running stays so, one that was not yet
// healthy becomes it, nothing is started again, and a later failure is seen.
func TestAnAgentsRestartContinuesTheChecks(t *testing.T) {
	r := newRig(t)
	r.join()
	r.fails(1, 0)
	r.Assign(checkedTask("runs", nil))
	r.Reaches("runs", swarmv1.TaskState_RUNNING)
	asked := make(chan struct{})
	var once atomic.Bool
	r.Supervisor.Program("slow", func(p *enginetest.Process) int {
		if once.CompareAndSwap(false, true) {
			close(asked)
			<-p.Killed
		}
		return 0
	})
	r.Assign(checkedTask("starts", func(h *swarmv1.HealthConfig) { h.Test = []string{"CMD", "slow"} }))
	<-asked
	a, b := r.container("runs"), r.container("starts")
	r.down()
	r.start()
	r.Reaches("starts", swarmv1.TaskState_RUNNING)
	r.rises("runs", swarmv1.TaskState_RUNNING)
	for id, c := range map[string]core.Container{"runs": a, "starts": b} {
		if now := r.container(id); now.ID != c.ID || now.Main.Pid != c.Main.Pid || len(now.Execs) > 0 {
			t.Errorf("%s was started again, or has execs: %v", id, now.Execs)
		}
	}
	r.fails(1, 1<<30)
	if s := r.Reaches("runs", swarmv1.TaskState_FAILED); !strings.Contains(s.GetErr(), "unhealthy container") {
		t.Errorf("%v", s)
	}
}

// TestTheAgentDiesOverAnUnhealthyTask: it has failed all the same, however its program took the stop.
func TestTheAgentDiesOverAnUnhealthyTask(t *testing.T) {
	r := newRig(t)
	r.join()
	r.fails(1, 1<<30)
	r.Supervisor.Fail(func(call string) error {
		if call == "Signal" {
			return errors.New("no signal gets through")
		}
		return nil
	})
	r.Assign(checkedTask("a", nil))
	r.happens("a", core.EventContainerStarted)
	roottest.Eventually(r.t, "it is to end", func() bool { return r.container("a").Main.StopRequest != nil })
	c := r.container("a")
	r.down()
	r.Supervisor.Fail(nil)
	r.Supervisor.Exit(core.Ref{Container: c.ID}, 0)
	r.start()
	if s := r.Reaches("a", swarmv1.TaskState_FAILED); s.GetErr() != "unhealthy container" {
		t.Errorf("%v", s)
	}
}

// TestAStopEndsTheChecks: nobody finds a task unhealthy that is to end.
func TestAStopEndsTheChecks(t *testing.T) {
	r := newRig(t)
	r.join()
	probes := r.fails(1, 1<<30)
	r.Assign(checkedTask("a", func(h *swarmv1.HealthConfig) { h.Retries = 1 << 30 }))
	roottest.Eventually(r.t, "it is probed", func() bool { return probes.Load() > 0 })
	r.Want("a", swarmv1.TaskState_SHUTDOWN)
	r.Reaches("a", swarmv1.TaskState_SHUTDOWN)
	r.rises("a", swarmv1.TaskState_SHUTDOWN)
	r.removes("a")
}

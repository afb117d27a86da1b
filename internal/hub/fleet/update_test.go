package fleet

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// updates is a change of a service's update, and the change of a version that fails on nodes.
func updates(c *swarmv1.UpdateConfig) func(*swarmv1.ServiceSpec) {
	return func(s *swarmv1.ServiceSpec) { s.Update, s.Rollback = c, &swarmv1.UpdateConfig{Parallelism: 2} }
}

// moment counts tasks at one step of an update.
type moment struct{ running, updating int }

// follow schedules and obeys until nothing changes, and returns the moments on the way. Tasks of the
// version that fails end as soon as they are to run.
func (w *world) follow(t *testing.T, fails uint64, on ...string) (all []moment) {
	t.Helper()
	for range 900 {
		n, again := w.schedule(t)
		m, ports := moment{}, map[string]int{}
		for _, task := range w.Tasks {
			if task.State() == swarmv1.TaskState_RUNNING {
				m.running++
				ports[fmt.Sprint(task.M.GetServiceId(), task.M.GetSlot(), task.M.GetNodeId())]++
			}
			if s := w.Services[task.M.GetServiceId()].M; task.M.GetSpecVersion().GetIndex() == s.GetSpecVersion().GetIndex() && !task.Ended() && task.RunningAt.IsZero() {
				m.updating++
			}
		}
		all = append(all, m)
		changed := w.obey()
		for id, task := range w.Tasks {
			if !task.Ended() && task.M.GetSpecVersion().GetIndex() == fails && task.M.GetDesiredState() == swarmv1.TaskState_RUNNING && (len(on) == 0 || slices.Contains(on, task.M.GetNodeId())) {
				w.report(id, swarmv1.TaskState_FAILED)
			}
		}
		if n > 0 || changed {
			w.Now = w.Now.Add(time.Second / 10)
			continue
		}
		if again.IsZero() || again.After(w.Now.Add(time.Minute)) {
			return all
		}
		w.Now = again
	}
	return all
}

// least and most are of the tasks that ran at once.
func least(all []moment) (n int) {
	return slices.MinFunc(all, func(a, b moment) int { return a.running - b.running }).running
}

func most(all []moment) (n int) {
	return slices.MaxFunc(all, func(a, b moment) int { return a.running - b.running }).running
}

// update tells how far an update is.
func (w *world) update(t *testing.T, when, want string) {
	t.Helper()
	s := w.Services["web"].M.GetUpdateStatus()
	if got := strings.TrimSuffix(Progress(s)+": "+s.GetMessage(), ": "); !strings.HasPrefix(got, want) || (want == "") != (got == "") {
		t.Errorf("%s the update is %q, want %q", when, got, want)
	}
}

// TestUpdates: how many run at once, and for how long, by order and parallelism.
func TestUpdates(t *testing.T) {
	t.Parallel()
	none := swarmv1.RestartPolicy{}
	for name, c := range map[string]struct {
		config      *swarmv1.UpdateConfig
		label       string
		least, most int
		takes       time.Duration // at least, and not as long again
	}{
		"by default":    {nil, "", 3, 4, 20 * time.Second},
		"two at a time": {&swarmv1.UpdateConfig{Parallelism: 2}, "", 2, 4, 10 * time.Second},
		"all at once":   {&swarmv1.UpdateConfig{}, "", 0, 4, 5 * time.Second},
		"start-first":   {&swarmv1.UpdateConfig{Parallelism: 1, Order: swarmv1.UpdateConfig_START_FIRST}, "", 4, 5, 20 * time.Second},
		"with a delay":  {&swarmv1.UpdateConfig{Parallelism: 1, Delay: durationpb.New(30 * time.Second)}, "", 3, 4, 2 * time.Minute},
		"watched":       {&swarmv1.UpdateConfig{Parallelism: 4, Monitor: durationpb.New(40 * time.Second)}, "", 0, 4, 40 * time.Second},
		"prefetched":    {&swarmv1.UpdateConfig{Parallelism: 1}, "true", 3, 4, 20 * time.Second},
	} {
		w := newWorld("a", "b")
		change := func(s *swarmv1.ServiceSpec) {
			updates(c.config)(s)
			s.Annotations.Labels = map[string]string{Prefetch: c.label}
			s.Task.Restart = &none
		}
		w.declare("web", 4, change)
		w.follow(t, 0)
		w.update(t, name+", at first", "")
		w.declare("web", 4, change)
		begin := w.Now
		all := w.follow(t, 0)
		w.is(t, name, "web.1@a:2 web.2@b:2 web.3@a:2 web.4@b:2")
		w.update(t, name, "completed: update completed")
		if low, high := least(all), most(all); low != c.least || high != c.most {
			t.Errorf("%s: %d to %d tasks ran at once, want %d to %d", name, low, high, c.least, c.most)
		}
		if took := w.Now.Sub(begin); took < c.takes || took > 2*c.takes {
			t.Errorf("%s: it took %s, want %s", name, took, c.takes)
		}
		if u := w.Services["web"].M.GetUpdateStatus(); !u.GetStartedAt().AsTime().Equal(begin) || !u.GetCompletedAt().AsTime().After(begin) {
			t.Errorf("%s: %v", name, u)
		}
	}
}

// TestAVersionThatFails is paused, continues or is rolled back, as the service says.
func TestAVersionThatFails(t *testing.T) {
	t.Parallel()
	failing := func(action swarmv1.UpdateConfig_FailureAction, change func(*swarmv1.UpdateConfig)) *swarmv1.UpdateConfig {
		c := &swarmv1.UpdateConfig{Parallelism: 1, FailureAction: action}
		if change != nil {
			change(c)
		}
		return c
	}
	once := func(s *swarmv1.ServiceSpec) { s.Task.Restart = &swarmv1.RestartPolicy{} }
	for name, c := range map[string]struct {
		config *swarmv1.UpdateConfig
		label  string
		on     []string // where it fails
		want   string
		update string
	}{
		"pause":      {failing(swarmv1.UpdateConfig_PAUSE, nil), "", nil, "web.2@b:1 web.3@c:1 web.4@d:1", "paused: update paused due to failure or early termination of task t5"},
		"continue":   {failing(swarmv1.UpdateConfig_CONTINUE, nil), "", []string{"a", "c"}, "web.2@b:2 web.4@d:2", "completed: update completed"},
		"roll back":  {failing(swarmv1.UpdateConfig_ROLLBACK, nil), "", nil, "web.1@a:1 web.2@b:1 web.3@c:1 web.4@d:1", "rolled back: rollback completed"},
		"one of 4":   {failing(swarmv1.UpdateConfig_PAUSE, func(c *swarmv1.UpdateConfig) { c.MaxFailureRatio = 0.25 }), "", []string{"b"}, "web.1@a:2 web.3@c:2 web.4@d:2", "completed"},
		"two of 4":   {failing(swarmv1.UpdateConfig_PAUSE, func(c *swarmv1.UpdateConfig) { c.MaxFailureRatio = 0.25 }), "", []string{"b", "c"}, "web.1@a:2 web.4@d:1", "paused: update paused due to failure"},
		"prefetched": {failing(swarmv1.UpdateConfig_PAUSE, nil), "true", []string{"b"}, "web.1@a:2 web.3@c:1 web.4@d:1", "paused"},
		"start-first": {
			failing(swarmv1.UpdateConfig_PAUSE, func(c *swarmv1.UpdateConfig) { c.Order = swarmv1.UpdateConfig_START_FIRST }), "", nil,
			"web.1@a:1 web.2@b:1 web.3@c:1 web.4@d:1", "paused",
		},
	} {
		w := newWorld("a", "b", "c", "d")
		change := func(s *swarmv1.ServiceSpec) {
			updates(c.config)(s)
			once(s)
			s.Annotations.Labels = map[string]string{Prefetch: c.label}
		}
		w.declare("web", 4, change)
		w.follow(t, 0)
		w.declare("web", 4, change)
		w.follow(t, 2, c.on...)
		w.is(t, name, c.want)
		w.update(t, name, c.update)
	}
}

// TestTasksThatEndLater, or that may end, or that the hub ended, are no failure of an update.
func TestTasksThatEndLater(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		after time.Duration
		ends  swarmv1.TaskState
		may   swarmv1.RestartPolicy_RestartCondition
		want  string
	}{
		"within its time": {4 * time.Second, swarmv1.TaskState_FAILED, swarmv1.RestartPolicy_ANY, "paused"},
		"later":           {6 * time.Second, swarmv1.TaskState_FAILED, swarmv1.RestartPolicy_ANY, "completed"},
		"its work done":   {time.Second, swarmv1.TaskState_COMPLETE, swarmv1.RestartPolicy_ON_FAILURE, "completed"},
		"too early":       {time.Second, swarmv1.TaskState_COMPLETE, swarmv1.RestartPolicy_ANY, "paused"},
	} {
		w := newWorld("a", "b")
		change := func(s *swarmv1.ServiceSpec) { s.Task.Restart = &swarmv1.RestartPolicy{Condition: c.may} }
		w.declare("web", 1, change)
		w.settle(t)
		w.declare("web", 1, change)
		for {
			w.schedule(t)
			w.obey()
			if w.Tasks["t2"].State() == swarmv1.TaskState_RUNNING {
				break
			}
		}
		w.Now = w.Now.Add(c.after)
		w.report("t2", c.ends)
		w.settle(t)
		w.update(t, name, c.want)
	}
}

// TestAPausedUpdate goes no further until it is resumed, and then earlier failures count no more.
func TestAPausedUpdate(t *testing.T) {
	t.Parallel()
	w := newWorld("a", "b", "c")
	w.declare("web", 3)
	w.settle(t)
	w.declare("web", 3, updates(nil))
	w.follow(t, 2)
	w.update(t, "as it fails", "paused")
	w.settle(t)
	w.is(t, "as it does well later", "web.1@a:2 web.2@b:1 web.3@c:1")
	w.update(t, "as it does well later", "paused")
	next, err := Resume(w.Services["web"].M, w.Now)
	if err != nil {
		t.Fatal(err)
	}
	w.Services["web"] = recordOf(next)
	w.settle(t)
	w.is(t, "resumed", "web.1@a:2 web.2@b:2 web.3@c:2")
	w.update(t, "resumed", "completed")

	next, err = Rollback(w.Services["web"].M, w.Now)
	if err != nil {
		t.Fatal(err)
	}
	w.Services["web"] = recordOf(next)
	w.follow(t, 1, "b")
	w.update(t, "rolled back", "rollback paused: rollback paused due to failure")
	if got := w.String(); !strings.HasPrefix(got, "web.1@a:1 ") || !strings.HasSuffix(got, " web.3@c:2") {
		t.Errorf("rolled back: %s", got)
	}
}

// TestNodesThatAreAway follow when they are back, in order, to the last version; and a node that
// goes away with its new task has the update stop.
func TestNodesThatAreAway(t *testing.T) {
	t.Parallel()
	w := newWorld("a", "b", "c", "d")
	down := func(id string, s swarmv1.NodeStatus_State) {
		w.node(id).Status.State, w.node(id).Meta.UpdatedAt = s, timestamppb.New(w.Now)
	}
	w.declare("web", 0)
	w.settle(t)
	down("b", swarmv1.NodeStatus_DOWN)
	down("c", swarmv1.NodeStatus_DOWN)
	w.node("d").Spec.Availability = swarmv1.NodeSpec_PAUSE
	w.declare("web", 0)
	w.settle(t)
	w.is(t, "while b, c and d are away", "web.0@a:2 web.0@b:1 web.0@c:1 web.0@d:1")
	w.update(t, "while b, c and d are away", "completed: update completed; 3 tasks follow when their nodes are back")
	w.declare("web", 0)
	w.settle(t)
	down("b", swarmv1.NodeStatus_READY)
	down("c", swarmv1.NodeStatus_READY)
	all := w.follow(t, 0)
	w.is(t, "b and c are back", "web.0@a:3 web.0@b:3 web.0@c:3 web.0@d:1")
	if n := least(all); n != 3 {
		t.Errorf("%d tasks ran while b and c followed, want 3", n)
	}
	w.update(t, "b and c are back", "completed: update completed; 1 tasks follow")

	down("b", swarmv1.NodeStatus_UNKNOWN) // as after a restart of the hub
	w.declare("web", 0)
	w.settle(t)
	w.update(t, "b is not back yet", "updating")
	down("b", swarmv1.NodeStatus_READY)
	w.settle(t)
	w.update(t, "b is back", "completed")

	w.declare("web", 0)
	for w.Tasks["t4"].M == nil || !strings.Contains(w.String(), "web.0@a:5") {
		w.schedule(t)
		w.obey()
	}
	down("a", swarmv1.NodeStatus_DOWN)
	w.settle(t)
	w.update(t, "a goes away", "paused: update paused as node a went away with the new task")
}

// TestASecondUpdate in the middle of one that starts first leaves no task of either.
func TestASecondUpdate(t *testing.T) {
	t.Parallel()
	for _, label := range []string{"", "true"} {
		w := newWorld("a", "b")
		change := func(s *swarmv1.ServiceSpec) {
			s.Update = &swarmv1.UpdateConfig{Parallelism: 1}
			if label == "" {
				s.Update.Order = swarmv1.UpdateConfig_START_FIRST
			}
			s.Annotations.Labels = map[string]string{Prefetch: label}
		}
		w.declare("web", 2, change)
		w.settle(t)
		w.declare("web", 2, change)
		w.schedule(t) // and the new task is not even there
		w.declare("web", 2, change)
		w.settle(t)
		w.is(t, "twice "+label, "web.1@a:3 web.2@b:3")
		w.declare("web", 2, change)
		w.schedule(t)
		next, err := Rollback(w.Services["web"].M, w.Now)
		if err != nil {
			t.Fatal(err)
		}
		w.Services["web"] = recordOf(next)
		w.settle(t)
		w.is(t, "and back "+label, "web.1@a:3 web.2@b:3")
		w.update(t, "and back "+label, "rolled back")
	}
}

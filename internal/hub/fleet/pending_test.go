package fleet

import (
	"strings"
	"testing"
	"time"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// reasons returns the error texts of the pending tasks.
func (w *world) reasons() (all []string) {
	for _, task := range Pending(w.State) {
		all = append(all, task.Status.M.GetErr())
	}
	return all
}

func TestPendingTasksNameEachNodeAndItsReason(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(w *world, s *swarmv1.ServiceSpec)
		want   []string
	}{
		{"memory", func(_ *world, s *swarmv1.ServiceSpec) {
			s.Task.Resources = &swarmv1.ResourceRequirements{Reservations: &swarmv1.Resources{MemoryBytes: 5 << 30}}
		}, []string{"no suitable node (insufficient resources, memory: a, b, c)"}},
		{"processors", func(_ *world, s *swarmv1.ServiceSpec) {
			s.Task.Resources = &swarmv1.ResourceRequirements{Reservations: &swarmv1.Resources{NanoCpus: 5e9}}
		}, []string{"insufficient resources, CPUs: a, b, c"}},
		{"constraints and states", func(w *world, s *swarmv1.ServiceSpec) {
			s.Task.Placement = &swarmv1.Placement{Constraints: []string{"node.labels.site==none"}}
			w.silence("a")
			w.node("b").Spec.Availability = swarmv1.NodeSpec_DRAIN
		}, []string{"not available for new tasks, down: a", "not available for new tasks, availability drain: b", "scheduling constraints not satisfied: c"}},
		{"not accepted", func(w *world, _ *swarmv1.ServiceSpec) {
			for _, n := range w.Nodes {
				n.Spec.Membership = swarmv1.NodeSpec_PENDING
			}
		}, []string{"not accepted: a, b, c"}},
		{"plugins", func(w *world, s *swarmv1.ServiceSpec) {
			for _, n := range w.Nodes {
				n.Description.Engine = &swarmv1.EngineDescription{}
			}
			s.Task.Networks = []*swarmv1.NetworkAttachmentConfig{{Target: "none"}}
		}, []string{"missing plugin: a, b, c"}},
		{"no nodes", func(w *world, _ *swarmv1.ServiceSpec) { w.Nodes = nil }, []string{"no suitable node (there is none)"}},
	} {
		w := newWorld("a", "b", "c")
		w.declare("web", 1, func(s *swarmv1.ServiceSpec) { c.change(w, s) })
		w.settle(t)
		got := w.reasons()
		if len(got) != 1 {
			t.Errorf("%s: %d pending tasks: %q", c.name, len(got), got)
			continue
		}
		for _, text := range c.want {
			if !strings.Contains(got[0], text) {
				t.Errorf("%s: %q, want %q", c.name, got[0], text)
			}
		}
	}
}

func TestOnlyTasksThatNoNodeTakesArePending(t *testing.T) {
	w := newWorld("a", "b")
	w.declare("web", 3, func(s *swarmv1.ServiceSpec) { s.Task.Placement = &swarmv1.Placement{MaxReplicas: 1} })
	w.settle(t)
	list := Pending(w.State)
	if len(list) != 1 || list[0].M.GetSlot() != 3 || list[0].State() != swarmv1.TaskState_PENDING || list[0].M.GetNodeId() != "" || len(list[0].M.GetId()) != 25 ||
		!strings.Contains(list[0].Status.M.GetErr(), "max replicas per node limit exceeded: a, b") {
		t.Fatalf("pending: %v", list)
	}
	if again := Pending(w.State); again[0].M.GetId() != list[0].M.GetId() {
		t.Errorf("another ID: %s, then %s", list[0].M.GetId(), again[0].M.GetId())
	}
	w.scale("web", 2)
	w.settle(t)
	if got := w.reasons(); len(got) > 0 {
		t.Errorf("nothing is missing: %q", got)
	}
}

func TestAPendingTaskNamesItsPort(t *testing.T) {
	w := newWorld("a")
	port := func(s *swarmv1.ServiceSpec) {
		s.Endpoint = &swarmv1.EndpointSpec{Ports: []*swarmv1.PortConfig{{TargetPort: 80, PublishedPort: 8080, PublishMode: swarmv1.PortConfig_HOST}}}
	}
	w.declare("one", 1, port)
	w.declare("two", 0, port)
	w.settle(t)
	if got := w.reasons(); len(got) != 1 || !strings.Contains(got[0], "host-mode port 8080/tcp already in use: a") {
		t.Errorf("%q", got)
	}
}

func TestAPendingTaskNamesTheNodeThatItWaitsFor(t *testing.T) {
	for label, until := range map[string]string{"": "or until 1970-01-12T13:47:40Z", never: "is back or removed"} {
		w := newWorld("a", "b")
		version := func(s *swarmv1.ServiceSpec) {
			if label != "" {
				s.Annotations.Labels = map[string]string{MoveAfter: label}
			}
		}
		w.declare("db", 1, version)
		w.settle(t)
		w.declare("db", 1, version)
		w.schedule(t)
		w.silence("a")
		w.settle(t)
		if got := w.reasons(); len(got) != 1 || !strings.Contains(got[0], "may still run on node a, which is down") || !strings.Contains(got[0], until) {
			t.Errorf("move-after %q: %q", label, got)
		}
	}
	w := newWorld("a", "b")
	w.declare("db", 1, with(volume("data", nil)))
	w.settle(t)
	w.report(w.live(t).GetId(), swarmv1.TaskState_FAILED)
	w.node("a").Spec.Availability = swarmv1.NodeSpec_PAUSE
	w.Now = w.Now.Add(10 * time.Second)
	w.settle(t)
	if got := w.reasons(); len(got) != 1 || got[0] != "a volume of the task is on node a: not available for new tasks, availability pause" {
		t.Errorf("%q", got)
	}
}

package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"pgregory.net/rapid"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
)

// world is a fleet without nodes that answer: a test moves its tasks and its clock.
type world struct {
	State
	ids, rounds int
	declared    uint64
	events      []string // the texts of the events of the rounds
}

func newWorld(nodes ...string) *world {
	w := &world{State: State{
		Now: time.Unix(1_000_000, 0), Services: map[string]inventory.Record[*swarmv1.Service]{}, Tasks: map[string]inventory.Task{}, MoveAfter: time.Minute,
		Secrets: map[string]inventory.Record[*swarmv1.Secret]{}, Configs: map[string]inventory.Record[*swarmv1.Config]{},
	}}
	w.NewID = func() string { w.ids++; return fmt.Sprintf("t%d", w.ids) }
	for _, id := range nodes {
		w.Nodes = append(w.Nodes, &swarmv1.Node{
			Id: id, Spec: &swarmv1.NodeSpec{Membership: swarmv1.NodeSpec_ACCEPTED, Annotations: &swarmv1.Annotations{Labels: map[string]string{"site": id}}}, Meta: &swarmv1.Meta{UpdatedAt: timestamppb.New(w.Now)},
			Description: &swarmv1.NodeDescription{Resources: &swarmv1.Resources{NanoCpus: 4e9, MemoryBytes: 4 << 30}}, Status: &swarmv1.NodeStatus{State: swarmv1.NodeStatus_READY},
		})
	}
	return w
}

// declare declares a service with so many replicas, or with 0 one on each node.
func (w *world) declare(id string, replicas uint64, change ...func(*swarmv1.ServiceSpec)) {
	spec := &swarmv1.ServiceSpec{
		Annotations: &swarmv1.Annotations{Name: id}, Update: &swarmv1.UpdateConfig{Parallelism: 1}, Task: &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Container{Container: &swarmv1.ContainerSpec{Image: "i"}}},
		Mode: &swarmv1.ServiceSpec_Global{Global: &swarmv1.GlobalService{}},
	}
	if replicas > 0 {
		spec.Mode = &swarmv1.ServiceSpec_Replicated{Replicated: &swarmv1.ReplicatedService{Replicas: replicas}}
	}
	for _, fn := range change {
		fn(spec)
	}
	w.declared++
	spec.Task.ForceUpdate = w.declared // another version
	if s, ok := w.Services[id]; ok {
		w.Services[id] = inventory.Record[*swarmv1.Service]{M: Replace(s.M, spec, w.Now)}
		return
	}
	w.Services[id] = inventory.Record[*swarmv1.Service]{M: &swarmv1.Service{Id: id, Spec: spec, SpecVersion: &swarmv1.Version{Index: 1}}}
}

// scale sets a service's number of replicas.
func (w *world) scale(id string, replicas uint64) {
	s := w.Services[id].M
	spec := proto.CloneOf(s.GetSpec())
	spec.GetReplicated().Replicas = replicas
	w.Services[id] = inventory.Record[*swarmv1.Service]{M: Replace(s, spec, w.Now)}
}

// schedule computes a round and applies it.
func (w *world) schedule(t interface{ Fatalf(string, ...any) }) (changes int, again time.Time) {
	writes, again := Schedule(w.State)
	seen := map[string]bool{}
	for _, wr := range writes {
		if seen[wr.Key] {
			t.Fatalf("two writes of %s in one round", wr.Key)
		}
		seen[wr.Key] = true
		kind, id, _ := strings.Cut(wr.Key, "/")
		switch {
		case kind+"/" == inventory.Tasks && wr.Delete:
			delete(w.Tasks, id)
		case kind+"/" == inventory.Tasks:
			m := new(swarmv1.Task)
			if err := proto.Unmarshal(wr.Value, m); err != nil {
				t.Fatalf("%v", err)
			}
			before, there := w.Tasks[id]
			if there != (wr.If != store.Absent) || m.GetDesiredState() < before.M.GetDesiredState() {
				t.Fatalf("task %s is written as %v over %v", id, m, before.M)
			}
			w.Tasks[id] = inventory.Task{Record: inventory.Record[*swarmv1.Task]{M: m, Rev: 1}, Status: before.Status}
		case kind+"/" == inventory.Services:
			m := new(swarmv1.Service)
			if err := proto.Unmarshal(wr.Value, m); err != nil {
				t.Fatalf("%v", err)
			}
			w.Services[id] = inventory.Record[*swarmv1.Service]{M: m}
		case kind == "event":
			w.events = append(w.events, string(wr.Value))
		case kind+"/" == inventory.Secrets && wr.Delete:
			delete(w.Secrets, id)
		case kind+"/" == inventory.Configs && wr.Delete:
			delete(w.Configs, id)
		}
	}
	return len(writes), again
}

// report sets a task's state as of now.
func (w *world) report(id string, s swarmv1.TaskState) {
	t := w.Tasks[id]
	if s == swarmv1.TaskState_RUNNING && t.RunningAt.IsZero() {
		t.RunningAt = w.Now
	}
	t.Status = inventory.Record[*swarmv1.TaskStatus]{M: &swarmv1.TaskStatus{State: s, AppliedAt: timestamppb.New(w.Now)}}
	w.Tasks[id] = t
}

// obey moves all tasks of nodes that are Ready to their desired states, and reports a change.
func (w *world) obey() (changed bool) {
	for id, t := range w.Tasks {
		before := t.State()
		switch {
		case t.Ended() || w.node(t.M.GetNodeId()).GetStatus().GetState() != swarmv1.NodeStatus_READY:
		case t.M.GetDesiredState() > swarmv1.TaskState_RUNNING:
			w.report(id, swarmv1.TaskState_SHUTDOWN)
		case t.State() != t.M.GetDesiredState():
			w.report(id, t.M.GetDesiredState())
		}
		changed = changed || w.Tasks[id].State() != before
	}
	return changed
}

func (w *world) node(id string) *swarmv1.Node {
	for _, n := range w.Nodes {
		if n.GetId() == id {
			return n
		}
	}
	return nil
}

// settle schedules and obeys until nothing changes.
func (w *world) settle(t interface{ Fatalf(string, ...any) }) {
	for {
		n, again := w.schedule(t)
		changed := w.obey()
		if n == 0 && !changed {
			if again.IsZero() || again.After(w.Now.Add(10*time.Second)) {
				return
			}
			w.Now = again
		}
		if w.rounds++; w.rounds > 10_000 {
			t.Fatalf("the rounds do not come to an end: %s", w)
		}
	}
}

// String tells the tasks that live: where each slot of each service is, and its version.
func (w *world) String() string {
	var all []string
	for _, t := range w.Tasks {
		if !t.Ended() && t.M.GetDesiredState() <= swarmv1.TaskState_RUNNING {
			all = append(all, fmt.Sprintf("%s.%d@%s:%d", t.M.GetServiceId(), t.M.GetSlot(), t.M.GetNodeId(), t.M.GetSpecVersion().GetIndex()))
		}
	}
	slices.Sort(all)
	return strings.Join(all, " ")
}

func (w *world) is(t *testing.T, when, want string) {
	t.Helper()
	if got := w.String(); got != want {
		t.Errorf("%s: %s, want %s", when, got, want)
	}
}

func TestPlan(t *testing.T) {
	w := newWorld("a", "b", "c")
	w.declare("all", 0)
	w.declare("web", 2)
	w.settle(t)
	w.is(t, "at first", "all.0@a:1 all.0@b:1 all.0@c:1 web.1@a:1 web.2@b:1")

	w.scale("web", 4)
	w.settle(t)
	w.is(t, "scaled up", "all.0@a:1 all.0@b:1 all.0@c:1 web.1@a:1 web.2@b:1 web.3@c:1 web.4@a:1")
	w.scale("web", 1)
	w.settle(t)
	w.is(t, "scaled down", "all.0@a:1 all.0@b:1 all.0@c:1 web.1@a:1")

	w.node("a").Spec.Availability = swarmv1.NodeSpec_DRAIN
	w.settle(t)
	w.is(t, "a is drained", "all.0@b:1 all.0@c:1 web.1@b:1")
	w.node("a").Spec.Availability = swarmv1.NodeSpec_PAUSE
	w.declare("new", 3)
	w.settle(t)
	w.is(t, "a is paused", "all.0@b:1 all.0@c:1 new.1@c:1 new.2@b:1 new.3@c:1 web.1@b:1")
	delete(w.Services, "new")
	w.node("a").Spec.Availability = swarmv1.NodeSpec_ACTIVE

	// A node that is Down keeps its global tasks; replicas go elsewhere after a time.
	w.node("b").Status.State = swarmv1.NodeStatus_DOWN
	w.node("b").Meta.UpdatedAt = timestamppb.New(w.Now)
	w.settle(t)
	w.is(t, "b is down", "all.0@a:1 all.0@b:1 all.0@c:1 web.1@b:1")
	if _, again := w.schedule(t); !again.Equal(w.Now.Add(time.Minute)) {
		t.Errorf("the next round is at %s", again)
	}
	w.Now = w.Now.Add(time.Minute)
	w.settle(t)
	w.is(t, "b is down for a minute", "all.0@a:1 all.0@b:1 all.0@c:1 web.1@a:1")
	w.node("b").Status.State = swarmv1.NodeStatus_READY
	w.settle(t)
	w.is(t, "b is back", "all.0@a:1 all.0@b:1 all.0@c:1 web.1@a:1")

	w.Nodes = w.Nodes[1:] // a was removed
	w.settle(t)
	w.is(t, "a is gone", "all.0@b:1 all.0@c:1 web.1@b:1")
	w.Services = nil
	w.Secrets["s"] = inventory.Record[*swarmv1.Secret]{M: &swarmv1.Secret{Id: "s", Spec: &swarmv1.SecretSpec{Annotations: &swarmv1.Annotations{Labels: map[string]string{Declared: "yes"}}}}}
	w.Secrets["mine"] = inventory.Record[*swarmv1.Secret]{M: &swarmv1.Secret{Id: "mine"}} // no declaration made it
	w.settle(t)
	if len(w.Tasks) > 0 || len(w.Secrets) != 1 || w.Secrets["mine"].M == nil {
		t.Errorf("nothing is declared any more, and there are %v and %v", w.Tasks, w.Secrets)
	}
}

func TestRestarts(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy *swarmv1.RestartPolicy
		ends   swarmv1.TaskState
		starts int
		wait   time.Duration // before the second one
	}{
		{"by default", nil, swarmv1.TaskState_COMPLETE, 10, 5 * time.Second},
		{"never", &swarmv1.RestartPolicy{}, swarmv1.TaskState_FAILED, 1, 0},
		{"on failure, and it did not fail", &swarmv1.RestartPolicy{Condition: swarmv1.RestartPolicy_ON_FAILURE}, swarmv1.TaskState_COMPLETE, 1, 0},
		{"on failure", &swarmv1.RestartPolicy{Condition: swarmv1.RestartPolicy_ON_FAILURE, Delay: durationpb.New(time.Minute)}, swarmv1.TaskState_REJECTED, 10, time.Minute},
		{"twice at most", &swarmv1.RestartPolicy{Condition: swarmv1.RestartPolicy_ANY, MaxAttempts: 2, Delay: durationpb.New(0)}, swarmv1.TaskState_FAILED, 3, 0},
	} {
		w := newWorld("a")
		w.declare("web", 1, func(s *swarmv1.ServiceSpec) { s.Task.Restart = c.policy })
		begin, waited := w.Now, time.Duration(0)
		for range 200 {
			n, again := w.schedule(t)
			for id, task := range w.Tasks {
				if !task.Ended() {
					w.report(id, c.ends)
				}
			}
			if n == 0 && again.IsZero() || w.ids == 10 {
				break
			}
			if n == 0 {
				if w.ids == 1 {
					waited = again.Sub(begin)
				}
				w.Now = again
			}
		}
		if w.ids != c.starts || waited != c.wait || len(w.Tasks) > history+1 {
			t.Errorf("%s: %d starts, want %d; %s before the second, want %s; %d tasks are kept", c.name, w.ids, c.starts, waited, c.wait, len(w.Tasks))
		}
	}
}

func TestRoom(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*swarmv1.ServiceSpec)
		want   int // of 4 replicas on two nodes
	}{
		"as many as there are": {func(*swarmv1.ServiceSpec) {}, 4},
		"memory": {func(s *swarmv1.ServiceSpec) {
			s.Task.Resources = &swarmv1.ResourceRequirements{Reservations: &swarmv1.Resources{MemoryBytes: 3 << 30}}
		}, 2},
		"processors": {func(s *swarmv1.ServiceSpec) {
			s.Task.Resources = &swarmv1.ResourceRequirements{Reservations: &swarmv1.Resources{NanoCpus: 5e9}}
		}, 0},
		"a port": {func(s *swarmv1.ServiceSpec) {
			s.Endpoint = &swarmv1.EndpointSpec{Ports: []*swarmv1.PortConfig{{TargetPort: 80, PublishedPort: 80, PublishMode: swarmv1.PortConfig_HOST}}}
		}, 2},
		"any port": {func(s *swarmv1.ServiceSpec) {
			s.Endpoint = &swarmv1.EndpointSpec{Ports: []*swarmv1.PortConfig{{TargetPort: 80, PublishMode: swarmv1.PortConfig_HOST}}}
		}, 4},
		"one on each": {func(s *swarmv1.ServiceSpec) { s.Task.Placement = &swarmv1.Placement{MaxReplicas: 1} }, 2},
		"a label": {func(s *swarmv1.ServiceSpec) {
			s.Task.Placement = &swarmv1.Placement{Constraints: []string{"node.labels.site == A"}}
		}, 4},
		"no such node": {func(s *swarmv1.ServiceSpec) {
			s.Task.Placement = &swarmv1.Placement{Constraints: []string{"node.id==x"}}
		}, 0},
		"all but these": {func(s *swarmv1.ServiceSpec) {
			s.Task.Placement = &swarmv1.Placement{Constraints: []string{"node.labels.site != a", "node.id!=b"}}
		}, 0},
		"a network that one node lists": {func(s *swarmv1.ServiceSpec) {
			s.Task.Networks = []*swarmv1.NetworkAttachmentConfig{{Target: "host"}}
		}, 4},
		"a network that no node lists": {func(s *swarmv1.ServiceSpec) {
			s.Task.Networks = []*swarmv1.NetworkAttachmentConfig{{Target: "bridge"}}
		}, 0},
		"a log driver that one node lists, on each one": {func(s *swarmv1.ServiceSpec) {
			s.Task.LogDriver, s.Task.Placement = &swarmv1.Driver{Name: "journald"}, &swarmv1.Placement{MaxReplicas: 1}
		}, 1},
		"no log": {func(s *swarmv1.ServiceSpec) { s.Task.LogDriver = &swarmv1.Driver{Name: "none"} }, 4},
		"a volume driver that no node lists": {func(s *swarmv1.ServiceSpec) {
			s.Task.GetContainer().Mounts = []*swarmv1.Mount{{Type: swarmv1.Mount_VOLUME, Target: "/a", VolumeOptions: &swarmv1.Mount_VolumeOptions{DriverConfig: &swarmv1.Driver{Name: "nfs"}}}}
		}, 0},
		"a volume driver that one node lists, once in its own form": {func(s *swarmv1.ServiceSpec) {
			s.Task.GetContainer().Mounts = []*swarmv1.Mount{{Type: swarmv1.Mount_VOLUME, Target: "/a", VolumeOptions: &swarmv1.Mount_VolumeOptions{DriverConfig: &swarmv1.Driver{Name: "local"}}}}
		}, 4},
		"what is unknown": {func(s *swarmv1.ServiceSpec) {
			s.Task.Placement = &swarmv1.Placement{Constraints: []string{"moon==full"}}
		}, 0},
	} {
		w := newWorld("a", "b")
		w.node("a").Description.Engine = &swarmv1.EngineDescription{Plugins: []*swarmv1.PluginDescription{
			{Type: "Log", Name: "journald"}, {Type: "Network", Name: "host"}, {Type: "Volume", Name: "local:latest"},
		}}
		w.node("b").Description.Engine = &swarmv1.EngineDescription{Plugins: []*swarmv1.PluginDescription{{Type: "Log", Name: "json-file"}}}
		w.declare("web", 4, c.change)
		w.settle(t)
		got := 0
		for _, task := range w.Tasks {
			if !task.Ended() {
				got++
			}
		}
		if got != c.want {
			t.Errorf("%s: %d tasks, want %d: %s", name, got, c.want, w)
		}
	}
}

// TestAnyHistory: for any declarations and any acts of nodes, rounds settle, and then each service
// is as declared, as far as there are nodes for it.
func TestAnyHistory(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newWorld("a", "b", "c")
		for range rapid.IntRange(1, 30).Draw(rt, "steps") {
			switch rapid.SampledFrom([]string{"declare", "scale", "remove", "step", "state", "drain", "fail", "schedule", "time"}).Draw(rt, "what") {
			case "declare":
				w.declare(rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "service"), rapid.Uint64Range(0, 4).Draw(rt, "replicas"), func(s *swarmv1.ServiceSpec) {
					s.Update = &swarmv1.UpdateConfig{
						Parallelism: rapid.Uint64Range(0, 3).Draw(rt, "parallelism"), FailureAction: swarmv1.UpdateConfig_FailureAction(rapid.IntRange(0, 2).Draw(rt, "action")),
						Order: swarmv1.UpdateConfig_UpdateOrder(rapid.IntRange(0, 1).Draw(rt, "order")), Delay: durationpb.New(time.Duration(rapid.IntRange(0, 9).Draw(rt, "delay")) * time.Second),
						MaxFailureRatio: float32(rapid.IntRange(0, 2).Draw(rt, "ratio")) / 2,
					}
					s.Annotations.Labels = map[string]string{Prefetch: rapid.SampledFrom([]string{"", "true"}).Draw(rt, "prefetch")}
				})
			case "scale":
				if s := w.Services["x"].M; s.GetSpec().GetReplicated() != nil {
					w.scale("x", rapid.Uint64Range(0, 4).Draw(rt, "replicas"))
				}
			case "step":
				step := steps[rapid.SampledFrom([]string{"rollback", "pause", "resume"}).Draw(rt, "step")]
				if s := w.Services["x"].M; s != nil {
					if next, err := step(s, w.Now); err == nil {
						w.Services["x"] = recordOf(next)
					}
				}
			case "remove":
				delete(w.Services, rapid.SampledFrom([]string{"x", "y"}).Draw(rt, "service"))
			case "state":
				n := rapid.SampledFrom(w.Nodes).Draw(rt, "node")
				n.Status.State = rapid.SampledFrom([]swarmv1.NodeStatus_State{swarmv1.NodeStatus_READY, swarmv1.NodeStatus_DOWN, swarmv1.NodeStatus_UNKNOWN}).Draw(rt, "state")
				n.Meta.UpdatedAt = timestamppb.New(w.Now)
			case "drain":
				rapid.SampledFrom(w.Nodes).Draw(rt, "node").Spec.Availability = rapid.SampledFrom([]swarmv1.NodeSpec_Availability{0, 1, 2}).Draw(rt, "availability")
			case "fail":
				if ids := slices.Sorted(maps.Keys(w.Tasks)); len(ids) > 0 {
					if id := rapid.SampledFrom(ids).Draw(rt, "task"); !w.Tasks[id].Ended() {
						w.report(id, swarmv1.TaskState_FAILED)
					}
				}
			case "schedule":
				w.schedule(rt)
				w.obey()
			case "time":
				w.Now = w.Now.Add(time.Duration(rapid.IntRange(1, 100).Draw(rt, "seconds")) * time.Second)
			}
		}
		for _, n := range w.Nodes {
			n.Status.State, n.Spec.Availability = swarmv1.NodeStatus_READY, swarmv1.NodeSpec_ACTIVE
		}
		w.Now = w.Now.Add(time.Hour)
		w.settle(rt)
		for id, s := range w.Services { // failures on the way have paused some
			if next, err := Resume(s.M, w.Now); err == nil {
				w.Services[id] = recordOf(next)
			}
		}
		w.settle(rt)
		live := map[string]uint64{}
		for _, task := range w.Tasks {
			if !task.Ended() {
				live[task.M.GetServiceId()]++
				if s := w.Services[task.M.GetServiceId()].M; s != nil && task.M.GetSpecVersion().GetIndex() != s.GetSpecVersion().GetIndex() {
					rt.Fatalf("task %s is of an earlier version: %s, %v", task.M.GetId(), w, s.GetUpdateStatus())
				}
			}
		}
		for id, s := range w.Services {
			if underWay(s.M) {
				rt.Fatalf("the update of %s does not end: %s, %v", id, w, s.M.GetUpdateStatus())
			}
			want := uint64(3)
			if r := s.M.GetSpec().GetReplicated(); r != nil {
				want = r.GetReplicas()
			}
			if live[id] != want {
				rt.Fatalf("service %s has %d tasks, want %d: %s", id, live[id], want, w)
			}
			delete(live, id)
		}
		if len(live) > 0 {
			rt.Fatalf("tasks of services that are not declared: %v", live)
		}
	})
}

func recordOf(s *swarmv1.Service) inventory.Record[*swarmv1.Service] {
	return inventory.Record[*swarmv1.Service]{M: s}
}

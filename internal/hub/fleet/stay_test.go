package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

func volume(source string, options map[string]string) *swarmv1.Mount {
	m := &swarmv1.Mount{Type: swarmv1.Mount_VOLUME, Source: source, Target: "/data"}
	if options != nil {
		m.VolumeOptions = &swarmv1.Mount_VolumeOptions{DriverConfig: &swarmv1.Driver{Name: "local", Options: options}}
	}
	return m
}

func with(mounts ...*swarmv1.Mount) func(*swarmv1.ServiceSpec) {
	return func(s *swarmv1.ServiceSpec) { s.Task.GetContainer().Mounts = mounts }
}

// silence makes a node Down now. Its tasks run on and report nothing.
func (w *world) silence(node string) {
	w.node(node).Status.State = swarmv1.NodeStatus_DOWN
	w.node(node).Meta.UpdatedAt = timestamppb.New(w.Now)
}

// live returns the task of a service with one replica that is to run.
func (w *world) live(t *testing.T) *swarmv1.Task {
	t.Helper()
	var found *swarmv1.Task
	for _, task := range w.Tasks {
		if !task.Ended() && task.M.GetDesiredState() <= swarmv1.TaskState_RUNNING {
			if found != nil {
				t.Fatalf("two tasks are to run: %s", w)
			}
			found = task.M
		}
	}
	return found
}

// writers returns the nodes with a running task of the service. A task that must end counts until its
// node reports the end.
func (w *world) writers() map[string]bool {
	nodes := map[string]bool{}
	for _, task := range w.Tasks {
		if task.State() == swarmv1.TaskState_RUNNING {
			nodes[task.M.GetNodeId()] = true
		}
	}
	return nodes
}

// TestASilentNodeKeepsItsReplica: no other node starts a replica that may still run on a silent node
// before MoveAfter is over, and with never no other node starts it at all.
func TestASilentNodeKeepsItsReplica(t *testing.T) {
	cases := 0
	for _, order := range []swarmv1.UpdateConfig_UpdateOrder{swarmv1.UpdateConfig_STOP_FIRST, swarmv1.UpdateConfig_START_FIRST} {
		for _, mounts := range [][]*swarmv1.Mount{nil, {volume("data", nil)}} {
			for label, after := range map[string]time.Duration{"": time.Minute, "5m": 5 * time.Minute, "0s": 0, never: 0} {
				for _, moment := range []string{"idle", "asked to end", "after a crash", "drained", "scaled down and up"} {
					cases++
					name := fmt.Sprintf("%s, %d volumes, move-after %q, %s", order, len(mounts), label, moment)
					w := newWorld("a", "b", "c")
					version := func(s *swarmv1.ServiceSpec) {
						with(mounts...)(s)
						s.Update = &swarmv1.UpdateConfig{Parallelism: 1, Order: order}
						s.Task.Restart = &swarmv1.RestartPolicy{Condition: swarmv1.RestartPolicy_ANY, Delay: durationpb.New(0)}
						if label != "" {
							s.Annotations.Labels = map[string]string{MoveAfter: label}
						}
					}
					w.declare("db", 1, version)
					w.settle(t)
					first := w.live(t).GetNodeId()
					running := true
					switch moment {
					case "asked to end":
						w.declare("db", 1, version)
						w.schedule(t)
					case "after a crash":
						w.report(w.live(t).GetId(), swarmv1.TaskState_FAILED)
						running = false
					case "drained":
						w.node(first).Spec.Availability = swarmv1.NodeSpec_DRAIN
						w.schedule(t)
					case "scaled down and up":
						w.scale("db", 0)
						w.schedule(t)
						w.scale("db", 1)
					}
					w.silence(first)
					early := after - time.Second
					if label == never {
						early = 1000 * time.Hour
					}
					if early > 0 {
						for range 3 {
							w.settle(t)
							w.Now = w.Now.Add(early / 4)
						}
						w.settle(t)
						switch nodes := w.writers(); {
						case running && (len(nodes) != 1 || !nodes[first]):
							t.Errorf("%s: before it is time the replica runs on %v, want %s alone", name, nodes, first)
						case !running && len(mounts) > 0 && len(nodes) > 0:
							t.Errorf("%s: before it is time the replica runs on %v without its volume", name, nodes)
						}
					}
					w.Now = w.node(first).GetMeta().GetUpdatedAt().AsTime().Add(after)
					if label == never {
						continue
					}
					w.settle(t)
					task := w.live(t)
					if task == nil || task.GetNodeId() == first {
						t.Errorf("%s: the node is down for long, and the replica is not started elsewhere: %s", name, w)
						continue
					}
					told := strings.Join(w.events, "\n")
					if moved := strings.Contains(told, "without its volume data of node "+first); moved != (len(mounts) > 0) {
						t.Errorf("%s: events: %s", name, told)
					}
				}
			}
		}
	}
	if cases != 80 {
		t.Errorf("%d cases, want 80", cases)
	}
}

// TestASilentNodeComesBack: when the node is back and ends the old task, the new one starts there.
func TestASilentNodeComesBack(t *testing.T) {
	w := newWorld("a", "b", "c")
	version := func(s *swarmv1.ServiceSpec) { with(volume("data", nil))(s) }
	w.declare("db", 1, version)
	w.settle(t)
	first := w.live(t).GetNodeId()
	w.declare("db", 1, version)
	w.schedule(t)
	w.silence(first)
	w.settle(t)
	w.Now = w.Now.Add(40 * time.Second)
	w.settle(t)
	w.node(first).Status.State = swarmv1.NodeStatus_READY
	w.settle(t)
	w.is(t, "back", fmt.Sprintf("db.1@%s:2", first))
	if len(w.events) > 0 {
		t.Errorf("events: %v", w.events)
	}
}

// TestAReplicaThatCrashesStaysWithItsVolume: it is started where its named volume is, however often
// it fails; one without such a volume goes elsewhere after some failures in a row.
func TestAReplicaThatCrashesStaysWithItsVolume(t *testing.T) {
	for _, c := range []struct {
		name   string
		mounts []*swarmv1.Mount
		end    swarmv1.TaskState
		stays  int // how many of 8 ends in a row it stays for
	}{
		{"a volume", []*swarmv1.Mount{volume("data", nil)}, swarmv1.TaskState_FAILED, 8},
		{"a volume, refused", []*swarmv1.Mount{volume("data", nil)}, swarmv1.TaskState_REJECTED, 8},
		{"a volume, done", []*swarmv1.Mount{volume("data", nil)}, swarmv1.TaskState_COMPLETE, 8},
		{"a directory as a volume", []*swarmv1.Mount{volume("data", map[string]string{"type": "none", "o": "bind", "device": "/srv"})}, swarmv1.TaskState_FAILED, 8},
		{"none", nil, swarmv1.TaskState_FAILED, maxFailures - 1},
		{"none, done", nil, swarmv1.TaskState_COMPLETE, 8},
		{"none, refused", nil, swarmv1.TaskState_REJECTED, 0},
		{"without a name", []*swarmv1.Mount{volume("", nil)}, swarmv1.TaskState_FAILED, maxFailures - 1},
		{"of a server", []*swarmv1.Mount{volume("data", map[string]string{"type": "nfs4", "device": ":/x"})}, swarmv1.TaskState_FAILED, maxFailures - 1},
		{"a file", []*swarmv1.Mount{{Type: swarmv1.Mount_BIND, Source: "/srv", Target: "/data"}}, swarmv1.TaskState_FAILED, maxFailures - 1},
	} {
		w := newWorld("a", "b", "c")
		w.declare("db", 1, with(c.mounts...))
		w.settle(t)
		first, stays := w.live(t).GetNodeId(), 0
		for range 8 {
			w.report(w.live(t).GetId(), c.end)
			w.settle(t)
			if task := w.live(t); task == nil || task.GetNodeId() != first {
				break
			}
			stays++
		}
		if stays != c.stays {
			t.Errorf("%s: it stays for %d ends, want %d: %s", c.name, stays, c.stays, w)
		}
	}
}

// TestWhatMovesAReplicaFromItsVolume: a drain or another constraint moves it, with an event; a pause
// or a lack of room does not.
func TestWhatMovesAReplicaFromItsVolume(t *testing.T) {
	for _, c := range []struct {
		name  string
		do    func(w *world, node string)
		moves string // the event
	}{
		{"drained", func(w *world, node string) { w.node(node).Spec.Availability = swarmv1.NodeSpec_DRAIN }, "is drained"},
		{"another constraint", func(w *world, node string) {
			w.declare("db", 1, with(volume("data", nil)), func(s *swarmv1.ServiceSpec) {
				s.Task.Placement = &swarmv1.Placement{Constraints: []string{"node.labels.site!=" + node}}
			})
		}, "does not fulfill the constraints"},
		{"paused", func(w *world, node string) {
			w.node(node).Spec.Availability = swarmv1.NodeSpec_PAUSE
			w.declare("db", 1, with(volume("data", nil)))
		}, ""},
		{"no room", func(w *world, _ string) {
			w.declare("db", 1, with(volume("data", nil)), func(s *swarmv1.ServiceSpec) {
				s.Task.Resources = &swarmv1.ResourceRequirements{Reservations: &swarmv1.Resources{MemoryBytes: 5 << 30}}
			})
		}, ""},
		{"unknown", func(w *world, node string) {
			w.declare("db", 1, with(volume("data", nil)))
			w.schedule(t)
			w.obey()
			w.node(node).Status.State = swarmv1.NodeStatus_UNKNOWN
		}, ""},
		{"another volume", func(w *world, _ string) { w.declare("db", 1, with(volume("other", nil))) }, ""},
	} {
		w := newWorld("a", "b", "c")
		w.declare("db", 1, with(volume("data", nil)))
		w.settle(t)
		first := w.live(t).GetNodeId()
		c.do(w, first)
		w.settle(t)
		task := w.live(t)
		if c.moves == "" {
			if task != nil && task.GetNodeId() != first || len(w.events) > 0 {
				t.Errorf("%s: %s, events %v", c.name, w, w.events)
			}
		} else if task == nil || task.GetNodeId() == first || len(w.events) != 1 || !strings.Contains(w.events[0], c.moves) {
			t.Errorf("%s: %s, events %v", c.name, w, w.events)
		}
	}
}

// TestStartFirstWhereTheOldTaskHasTheRoom: the new task must be where the volume is, so the old one
// ends first.
func TestStartFirstWhereTheOldTaskHasTheRoom(t *testing.T) {
	w := newWorld("a", "b")
	version := func(s *swarmv1.ServiceSpec) {
		with(volume("data", nil))(s)
		s.Update = &swarmv1.UpdateConfig{Parallelism: 1, Order: swarmv1.UpdateConfig_START_FIRST}
		s.Task.Placement = &swarmv1.Placement{MaxReplicas: 1}
	}
	w.declare("db", 1, version)
	w.settle(t)
	first := w.live(t).GetNodeId()
	w.declare("db", 1, version)
	w.settle(t)
	w.is(t, "updated", fmt.Sprintf("db.1@%s:2", first))
}

// TestAnUpdateDoesNotWaitForeverForASilentNode: a service with replicas that never move completes
// its update without those of Down nodes.
func TestAnUpdateDoesNotWaitForeverForASilentNode(t *testing.T) {
	w := newWorld("a", "b", "c")
	version := func(s *swarmv1.ServiceSpec) { s.Annotations.Labels = map[string]string{MoveAfter: never} }
	w.declare("db", 3, version)
	w.settle(t)
	w.declare("db", 3, version)
	w.schedule(t) // the first one shall end
	for _, task := range w.Tasks {
		if task.M.GetDesiredState() == swarmv1.TaskState_SHUTDOWN {
			w.silence(task.M.GetNodeId())
		}
	}
	for range 5 {
		w.settle(t)
		w.Now = w.Now.Add(10 * time.Second)
	}
	if s := w.Services["db"].M.GetUpdateStatus(); s.GetState() != swarmv1.UpdateStatus_COMPLETED || !strings.Contains(s.GetMessage(), "1 tasks follow") {
		t.Errorf("the update: %v, %s", s, w)
	}
}

func TestTheLabelMoveAfter(t *testing.T) {
	for text, ok := range map[string]bool{never: true, "0s": true, "90s": true, "24h": true, "": false, "soon": false, "-1s": false, "10": false, "Never": false} {
		spec := &swarmv1.ServiceSpec{Annotations: &swarmv1.Annotations{Labels: map[string]string{MoveAfter: text}}}
		if err := checkMoveAfter(spec); (err == nil) != ok {
			t.Errorf("%q: %v", text, err)
		}
	}
	if err := checkMoveAfter(&swarmv1.ServiceSpec{}); err != nil {
		t.Error(err)
	}
}

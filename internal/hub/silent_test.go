package hub_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/types/known/durationpb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/hub/hubtest"
)

// fakeNode is a node that starts and ends tasks at once. Its tasks run on while it is silent.
type fakeNode struct {
	*hubtest.Node
	t   *testing.T
	all *writers
	// stop makes it silent and waits for that.
	stop func()
}

// writers are the tasks that run, by node, known to the hub or not.
type writers struct {
	mu   sync.Mutex                 // guards runs, most
	runs map[string]map[string]bool // ids of tasks, by node
	most int                        // on how many nodes at once a task ran
}

// set notes that a task runs or does not.
func (w *writers) set(node, task string, runs bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.runs[node] == nil {
		w.runs[node] = map[string]bool{}
	}
	delete(w.runs[node], task)
	if runs {
		w.runs[node][task] = true
	}
	w.most = max(w.most, len(w.nodesLocked()))
}

func (w *writers) nodesLocked() (list []string) {
	for _, node := range slices.Sorted(maps.Keys(w.runs)) {
		if len(w.runs[node]) > 0 {
			list = append(list, node)
		}
	}
	return list
}

// nodes returns the nodes that run a task, and the most that ever ran one at once.
func (w *writers) nodes() ([]string, int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.nodesLocked(), w.most
}

// start has a node speak with the hub, until stop.
func (n *fakeNode) start() {
	n.t.Helper()
	ctx, cancel := context.WithCancelCause(context.Background())
	var speaking sync.WaitGroup
	stream, err := n.Dispatcher.Session(ctx, &swarmv1.SessionRequest{Description: &swarmv1.NodeDescription{Hostname: n.NodeID, Platform: &swarmv1.Platform{Os: "linux", Architecture: "x86_64"}, Resources: &swarmv1.Resources{NanoCpus: 4e9, MemoryBytes: 4 << 30}}})
	if err != nil {
		n.t.Fatal(err)
	}
	first, err := stream.Recv()
	if err != nil {
		n.t.Fatal(err)
	}
	id := first.GetSessionId()
	assignments, err := n.Dispatcher.Assignments(ctx, &swarmv1.AssignmentsRequest{SessionId: id})
	if err != nil {
		n.t.Fatal(err)
	}
	speaking.Go(func() {
		for {
			if _, err := stream.Recv(); err != nil {
				return
			}
		}
	})
	speaking.Go(func() {
		for {
			msg, err := assignments.Recv()
			if err != nil {
				return
			}
			n.obey(ctx, id, msg)
		}
	})
	speaking.Go(func() {
		for {
			resp, err := n.Dispatcher.Heartbeat(ctx, &swarmv1.HeartbeatRequest{SessionId: id})
			if err != nil {
				return
			}
			select {
			case <-time.After(resp.GetPeriod().AsDuration()):
			case <-ctx.Done():
				return
			}
		}
	})
	n.stop = func() {
		cancel(context.Canceled)
		speaking.Wait()
	}
}

// obey applies a message, and reports that.
func (n *fakeNode) obey(ctx context.Context, session string, msg *swarmv1.AssignmentsMessage) {
	var updates []*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate
	for _, c := range msg.GetChanges() {
		task := c.GetAssignment().GetTask()
		if task == nil {
			continue
		}
		if c.GetAction() == swarmv1.AssignmentChange_REMOVE {
			n.all.set(n.NodeID, task.GetId(), false)
			continue
		}
		if task.GetStatus().GetState() > swarmv1.TaskState_RUNNING {
			continue
		}
		to := task.GetDesiredState()
		if to > swarmv1.TaskState_RUNNING {
			to = swarmv1.TaskState_SHUTDOWN
		}
		n.all.set(n.NodeID, task.GetId(), to == swarmv1.TaskState_RUNNING)
		updates = append(updates, &swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate{TaskId: task.GetId(), Status: &swarmv1.TaskStatus{State: to}})
	}
	if len(updates) > 0 { // the next session repeats one that fails
		_, _ = n.Dispatcher.UpdateTaskStatus(ctx, &swarmv1.UpdateTaskStatusRequest{SessionId: session, Updates: updates})
	}
}

// silent is one case: a node with the only replica of a service falls silent while the service is updated.
type silent struct {
	order  swarmv1.UpdateConfig_UpdateOrder
	volume bool
	label  string // of move-after
	// known is set when the hub knows that the node is Down before the update is declared.
	known bool
}

// name is the case's name.
func (s silent) name() string {
	return fmt.Sprintf("%s, volume %v, move-after %q, known to be down %v", s.order, s.volume, s.label, s.known)
}

// after returns the time of move-after; false is never.
func (s silent) after() (time.Duration, bool) {
	if s.label == "never" {
		return 2 * time.Hour, false
	}
	if d, err := time.ParseDuration(s.label); err == nil {
		return d, true
	}
	return hub.DefaultMoveAfter, true
}

// declare declares a version of the service.
func (s silent) declare(t *testing.T, h *hubtest.Hub, version string) {
	t.Helper()
	c := &swarmv1.ContainerSpec{Image: "busybox:" + version}
	if s.volume {
		c.Mounts = []*swarmv1.Mount{{Type: swarmv1.Mount_VOLUME, Source: "data", Target: "/data"}}
	}
	spec := &swarmv1.ServiceSpec{
		Annotations: &swarmv1.Annotations{Name: "db"}, Mode: &swarmv1.ServiceSpec_Replicated{Replicated: &swarmv1.ReplicatedService{Replicas: 1}},
		Task:   &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Container{Container: c}, Restart: &swarmv1.RestartPolicy{Delay: durationpb.New(0)}},
		Update: &swarmv1.UpdateConfig{Parallelism: 1, Order: s.order},
	}
	if s.label != "" {
		spec.Annotations.Labels = map[string]string{fleet.MoveAfter: s.label}
	}
	data, err := protojson.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fleet.Apply(hubtest.Within(t), h.Inventory, fleet.Declaration{Name: "shop", Services: []json.RawMessage{data}}, false); err != nil {
		t.Fatal(err)
	}
}

// run runs the case, from the first start to the node's return.
func (s silent) run(t *testing.T) {
	t.Helper()
	h := hubtest.NewVirtual(t)
	all := &writers{runs: map[string]map[string]bool{}}
	nodes := map[string]*fakeNode{}
	for range 3 {
		n := &fakeNode{Node: h.Join(), t: t, all: all}
		n.start()
		nodes[n.NodeID] = n
	}
	defer func() {
		for _, n := range nodes {
			n.stop()
		}
	}()
	pass := func(d time.Duration) {
		<-time.After(d)
		synctest.Wait()
	}
	s.declare(t, h, "1")
	pass(10 * time.Second)
	on, _ := all.nodes()
	if len(on) != 1 {
		t.Errorf("%s: the replica runs on %v at first", s.name(), on)
		return
	}
	first := on[0]
	nodes[first].stop()
	if !s.known {
		s.declare(t, h, "2")
	}
	hubtest.Until(t, h, "the node is down", func() bool { return hubtest.State(h, first) == swarmv1.NodeStatus_DOWN })
	down := time.Now()
	if s.known {
		s.declare(t, h, "2")
	}
	after, moves := s.after()
	if after > 0 {
		pass(time.Until(down.Add(after - 2*time.Second)))
		if on, most := all.nodes(); most != 1 || on[0] != first {
			t.Errorf("%s: before it is time the replica runs on %v, and ran on %d nodes at once", s.name(), on, most)
		}
	}
	told := "without its volume data of node " + first + ", which has been down since"
	if !moves {
		if h.Has(told) {
			t.Errorf("%s: an event says that the replica moved", s.name())
		}
	} else {
		pass(10 * time.Second)
		// The node still writes, as it hears nothing. That both are seen shows that the test would see it before too.
		if on, most := all.nodes(); most != 2 || len(on) != 2 {
			t.Errorf("%s: after that time the replica runs on %v, and ran on %d nodes at once; want another one", s.name(), on, most)
		}
		if h.Has(told) != s.volume {
			t.Errorf("%s: an event says that the replica left its volume: %v", s.name(), !s.volume)
		}
	}
	nodes[first].start()
	pass(time.Minute)
	on, _ = all.nodes()
	if len(on) != 1 || !moves && on[0] != first {
		t.Errorf("%s: with the node back the replica runs on %v", s.name(), on)
	}
	for _, task := range h.Inventory.Tasks() {
		if image := task.M.GetSpec().GetContainer().GetImage(); task.State() == swarmv1.TaskState_RUNNING && image != "busybox:2" {
			t.Errorf("%s: %s runs on", s.name(), image)
		}
	}
}

// TestASilentNodeUnderAnUpdate is 20 cases, each with an update before the hub knows that the node is down and with
// one after: real sessions, of nodes that run their tasks while they are silent. Until move-after no other node
// starts the replica, after it one does, and where it had a volume an event says that it is left behind.
func TestASilentNodeUnderAnUpdate(t *testing.T) { //nolint:paralleltest // synctest has no parallel tests
	cases := 0
	for _, order := range []swarmv1.UpdateConfig_UpdateOrder{swarmv1.UpdateConfig_STOP_FIRST, swarmv1.UpdateConfig_START_FIRST} {
		for _, volume := range []bool{false, true} {
			for _, label := range []string{"", "5m", "20s", "0s", "never"} {
				cases++
				for _, known := range []bool{false, true} {
					synctest.Test(t, silent{order, volume, label, known}.run)
				}
			}
		}
	}
	if cases != 20 {
		t.Errorf("%d cases", cases)
	}
}

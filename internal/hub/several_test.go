package hub_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/api"
	"github.com/longshore/longshore/internal/hub/hubtest"
	"github.com/longshore/longshore/internal/hub/store/etcd"
	"github.com/longshore/longshore/internal/hub/store/etcd/etcdtest"
	"github.com/longshore/longshore/internal/hub/store/storetest"
	"github.com/longshore/longshore/internal/roottest"
)

func TestMain(m *testing.M) { etcdtest.Main(m) }

// TestSeveralHubs: before one etcd a node has one session, with the hub that it called last; each hub has
// the other's records; the output of a node comes by the hub that has it; and one that is gone is missed.
func TestSeveralHubs(t *testing.T) {
	t.Parallel()
	cluster := etcdtest.NewEtcd(t, 1)
	remote := func(o *hub.Options) {
		o.Store.Open, o.Lease = etcd.Options{Remote: &cluster.Remote}.Open, 5*time.Second
	}
	a := hubtest.New(t, remote)
	b := hubtest.New(t, remote)
	n := a.Join()
	elsewhere := b.Dial(n.Credentials(), n.Identity)
	hubtest.Until(t, b, "the other hub knows the node", func() bool { known, _, _ := b.Inventory.Node(n.NodeID); return known != nil })

	first := hubtest.MustOpen(t, n, "")
	for m := first.First; len(m.GetManagers()) != 2; {
		m = hubtest.Receive(t, first.ServerStreamingClient)
	}
	second := hubtest.MustOpen(t, elsewhere, first.First.GetSessionId())
	if second.First.GetSessionId() == first.First.GetSessionId() {
		t.Error("a session of another hub was resumed")
	}
	_, err := hubtest.Ended(first.ServerStreamingClient)
	hubtest.Wants(t, "the session with the hub before", err, codes.InvalidArgument, "session invalid")
	_, err = n.Dispatcher.UpdateTaskStatus(hubtest.Within(t), &swarmv1.UpdateTaskStatusRequest{SessionId: first.First.GetSessionId()})
	hubtest.Wants(t, "a status by it", err, codes.NotFound, "node not registered")
	if run, id, _ := a.Inventory.Holder(n.NodeID); run != b.Peers.Self() || id != second.First.GetSessionId() {
		t.Errorf("the node is held by %s, session %s", run, id)
	}

	// A task is made at one hub, and known and told of at the other.
	hubtest.Commit(t, a, hubtest.Task("task", n.NodeID, swarmv1.TaskState_RUNNING))
	stream := hubtest.Assignments(t, elsewhere, second.First.GetSessionId())
	for found := false; !found; {
		for _, c := range hubtest.Receive(t, stream).GetChanges() {
			found = found || c.GetAssignment().GetTask().GetId() == "task"
		}
	}
	status := &swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate{TaskId: "task", Status: &swarmv1.TaskStatus{State: swarmv1.TaskState_RUNNING}}
	if _, err := elsewhere.Dispatcher.UpdateTaskStatus(hubtest.Within(t), &swarmv1.UpdateTaskStatusRequest{SessionId: second.First.GetSessionId(), Updates: []*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate{status}}); err != nil {
		t.Fatal(err)
	}
	hubtest.Until(t, a, "the status is known", func() bool { task, _ := a.Inventory.Task("task"); return task.State() == swarmv1.TaskState_RUNNING })

	// One hub gets a request for output that comes by the other.
	subscriptions, err := elsewhere.Logs.ListenSubscriptions(hubtest.Within(t), &swarmv1.ListenSubscriptionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	sub := a.Broker.Subscribe(&swarmv1.LogSelector{TaskIds: []string{"task"}}, &swarmv1.LogSubscriptionOptions{}, func(node string) bool { return a.Dispatcher.Addr(node) != "" })
	defer sub.Close()
	asked := hubtest.Receive(t, subscriptions)
	publish, err := elsewhere.Logs.PublishLogs(hubtest.Within(t))
	if err != nil {
		t.Fatal(err)
	}
	line := &swarmv1.LogMessage{Context: &swarmv1.LogContext{NodeId: n.NodeID, TaskId: "task"}, Data: []byte("hello")}
	if err := publish.Send(&swarmv1.PublishLogsMessage{SubscriptionId: asked.GetId(), Messages: []*swarmv1.LogMessage{line}}); err != nil {
		t.Fatal(err)
	}
	if m := <-sub.Messages; string(m.GetData()) != "hello" || m.GetContext().GetTaskId() != "task" {
		t.Errorf("the output: %v", m)
	}
	if err := publish.Send(&swarmv1.PublishLogsMessage{SubscriptionId: asked.GetId(), Close: true}); err != nil {
		t.Fatal(err)
	}
	<-sub.Done
	if missing := sub.Missing(); len(missing) > 0 {
		t.Errorf("missing: %v", missing)
	}
	relay, err := n.Conn.NewStream(hubtest.Within(t), &grpc.StreamDesc{ServerStreams: true}, "/longshore.hub.v1.Relay/Subscribe")
	if err != nil {
		t.Fatal(err)
	}
	if err := relay.SendMsg(&swarmv1.SubscriptionMessage{}); err != nil {
		t.Fatal(err)
	}
	hubtest.Wants(t, "output asked for by a node", relay.RecvMsg(new(swarmv1.PublishLogsMessage)), codes.PermissionDenied, "not part of OUs: [swarm-manager]")

	// A decision at one hub holds at the other.
	token, err := a.CA.Authority.RotateToken(hubtest.Within(t))
	if err != nil {
		t.Fatal(err)
	}
	keys := b.Keys.Changed()
	if err := a.Keys.Rotate(hubtest.Within(t)); err != nil {
		t.Fatal(err)
	}
	<-keys
	roottest.Eventually(t, "the token is the other hub's too", func() bool { return b.CA.Authority.Token() == token })

	// A hub that ends is missed at once, and its node has another one.
	b.Stop()
	hubtest.Until(t, a, "the node's hub is gone", func() bool {
		known, _, _ := a.Inventory.Node(n.NodeID)
		return known.GetStatus().GetState() == swarmv1.NodeStatus_UNKNOWN && strings.Contains(known.GetStatus().GetMessage(), "its hub has ended")
	})
	third := hubtest.MustOpen(t, n, second.First.GetSessionId())
	if m := third.First; len(m.GetManagers()) != 1 || m.GetNode().GetStatus().GetState() != swarmv1.NodeStatus_READY {
		t.Errorf("back with the first hub: %v", m)
	}
	if m := hubtest.Receive(t, hubtest.Assignments(t, n, third.First.GetSessionId())); len(m.GetChanges()) != 1 || m.GetType() != swarmv1.AssignmentsMessage_COMPLETE {
		t.Errorf("its assignments: %v", m)
	}
}

// TestARestoredHub: a hub of a backup, in another directory and at another address, is the hub that it was: earlier
// nodes get in with their certificates, and hear the same.
func TestARestoredHub(t *testing.T) {
	t.Parallel()
	before := hubtest.New(t, func(o *hub.Options) { o.Store.Open = etcdtest.In(storetest.Dir(t)) })
	n := before.Join()
	hubtest.MustOpen(t, n, "")
	hubtest.Commit(t, before, hubtest.Task("task", n.NodeID, swarmv1.TaskState_RUNNING))
	file := filepath.Join(t.TempDir(), "backup")
	if _, err := api.NewClient(before.Socket).Backup(hubtest.Within(t), file); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup's file: %v, %v", info.Mode(), err)
	}
	gone := before.Join() // after the backup
	before.Stop()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	dir := storetest.Dir(t)
	if _, err := (etcd.Options{Dir: dir}).Restore(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	after := hubtest.New(t, func(o *hub.Options) { o.Store.Open = etcdtest.In(dir) })
	if after.CA.Authority.Token() != before.CA.Authority.Token() {
		t.Error("another token")
	}
	back := after.Dial(n.Credentials(), n.Identity)
	opened := hubtest.MustOpen(t, back, "")
	if m := hubtest.Receive(t, hubtest.Assignments(t, back, opened.First.GetSessionId())); len(m.GetChanges()) != 1 || m.GetChanges()[0].GetAssignment().GetTask().GetId() != "task" {
		t.Errorf("its assignments: %v", m)
	}
	_, err = hubtest.Open(t, after.Dial(gone.Credentials(), gone.Identity), "")
	hubtest.Wants(t, "a node that joined after the backup", err, codes.Unknown, "node not found")
}

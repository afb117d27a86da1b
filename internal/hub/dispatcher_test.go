package hub_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/hubtest"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
)

// TestASession: the first message has all of its fields, the node is Ready, the session resumes
// by its id without ending the stream that it had.
func TestASession(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	n := h.Join()
	a := hubtest.MustOpen(t, n, "")
	switch m := a.First; {
	case len(m.GetSessionId()) != 25, m.GetNode().GetId() != n.NodeID, m.GetNode().GetStatus().GetState() != swarmv1.NodeStatus_READY, m.GetNode().GetStatus().GetAddr() != "127.0.0.1",
		m.GetNode().GetDescription().GetHostname() != "edge", string(m.GetRootCA()) != string(h.CA.Authority.Roots()),
		len(m.GetManagers()) != 1, m.GetManagers()[0].GetPeer().GetAddr() != h.Addr, m.GetManagers()[0].GetWeight() != 10:
		t.Errorf("the first message: %v", m)
	case len(m.GetNetworkBootstrapKeys()) != 6:
		t.Errorf("%d keys of networks, want three of each of two subsystems", len(m.GetNetworkBootstrapKeys()))
	}
	id := a.First.GetSessionId()
	beat, err := n.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: id})
	if p := beat.GetPeriod().AsDuration(); err != nil || p < 54*time.Second || p > 66*time.Second {
		t.Errorf("a heartbeat: %v, %v", p, err)
	}
	if again := hubtest.MustOpen(t, n, id); again.First.GetSessionId() != id {
		t.Errorf("resumed as %s", again.First.GetSessionId())
	}
	// The first stream lives, and has the changes.
	if err := h.CA.Rotate(hubtest.Within(t), n.NodeID); err != nil {
		t.Fatal(err)
	}
	for asked := false; !asked; {
		asked = hubtest.Receive(t, a.ServerStreamingClient).GetNode().GetCertificate().GetStatus().GetState() == swarmv1.IssuanceStatus_ROTATE
	}
	if err := h.Keys.Rotate(hubtest.Within(t)); err != nil {
		t.Fatal(err)
	}
	for {
		keys := hubtest.Receive(t, a.ServerStreamingClient).GetNetworkBootstrapKeys()
		if len(keys) != 6 {
			t.Fatalf("%d keys after a rotation", len(keys))
		}
		if keys[0].GetLamportTime() == 2 && keys[5].GetLamportTime() == 4 {
			break
		}
	}
}

// TestCallsWithoutASession: each call's code, which decides a worker's next step.
func TestCallsWithoutASession(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	n := h.Join()
	calls := func(n *hubtest.Node, id string) map[string]error {
		all := map[string]error{}
		_, all["Heartbeat"] = n.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: id})
		_, all["UpdateTaskStatus"] = n.Dispatcher.UpdateTaskStatus(hubtest.Within(t), &swarmv1.UpdateTaskStatusRequest{SessionId: id})
		_, all["UpdateVolumeStatus"] = n.Dispatcher.UpdateVolumeStatus(hubtest.Within(t), &swarmv1.UpdateVolumeStatusRequest{SessionId: id})
		_, all["Assignments"] = hubtest.Ended(hubtest.Assignments(t, n, id))
		tasks, err := n.Dispatcher.Tasks(hubtest.Within(t), &swarmv1.TasksRequest{SessionId: id})
		if err != nil {
			t.Fatal(err)
		}
		_, all["Tasks"] = hubtest.Ended(tasks)
		return all
	}
	for call, err := range calls(n, "any") {
		hubtest.Wants(t, call+" before a session", err, codes.NotFound, "node not registered")
	}
	hubtest.MustOpen(t, n, "")
	for _, id := range []string{"", "another"} {
		for call, err := range calls(n, id) {
			hubtest.Wants(t, fmt.Sprintf("%s with session id %q", call, id), err, codes.InvalidArgument, "session invalid")
		}
	}
	stranger := h.Dial(hubtest.Raw{}, nil)
	all := calls(stranger, "any")
	session, err := stranger.Dispatcher.Session(hubtest.Within(t), &swarmv1.SessionRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, all["Session"] = hubtest.Ended(session)
	subscriptions, err := stranger.Logs.ListenSubscriptions(hubtest.Within(t), &swarmv1.ListenSubscriptionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, all["ListenSubscriptions"] = hubtest.Ended(subscriptions)
	_, all["AttachNetwork"] = stranger.Allocator.AttachNetwork(hubtest.Within(t), &swarmv1.AttachNetworkRequest{})
	_, all["DetachNetwork"] = stranger.Allocator.DetachNetwork(hubtest.Within(t), &swarmv1.DetachNetworkRequest{})
	_, all["GetUnlockKey"] = stranger.CA.GetUnlockKey(hubtest.Within(t), &swarmv1.GetUnlockKeyRequest{})
	for call, err := range all {
		hubtest.Wants(t, call+" without a certificate", err, codes.PermissionDenied, "no client certificates in request")
	}
	_, err = n.CA.GetUnlockKey(hubtest.Within(t), &swarmv1.GetUnlockKeyRequest{})
	hubtest.Wants(t, "GetUnlockKey of a worker", err, codes.PermissionDenied, "remote certificate not part of OUs: [swarm-manager]")
	_, err = n.Allocator.AttachNetwork(hubtest.Within(t), &swarmv1.AttachNetworkRequest{Config: &swarmv1.NetworkAttachmentConfig{Target: "net"}})
	hubtest.Wants(t, "AttachNetwork", err, codes.NotFound, "network")
	_, err = n.Allocator.AttachNetwork(hubtest.Within(t), &swarmv1.AttachNetworkRequest{})
	hubtest.Wants(t, "AttachNetwork of nothing", err, codes.InvalidArgument, "target")
	_, err = n.Allocator.DetachNetwork(hubtest.Within(t), &swarmv1.DetachNetworkRequest{AttachmentId: "a"})
	hubtest.Wants(t, "DetachNetwork", err, codes.NotFound, "attachment")
}

// TestASupersededSession: its streams end at once, and nothing later reaches them.
func TestASupersededSession(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	n := h.Join()
	a := hubtest.MustOpen(t, n, "")
	stream := hubtest.Assignments(t, n, a.First.GetSessionId())
	hubtest.Receive(t, stream)
	tasks, err := n.Dispatcher.Tasks(hubtest.Within(t), &swarmv1.TasksRequest{SessionId: a.First.GetSessionId()})
	if err != nil {
		t.Fatal(err)
	}
	hubtest.Receive(t, tasks)
	b := hubtest.MustOpen(t, n, "")
	hubtest.Commit(t, h, inventory.Put(inventory.Secrets, "s", &swarmv1.Secret{Id: "s", Spec: &swarmv1.SecretSpec{Data: []byte("x")}}, store.Any), hubtest.Task("t", n.NodeID, swarmv1.TaskState_RUNNING, "s"))
	_, err = hubtest.Ended(a.ServerStreamingClient)
	hubtest.Wants(t, "the old session", err, codes.InvalidArgument, "session invalid")
	messages, err := hubtest.Ended(stream)
	hubtest.Wants(t, "the old assignments", err, codes.InvalidArgument, "session invalid")
	more, err := hubtest.Ended(tasks)
	hubtest.Wants(t, "the old tasks", err, codes.InvalidArgument, "session invalid")
	if messages+more > 0 {
		t.Errorf("streams that were superseded had %d messages more", messages+more)
	}
	if _, err := n.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: b.First.GetSessionId()}); err != nil {
		t.Errorf("the new session: %v", err)
	}
	// The first registration is free, three more are; then the node has to wait. On a busy machine
	// some of them are too late to count.
	count := 2
	for err = nil; err == nil; count++ {
		_, err = hubtest.Open(t, n, "")
	}
	hubtest.Wants(t, "too many registrations", err, codes.Unavailable, "node "+n.NodeID+" exceeded rate limit count of registrations")
	if count < 5 {
		t.Errorf("registration %d was refused", count)
	}
}

// TestANodeThatIsSilent is Down, may come back, and a restarted hub waits for it.
func TestANodeThatIsSilent(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Heartbeat, o.Grace = 200*time.Millisecond, 2 })
	n := h.Join()
	a, err := hubtest.Open(t, n, "") // on a busy machine it may end before it has begun
	if err == nil {
		_, err = hubtest.Ended(a.ServerStreamingClient)
	}
	hubtest.Wants(t, "the session of a silent node", err, codes.NotFound, "node not registered")
	hubtest.Until(t, h, "the node is down", func() bool { return hubtest.State(h, n.NodeID) == swarmv1.NodeStatus_DOWN })
	if n, _, _ := h.Inventory.Node(n.NodeID); n.GetStatus().GetMessage() != "heartbeat failure" || n.GetDescription().GetHostname() != "edge" {
		t.Errorf("the node: %v", n)
	}
	_, err = n.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: a.First.GetSessionId()})
	hubtest.Wants(t, "a heartbeat too late", err, codes.NotFound, "node not registered")

	h.Restart(func(o *hub.Options) { o.Heartbeat = time.Minute })
	hubtest.MustOpen(t, n, a.First.GetSessionId())
	hubtest.Until(t, h, "the node is back", func() bool { return hubtest.State(h, n.NodeID) == swarmv1.NodeStatus_READY })
	h.Restart(func(o *hub.Options) { o.Heartbeat = 200 * time.Millisecond })
	hubtest.Until(t, h, "the node did not come back", func() bool { return hubtest.State(h, n.NodeID) == swarmv1.NodeStatus_DOWN })
	if n, _, _ := h.Inventory.Node(n.NodeID); n.GetStatus().GetMessage() != "the node did not reconnect after its hub had ended" {
		t.Errorf("the node: %v", n)
	}
}

// slow is a database that takes a time to store that a node has a session.
type slow struct {
	store.DB
	takes time.Duration
}

// Commit implements store.DB.
func (s slow) Commit(ctx context.Context, writes []store.Write) (int64, error) {
	if slices.ContainsFunc(writes, func(w store.Write) bool { return strings.HasPrefix(w.Key, inventory.Seen) }) {
		select {
		case <-time.After(s.takes):
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
	}
	return s.DB.Commit(ctx, writes)
}

// TestASlowDisk: the hub's time to store a node's session does not count as the node's silence.
func TestASlowDisk(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) {
		o.Heartbeat, o.Grace = time.Second, 1
		open := o.Store.Open
		o.Store.Open = func(ctx context.Context, log *slog.Logger) (store.DB, error) {
			db, err := open(ctx, log)
			return slow{db, 1500 * time.Millisecond}, err
		}
	})
	a := hubtest.MustOpen(t, h.Join(), "")
	if a.First.GetNode().GetStatus().GetState() != swarmv1.NodeStatus_READY {
		t.Errorf("the node is %v", a.First.GetNode().GetStatus())
	}
}

// describe tells a message of assignments, in the order of its changes.
func describe(m *swarmv1.AssignmentsMessage) string {
	words := []string{m.GetType().String(), m.GetAppliesTo() + ">" + m.GetResultsIn()}
	for _, c := range m.GetChanges() {
		id := ""
		switch item := c.GetAssignment().GetItem().(type) {
		case *swarmv1.Assignment_Task:
			id = "task " + item.Task.GetId()
			if c.GetAction() == swarmv1.AssignmentChange_UPDATE {
				id += "=" + item.Task.GetDesiredState().String()
			}
		case *swarmv1.Assignment_Secret:
			id = "secret " + item.Secret.GetId() + string(item.Secret.GetSpec().GetData())
		case *swarmv1.Assignment_Config:
			id = item.Config.GetId()
		}
		words = append(words, c.GetAction().String()+" "+id)
	}
	return strings.Join(words, ", ")
}

// TestAssignments: all at first, then the changes, each message after the one before; a task's
// secrets come before it and go when no running task needs them any more.
func TestAssignments(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	n, other := h.Join(), h.Join()
	id := hubtest.MustOpen(t, n, "").First.GetSessionId()
	hubtest.MustOpen(t, other, "")
	hubtest.Commit(t, h,
		inventory.Put(inventory.Secrets, "key", &swarmv1.Secret{Id: "key", Spec: &swarmv1.SecretSpec{Data: []byte("!")}}, store.Any),
		inventory.Put(inventory.Configs, "config-x", &swarmv1.Config{Id: "config-x"}, store.Any),
		hubtest.Task("a", n.NodeID, swarmv1.TaskState_RUNNING, "key", "config-x", "unknown"), hubtest.Task("o", other.NodeID, swarmv1.TaskState_RUNNING, "key"),
	)
	stream := hubtest.Assignments(t, n, id)
	next := func(want string) {
		t.Helper()
		if got := describe(hubtest.Receive(t, stream)); got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
	next("COMPLETE, >1, UPDATE secret key!, UPDATE config-x, UPDATE task a=RUNNING")
	if got := describe(hubtest.Receive(t, hubtest.Assignments(t, n, id))); !strings.HasPrefix(got, "COMPLETE, >1, ") {
		t.Errorf("a second stream: %s", got)
	}
	report := func(id, task string, s swarmv1.TaskState) error {
		_, err := n.Dispatcher.UpdateTaskStatus(hubtest.Within(t), &swarmv1.UpdateTaskStatusRequest{SessionId: id, Updates: []*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate{
			{TaskId: "nobody's", Status: &swarmv1.TaskStatus{State: s}}, {TaskId: "a"}, {TaskId: task, Status: &swarmv1.TaskStatus{State: s}},
		}})
		return err
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	// A state of a running task is not echoed: the next message is that of another change.
	must(report(id, "a", swarmv1.TaskState_RUNNING))
	hubtest.Until(t, h, "a runs", func() bool { a, _ := h.Inventory.Task("a"); return a.State() == swarmv1.TaskState_RUNNING })
	hubtest.Commit(t, h, hubtest.Task("b", n.NodeID, swarmv1.TaskState_RUNNING, "key"))
	next("INCREMENTAL, 1>2, UPDATE task b=RUNNING")
	hubtest.Commit(t, h, hubtest.Task("a", n.NodeID, swarmv1.TaskState_REMOVE, "key", "config-x"))
	next("INCREMENTAL, 2>3, UPDATE task a=REMOVE")
	must(report(id, "a", swarmv1.TaskState_SHUTDOWN))
	next("INCREMENTAL, 3>4, REMOVE config-x")
	must(report(id, "a", swarmv1.TaskState_RUNNING)) // a replay of a state that was left
	must(report(id, "a", swarmv1.TaskState_REMOVE))  // no state of a node's
	hubtest.Commit(t, h, inventory.Delete(inventory.Tasks, "a", store.Any), inventory.Delete(inventory.Statuses, "a", store.Any))
	next("INCREMENTAL, 4>5, REMOVE task a")
	must(report(id, "a", swarmv1.TaskState_FAILED)) // of a task that is gone
	must(report(id, "b", swarmv1.TaskState_COMPLETE))
	next("INCREMENTAL, 5>6, REMOVE secret key")

	// The whole call is refused when one task is another node's.
	hubtest.Commit(t, h, hubtest.Task("c", n.NodeID, swarmv1.TaskState_RUNNING))
	_, err := n.Dispatcher.UpdateTaskStatus(hubtest.Within(t), &swarmv1.UpdateTaskStatusRequest{SessionId: id, Updates: []*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate{
		{TaskId: "c", Status: &swarmv1.TaskStatus{State: swarmv1.TaskState_FAILED}}, {TaskId: "o", Status: &swarmv1.TaskStatus{State: swarmv1.TaskState_FAILED}},
	}})
	hubtest.Wants(t, "the status of another node's task", err, codes.PermissionDenied, "cannot update a task not assigned this node")
	must(report(id, "c", swarmv1.TaskState_RUNNING))
	hubtest.Until(t, h, "c runs", func() bool { c, _ := h.Inventory.Task("c"); return c.State() == swarmv1.TaskState_RUNNING })
	if o, _ := h.Inventory.Task("o"); o.State() != swarmv1.TaskState_ASSIGNED {
		t.Errorf("another node's task is %s", o.State())
	}
	if c, _ := h.Inventory.Task("c"); c.Status.M.GetAppliedBy() != h.CA.Authority.Hub || c.Status.M.GetAppliedAt() == nil || c.RunningAt.IsZero() || len(c.Message().GetStatus().ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("who stored the status: %v", c.Status.M)
	}
	_, err = n.Dispatcher.UpdateVolumeStatus(hubtest.Within(t), &swarmv1.UpdateVolumeStatusRequest{SessionId: id, Updates: []*swarmv1.UpdateVolumeStatusRequest_VolumeStatusUpdate{{Id: "unknown", Unpublished: true}}})
	must(err)

	// The stream of workers that do not know assignments.
	tasks, err := n.Dispatcher.Tasks(hubtest.Within(t), &swarmv1.TasksRequest{SessionId: id})
	must(err)
	names := func() (list []string) {
		for _, task := range hubtest.Receive(t, tasks).GetTasks() {
			list = append(list, task.GetId())
		}
		return slices.Sorted(slices.Values(list))
	}
	if got := names(); !slices.Equal(got, []string{"b", "c"}) {
		t.Errorf("tasks %v", got)
	}
	hubtest.Commit(t, h, inventory.Delete(inventory.Tasks, "b", store.Any))
	if got := names(); !slices.Equal(got, []string{"c"}) {
		t.Errorf("tasks %v", got)
	}

	// Stored tasks survive a restart; the session does not.
	h.Restart()
	if all := slices.Sorted(maps.Keys(h.Inventory.Tasks())); !slices.Equal(all, []string{"c", "o"}) {
		t.Errorf("tasks after a restart: %v", all)
	}
	if c, _ := h.Inventory.Task("c"); c.State() != swarmv1.TaskState_RUNNING {
		t.Errorf("c is %s after a restart", c.State())
	}
	if again := hubtest.MustOpen(t, n, id); again.First.GetSessionId() == id {
		t.Error("a session outlived its hub")
	}
}

// TestARemovedNode hears so from every call, and its streams end.
func TestARemovedNode(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t)
	n := h.Join()
	a := hubtest.MustOpen(t, n, "")
	stream := hubtest.Assignments(t, n, a.First.GetSessionId())
	hubtest.Receive(t, stream)
	if err := h.CA.Remove(hubtest.Within(t), n.NodeID); err != nil {
		t.Fatal(err)
	}
	_, err := hubtest.Ended(stream)
	hubtest.Wants(t, "its assignments", err, codes.PermissionDenied, "node "+n.NodeID+" was removed from swarm")
	_, err = hubtest.Open(t, n, a.First.GetSessionId())
	hubtest.Wants(t, "another session", err, codes.PermissionDenied, "was removed from swarm")
	_, csr := hubtest.Request(t)
	_, err = n.NodeCA.IssueNodeCertificate(hubtest.Within(t), &swarmv1.IssueNodeCertificateRequest{Csr: csr})
	hubtest.Wants(t, "a renewal", err, codes.PermissionDenied, "was removed from swarm")
	h.Restart()
	_, err = hubtest.Open(t, n, "")
	hubtest.Wants(t, "after the hub's restart", err, codes.PermissionDenied, "was removed from swarm")
	if status.Code(err) == codes.OK {
		t.Error("it is a member again")
	}
}

package hub_test

import (
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/hubtest"
)

// TestRemovalReachesWhatIsOpen: each open stream of a node ends when the node is removed, also an
// idle one, and on its connections it may send no more than a stranger. Another node's streams
// continue.
func TestRemovalReachesWhatIsOpen(t *testing.T) {
	t.Parallel()
	h := hubtest.New(t, func(o *hub.Options) { o.Hold = true })
	type open struct {
		n             *hubtest.Node
		session       hubtest.Opened
		subscriptions grpc.ServerStreamingClient[swarmv1.SubscriptionMessage]
		publish       grpc.ClientStreamingClient[swarmv1.PublishLogsMessage, swarmv1.PublishLogsResponse]
	}
	var asked string
	opened := func(task string) (o open) {
		o.n = h.Join()
		o.session = hubtest.MustOpen(t, o.n, "")
		hubtest.Commit(t, h, hubtest.Task(task, o.n.NodeID, swarmv1.TaskState_RUNNING))
		subscriptions, err := again(h, o.n).Logs.ListenSubscriptions(hubtest.Within(t), &swarmv1.ListenSubscriptionsRequest{})
		if err != nil {
			t.Fatal(err)
		}
		o.subscriptions = subscriptions
		sub := h.Broker.Subscribe(&swarmv1.LogSelector{TaskIds: []string{task}}, &swarmv1.LogSubscriptionOptions{Follow: true}, func(string) bool { return true })
		t.Cleanup(sub.Close)
		asked = hubtest.Receive(t, subscriptions).GetId()
		publish, err := again(h, o.n).Logs.PublishLogs(hubtest.Within(t))
		if err != nil {
			t.Fatal(err)
		}
		line := &swarmv1.LogMessage{Context: &swarmv1.LogContext{NodeId: o.n.NodeID, TaskId: task}, Data: []byte("hello")}
		if err := publish.Send(&swarmv1.PublishLogsMessage{SubscriptionId: asked, Messages: []*swarmv1.LogMessage{line}}); err != nil {
			t.Fatal(err)
		}
		<-sub.Messages // the stream is open
		o.publish = publish
		return o
	}
	leaves, stays := opened("a"), opened("b")
	if err := h.CA.Remove(hubtest.Within(t), leaves.n.NodeID); err != nil {
		t.Fatal(err)
	}
	_, err := hubtest.Ended(leaves.session.ServerStreamingClient)
	hubtest.Wants(t, "the session", err, codes.PermissionDenied, "was removed")
	_, err = hubtest.Ended(leaves.subscriptions)
	hubtest.Wants(t, "the subscriptions", err, codes.PermissionDenied, "was removed")
	// The client sends nothing, and waits for the answer.
	err = leaves.publish.RecvMsg(new(swarmv1.PublishLogsResponse))
	if c := status.Code(err); c != codes.Unavailable && c != codes.PermissionDenied {
		t.Errorf("the stream of output ended with %v", err)
	}
	// Its first connection is one of before.
	large := &swarmv1.HeartbeatRequest{SessionId: strings.Repeat("x", 60<<10)}
	sends := func(n *hubtest.Node) (err error) {
		for range 10 {
			if _, err = n.Dispatcher.Heartbeat(hubtest.Within(t), large); status.Code(err) == codes.Unavailable {
				return err
			}
		}
		return err
	}
	if err := sends(leaves.n); status.Code(err) != codes.Unavailable {
		t.Errorf("a node that was removed sends as much as it likes by the connection that it had: %v", err)
	}
	if err := sends(stays.n); status.Code(err) != codes.InvalidArgument {
		t.Errorf("another node: %v", err)
	}
	if err := stays.publish.Send(&swarmv1.PublishLogsMessage{SubscriptionId: asked, Close: true}); err != nil {
		t.Errorf("the stream of another node: %v", err)
	}
	if _, err := stays.publish.CloseAndRecv(); err != nil {
		t.Errorf("the stream of another node: %v", err)
	}
}

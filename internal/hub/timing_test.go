package hub_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/hubtest"
)

// TestTheRateOfRegistrations: a node's first registration is free and three more are; the next ones are refused until
// eight seconds have passed since the last that was taken. A session that is resumed is none, and another node's do not count.
func TestTheRateOfRegistrations(t *testing.T) { //nolint:paralleltest // synctest has no parallel tests
	synctest.Test(t, func(t *testing.T) {
		h := hubtest.NewVirtual(t)
		n, other := h.Join(), h.Join()
		id := ""
		taken := func(what string) {
			t.Helper()
			o, err := hubtest.Open(t, n, "")
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			if o.First.GetSessionId() == id {
				t.Errorf("%s: the session is the one of before", what)
			}
			id = o.First.GetSessionId()
		}
		refused := func(what string) {
			t.Helper()
			_, err := hubtest.Open(t, n, "another")
			hubtest.Wants(t, what, err, codes.Unavailable, "node "+n.NodeID+" exceeded rate limit count of registrations")
			if again := hubtest.MustOpen(t, n, id); again.First.GetSessionId() != id {
				t.Errorf("%s: resumed as another session", what)
			}
			if _, err := n.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: id}); err != nil {
				t.Errorf("%s: the session that it has: %v", what, err)
			}
		}
		for _, more := range []int{3, 2, 2} { // the very first one does not count; one before a quiet time does not either
			taken("the first registration")
			for range more {
				<-time.After(2 * time.Second) // each within the window of the one before
				taken("another one")
			}
			last := time.Now()
			refused("one too many")
			hubtest.MustOpen(t, other, "")
			<-time.After(8*time.Second - time.Since(last))
			refused("after eight seconds") // longer than that ago, as SwarmKit has it
			<-time.After(time.Millisecond)
			other = h.Join()
		}
	})
}

// TestHeartbeatsAndGrace: a node's period is within a tenth of the configured one, and it is Down three of them
// after its last call, at that moment and not before.
func TestHeartbeatsAndGrace(t *testing.T) { //nolint:paralleltest // synctest has no parallel tests
	synctest.Test(t, func(t *testing.T) {
		h := hubtest.NewVirtual(t)
		n := h.Join()
		is := func(when string, want swarmv1.NodeStatus_State) {
			t.Helper()
			synctest.Wait()
			if got := hubtest.State(h, n.NodeID); got != want {
				t.Fatalf("%s the node is %s, want %s", when, got, want)
			}
		}
		stream, err := n.Dispatcher.Session(t.Context(), &swarmv1.SessionRequest{})
		if err != nil {
			t.Fatal(err)
		}
		id := hubtest.Receive(t, stream).GetSessionId()
		silent := 3 * 5 * time.Second // without a heartbeat since it registered
		for range 50 {
			<-time.After(silent - time.Millisecond)
			is("before its time", swarmv1.NodeStatus_READY)
			resp, err := n.Dispatcher.Heartbeat(hubtest.Within(t), &swarmv1.HeartbeatRequest{SessionId: id})
			if err != nil {
				t.Fatal(err)
			}
			period := resp.GetPeriod().AsDuration()
			if period < 4500*time.Millisecond || period > 5500*time.Millisecond {
				t.Errorf("a period of %s", period)
			}
			silent = 3 * period
		}
		<-time.After(silent - time.Millisecond)
		is("before its time", swarmv1.NodeStatus_READY)
		<-time.After(time.Millisecond)
		is("after three periods", swarmv1.NodeStatus_DOWN)
		_, err = hubtest.Ended(stream)
		hubtest.Wants(t, "its session", err, codes.NotFound, "node not registered")
		<-time.After(10 * time.Second)
		hubtest.MustOpen(t, n, id)
		is("when it is back", swarmv1.NodeStatus_READY)
	})
}

// TestWhenChangesAreSent: the first one at once, and those within a tenth of a second after a
// message together at its end.
func TestWhenChangesAreSent(t *testing.T) { //nolint:paralleltest // synctest has no parallel tests
	synctest.Test(t, func(t *testing.T) {
		h := hubtest.NewVirtual(t, func(o *hub.Options) { o.Hold = true })
		n := h.Join()
		stream := hubtest.Assignments(t, n, hubtest.MustOpen(t, n, "").First.GetSessionId())
		hubtest.Receive(t, stream)
		<-time.After(time.Second)
		next := func(after time.Duration, want string) {
			t.Helper()
			begun := time.Now()
			got := describe(hubtest.Receive(t, stream))
			if took := time.Since(begun); got != want || took != after {
				t.Errorf("after %s: %s, want %s after %s", took, got, want, after)
			}
		}
		hubtest.Commit(t, h, hubtest.Task("a", n.NodeID, swarmv1.TaskState_RUNNING))
		next(0, "INCREMENTAL, 1>2, UPDATE task a=RUNNING")
		<-time.After(30 * time.Millisecond)
		hubtest.Commit(t, h, hubtest.Task("a", n.NodeID, swarmv1.TaskState_SHUTDOWN))
		<-time.After(30 * time.Millisecond)
		hubtest.Commit(t, h, hubtest.Task("a", n.NodeID, swarmv1.TaskState_REMOVE))
		next(40*time.Millisecond, "INCREMENTAL, 2>3, UPDATE task a=REMOVE")
		<-time.After(time.Second)
		hubtest.Commit(t, h, hubtest.Task("a", n.NodeID, swarmv1.TaskState_REMOVE, "config-x"))
		next(0, "INCREMENTAL, 3>4, UPDATE task a=REMOVE")
	})
}

package hub_test

import (
	"context"
	"log/slog"
	"strings"
	"sync"
	"testing"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/hubtest"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
)

// stuckLog is a log that stops at one message: it closes stuck and waits for free.
type stuckLog struct {
	slog.Handler
	at          string
	once        *sync.Once
	stuck, free chan struct{}
}

// Enabled implements slog.Handler.
func (stuckLog) Enabled(context.Context, slog.Level) bool { return true }

// Handle implements slog.Handler.
func (l stuckLog) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, l.at) {
		l.once.Do(func() {
			close(l.stuck)
			<-l.free
		})
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (l stuckLog) WithAttrs([]slog.Attr) slog.Handler { return l }

// WithGroup implements slog.Handler.
func (l stuckLog) WithGroup(string) slog.Handler { return l }

// TestHeartbeatsWaitForNothing: while the inventory and the dispatcher are blocked, and with them the scheduler,
// all assignments and statuses, each node's heartbeat is answered. The rest continues later.
func TestHeartbeatsWaitForNothing(t *testing.T) {
	t.Parallel()
	log := stuckLog{at: "a node has moved to another hub", once: new(sync.Once), stuck: make(chan struct{}), free: make(chan struct{})}
	h := hubtest.New(t, func(o *hub.Options) { o.Log = slog.New(log) })
	var release sync.Once
	freed := func() { release.Do(func() { close(log.free) }) }
	t.Cleanup(freed) // before the hub ends
	leaving, n := h.Join(), h.Join()
	hubtest.MustOpen(t, leaving, "")
	session := hubtest.MustOpen(t, n, "").First.GetSessionId()
	ctx := hubtest.Within(t)

	// A record says that another hub has the node. The inventory takes it over while it logs that.
	committed := make(chan error, 1)
	go func() {
		_, err := h.Inventory.Commit(ctx, inventory.Put(inventory.Seen, leaving.NodeID, &swarmv1.Node{Spec: inventory.Hold("another", "session")}, store.Any))
		committed <- err
	}()
	<-log.stuck
	blocked := make(chan string, 3)
	go func() { h.Inventory.Tasks(); blocked <- "the scheduler's read of the inventory" }()
	go func() { h.Inventory.Assigned(n.NodeID); blocked <- "assignments" }()
	go func() { h.Dispatcher.Addr(n.NodeID); blocked <- "the dispatcher" }()
	for range 3 {
		if _, err := n.Dispatcher.Heartbeat(ctx, &swarmv1.HeartbeatRequest{SessionId: session}); err != nil {
			t.Fatalf("a heartbeat: %v", err)
		}
	}
	select {
	case what := <-blocked:
		t.Errorf("%s was not blocked; the test shows nothing", what)
	default:
	}
	freed()
	for range 3 {
		<-blocked
	}
	if err := <-committed; err != nil {
		t.Error(err)
	}
	if _, err := leaving.Dispatcher.Heartbeat(ctx, &swarmv1.HeartbeatRequest{SessionId: "any"}); err == nil {
		t.Error("the node that has left has a session here")
	}
}

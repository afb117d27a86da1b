package inventory_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// TestWhatLeadsToAnotherRound: the states of a task on its way to run do not, nor do records that no round reads; that it
// runs, is ready to be started, or has ended does, and so does each change of the input of a round.
func TestWhatLeadsToAnotherRound(t *testing.T) {
	t.Parallel()
	b := inventory.New(storetest.New(t), "hub", slog.New(slog.DiscardHandler))
	if err := b.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	task := func(id string, to swarmv1.TaskState) store.Write {
		return inventory.Put(inventory.Tasks, id, &swarmv1.Task{Id: id, NodeId: "n", ServiceId: "s", DesiredState: to}, store.Any)
	}
	status := func(id string, s swarmv1.TaskState) store.Write {
		return inventory.Put(inventory.Statuses, id, &swarmv1.TaskStatus{State: s, AppliedAt: timestamppb.Now()}, store.Any)
	}
	for _, c := range []struct {
		what  string
		write store.Write
		leads bool
	}{
		{"a node", inventory.Put(inventory.Nodes, "n", &swarmv1.Node{Id: "n"}, store.Any), true},
		{"its session", inventory.Put(inventory.Seen, "n", &swarmv1.Node{Status: &swarmv1.NodeStatus{State: swarmv1.NodeStatus_READY}}, store.Any), true},
		{"a service", inventory.Put(inventory.Services, "s", &swarmv1.Service{Id: "s"}, store.Any), true},
		{"a secret", inventory.Put(inventory.Secrets, "x", &swarmv1.Secret{Id: "x"}, store.Any), true},
		{"a config", inventory.Put(inventory.Configs, "x", &swarmv1.Config{Id: "x"}, store.Any), true},
		{"a task", task("t", swarmv1.TaskState_RUNNING), true},
		{"accepted", status("t", swarmv1.TaskState_ACCEPTED), false},
		{"preparing", status("t", swarmv1.TaskState_PREPARING), false},
		{"ready, on its way", status("t", swarmv1.TaskState_READY), false},
		{"starting", status("t", swarmv1.TaskState_STARTING), false},
		{"running", status("t", swarmv1.TaskState_RUNNING), true},
		{"running still", status("t", swarmv1.TaskState_RUNNING), false},
		{"failed", status("t", swarmv1.TaskState_FAILED), true},
		{"failed, with another text", status("t", swarmv1.TaskState_FAILED), true},
		{"a task that is to be ready", task("p", swarmv1.TaskState_READY), true},
		{"it prepares", status("p", swarmv1.TaskState_PREPARING), false},
		{"it is ready", status("p", swarmv1.TaskState_READY), true},
		{"another record", store.Write{Key: "event/1", Value: []byte("{}")}, false},
		{"who leads", store.Write{Key: "hub/leads", Value: []byte("{}")}, false},
		{"the task's end", inventory.Delete(inventory.Tasks, "t", store.Any), true},
	} {
		next := b.NextRound()
		if _, err := b.Commit(t.Context(), c.write); err != nil {
			t.Fatal(err)
		}
		leads := false
		select {
		case <-next:
			leads = true
		default:
		}
		if leads != c.leads {
			t.Errorf("%s leads to another round: %v, want %v", c.what, leads, c.leads)
		}
	}
	stop(errors.New("the test is over"))
	<-ended
}

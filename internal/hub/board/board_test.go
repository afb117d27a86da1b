package board_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/board"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// TestAMessageThatCannotBeEncodedIsRefused, with all that was to be written together with it.
func TestAMessageThatCannotBeEncodedIsRefused(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	good := board.Put(board.Nodes, "good", &swarmv1.Node{Id: "good"}, store.Absent)
	bad := board.Put(board.Nodes, "bad", &swarmv1.Node{Id: "\xff"}, store.Absent)
	if _, err := s.Commit(t.Context(), good, bad); !errdefs.IsInvalidArgument(err) {
		t.Errorf("a string that is not UTF-8: %v", err)
	}
	if _, err := s.Get(t.Context(), good.Key); !errdefs.IsNotFound(err) {
		t.Errorf("a part of a refused transaction was stored: %v", err)
	}
	if _, err := s.Commit(t.Context(), good); err != nil {
		t.Error(err)
	}
}

// TestOfTwoChangesFromTheSameRecordsOneIsCommitted, also by a hub that has just begun.
func TestOfTwoChangesFromTheSameRecordsOneIsCommitted(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	for range 2 {
		b := board.New(s, "hub", slog.New(slog.DiscardHandler))
		if err := b.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancelCause(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		first, second := b.Turn(), b.Turn()
		if _, err := b.Commit(t.Context(), first); err != nil {
			t.Error(err)
		}
		if _, err := b.Commit(t.Context(), second); !errdefs.IsAborted(err) {
			t.Errorf("the second change: %v", err)
		}
		if _, err := b.Commit(t.Context(), b.Turn()); err != nil {
			t.Error(err)
		}
		stop(errors.New("the test is over"))
		<-ended
	}
}

// TestCredentialsAreSealed: those of registries, which services and their tasks hold.
func TestCredentialsAreSealed(t *testing.T) {
	t.Parallel()
	spec := func(auth string) *swarmv1.TaskSpec {
		return &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Container{Container: &swarmv1.ContainerSpec{PullOptions: &swarmv1.ContainerSpec_PullOptions{RegistryAuth: auth}}}}
	}
	for name, c := range map[string]struct {
		m    proto.Message
		want bool
	}{
		"service":          {&swarmv1.Service{Spec: &swarmv1.ServiceSpec{Task: spec("planted")}}, true},
		"service before":   {&swarmv1.Service{PreviousSpec: &swarmv1.ServiceSpec{Task: spec("planted")}}, true},
		"task":             {&swarmv1.Task{Spec: spec("planted")}, true},
		"service without":  {&swarmv1.Service{Spec: &swarmv1.ServiceSpec{Task: spec("")}}, false},
		"task without any": {&swarmv1.Task{}, false},
	} {
		if got := board.Put(board.Services, "id", c.m, store.Any).Secret; got != c.want {
			t.Errorf("%s: sealed %v", name, got)
		}
	}
}

// TestAStatusDoesNotOutliveItsTask: it is told when the task is gone from the store, and the board does not know yet.
func TestAStatusDoesNotOutliveItsTask(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	put := func(id string) store.Write {
		return board.Put(board.Tasks, id, &swarmv1.Task{Id: id, NodeId: "n"}, store.Any)
	}
	if _, err := s.Commit(t.Context(), put("gone"), put("stays")); err != nil {
		t.Fatal(err)
	}
	b := board.New(s, "hub", slog.New(slog.DiscardHandler))
	if err := b.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), board.Delete(board.Tasks, "gone", store.Any)); err != nil {
		t.Fatal(err)
	}
	runs := &swarmv1.TaskStatus{State: swarmv1.TaskState_RUNNING}
	b.Report("n", []*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate{{TaskId: "gone", Status: runs}, {TaskId: "stays", Status: runs}})
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	next := b.Next()
	go func() { ended <- b.Run(ctx) }()
	for {
		if task, _ := b.Task("stays"); task.State() == swarmv1.TaskState_RUNNING {
			break
		}
		<-next
		next = b.Next()
	}
	stop(errors.New("the test is over"))
	<-ended
	statuses, _, err := s.List(t.Context(), board.Statuses)
	if err != nil || len(statuses) != 1 || statuses[0].Key != board.Statuses+"stays" {
		t.Errorf("the statuses that are stored: %v, %v", statuses, err)
	}
}

package inventory_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// TestAMessageThatCannotBeEncodedIsRefused, with all that was to be written together with it.
func TestAMessageThatCannotBeEncodedIsRefused(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	good := inventory.Put(inventory.Nodes, "good", &swarmv1.Node{Id: "good"}, store.Absent)
	bad := inventory.Put(inventory.Nodes, "bad", &swarmv1.Node{Id: "\xff"}, store.Absent)
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
		b := inventory.New(s, "hub", slog.New(slog.DiscardHandler))
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
		if got := inventory.Put(inventory.Services, "id", c.m, store.Any).Secret; got != c.want {
			t.Errorf("%s: sealed %v", name, got)
		}
	}
}

// TestAStatusDoesNotOutliveItsTask: it comes when the task is gone from the store, and the
// inventory still has it.
func TestAStatusDoesNotOutliveItsTask(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	put := func(id string) store.Write {
		return inventory.Put(inventory.Tasks, id, &swarmv1.Task{Id: id, NodeId: "n"}, store.Any)
	}
	if _, err := s.Commit(t.Context(), put("gone"), put("stays")); err != nil {
		t.Fatal(err)
	}
	b := inventory.New(s, "hub", slog.New(slog.DiscardHandler))
	if err := b.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(), inventory.Delete(inventory.Tasks, "gone", store.Any)); err != nil {
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
	statuses, _, err := s.List(t.Context(), inventory.Statuses)
	if err != nil || len(statuses) != 1 || statuses[0].Key != inventory.Statuses+"stays" {
		t.Errorf("the statuses that are stored: %v, %v", statuses, err)
	}
}

// TestSinceWhenATaskRuns is stored beside its node's report, read again, also as earlier hubs have stored it, and
// no node can report it.
func TestSinceWhenATaskRuns(t *testing.T) {
	t.Parallel()
	s := storetest.New(t)
	then := time.Unix(1_700_000_000, 5).UTC()
	// As it was stored when it was a field of the status.
	at, err := proto.Marshal(timestamppb.New(then))
	if err != nil {
		t.Fatal(err)
	}
	own := protowire.AppendBytes(protowire.AppendTag(nil, 1000, protowire.BytesType), at)
	before, err := proto.Marshal(&swarmv1.TaskStatus{State: swarmv1.TaskState_STARTING})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Commit(t.Context(),
		inventory.Put(inventory.Tasks, "old", &swarmv1.Task{Id: "old", NodeId: "n"}, store.Any), store.Write{Key: inventory.Statuses + "old", Value: append(own, before...)},
		inventory.Put(inventory.Tasks, "new", &swarmv1.Task{Id: "new", NodeId: "n"}, store.Any),
	); err != nil {
		t.Fatal(err)
	}
	// load is an inventory of another hub after a time.
	load := func() *inventory.Inventory {
		b := inventory.New(s, "hub", slog.New(slog.DiscardHandler))
		if err := b.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		return b
	}
	b := load()
	if old, _ := b.Task("old"); !old.RunningAt.Equal(then) || old.State() != swarmv1.TaskState_STARTING || len(old.Status.M.ProtoReflect().GetUnknown()) > 0 {
		t.Errorf("the task of before: %v, %v", old.RunningAt, old.Status.M)
	}
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	report := func(state swarmv1.TaskState) {
		t.Helper()
		for _, id := range []string{"old", "new"} {
			told := &swarmv1.TaskStatus{State: state, Message: state.String()}
			told.ProtoReflect().SetUnknown(own)
			b.Report("n", []*swarmv1.UpdateTaskStatusRequest_TaskStatusUpdate{{TaskId: id, Status: told}})
		}
		for next := b.Next(); ; next = b.Next() {
			old, _ := b.Task("old")
			if now, _ := b.Task("new"); now.State() == state && old.State() == state {
				return
			}
			<-next
		}
	}
	begun := time.Now()
	report(swarmv1.TaskState_RUNNING)
	is, _ := b.Task("new")
	if is.RunningAt.Before(begun.Add(-time.Second)) || is.RunningAt.After(time.Now()) {
		t.Errorf("it runs since %v, now is %v", is.RunningAt, begun)
	}
	report(swarmv1.TaskState_COMPLETE)
	stop(errors.New("the test is over"))
	<-ended
	for id, want := range map[string]time.Time{"old": then, "new": is.RunningAt} {
		if task, _ := load().Task(id); !task.RunningAt.Equal(want) || task.State() != swarmv1.TaskState_COMPLETE || len(task.Message().GetStatus().ProtoReflect().GetUnknown()) > 0 {
			t.Errorf("%s runs since %v, %v, want %v", id, task.RunningAt, task.Message(), want)
		}
	}
}

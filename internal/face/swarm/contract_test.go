package swarm_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/swarm/swarmtest"
)

// once makes a call fail with an error the first time.
func (r *rig) once(call string, code codes.Code, text string) {
	var done atomic.Bool
	r.Hook(func(asked string) error {
		if asked == call && !done.Swap(true) {
			return status.Error(code, text)
		}
		return nil
	})
}

// TestCodesOfTheDispatcher: each one's effect on the session; the task notices none. The node
// replaces a session that the manager does not know, and resumes any other.
func TestCodesOfTheDispatcher(t *testing.T) {
	for _, c := range []struct {
		call string
		code codes.Code
		text string
		anew bool
	}{
		{"Heartbeat", codes.NotFound, "node not registered", true},
		{"Heartbeat", codes.InvalidArgument, "session invalid", true},
		{"Heartbeat", codes.Aborted, "dispatcher is stopped", false},
		{"Heartbeat", codes.PermissionDenied, "node node1 was removed from swarm", false},
		{"Heartbeat", codes.Unavailable, "the swarm does not have a leader", false},
		{"UpdateTaskStatus", codes.NotFound, "node not registered", true},
		{"UpdateTaskStatus", codes.InvalidArgument, "session invalid", true},
		{"UpdateTaskStatus", codes.ResourceExhausted, "more than one redirect", false},
		{"Assignments", codes.InvalidArgument, "session invalid", true},
		{"Session", codes.Unavailable, "node node1 exceeded rate limit count of registrations", false},
		{"Session", codes.Unknown, "node not found", false},
		{"Session", codes.DeadlineExceeded, "too late", false},
	} {
		t.Run(c.call+" "+c.code.String(), func(t *testing.T) {
			r := newRig(t)
			r.join()
			r.Assign(swarmtest.Task("a", image, "sleep"))
			r.Reaches("a", swarmv1.TaskState_RUNNING)
			pid := r.container("a").Main.Pid
			r.Forget()
			r.once(c.call, c.code, c.text)
			if c.call == "Heartbeat" {
				r.Until("the status is told again", func() bool { return len(r.Statuses("a")) > 0 })
			} else {
				r.Drop(false)
			}
			// After any code all is reported again, and the next task arrives.
			r.Reaches("a", swarmv1.TaskState_RUNNING)
			r.Assign(swarmtest.Task("b", image, "well"))
			r.Reaches("b", swarmv1.TaskState_COMPLETE)
			if n := r.Sessions(); (n > 1) != c.anew {
				t.Errorf("%d sessions, want another one: %v", n, c.anew)
			}
			if now := r.container("a"); now.Main.Pid != pid {
				t.Error("the task was started again")
			}
		})
	}
}

// TestAssignmentsOfAnySize: managers send all that a node has in one message, of more
// than gRPC's 4 MiB.
func TestAssignmentsOfAnySize(t *testing.T) {
	r := newRig(t)
	r.join()
	r.Change(func(tasks map[string]*swarmv1.Task, _ map[string]*swarmv1.Secret, configs map[string]*swarmv1.Config) {
		for i := range 12 {
			id := fmt.Sprint("c", i)
			configs[id] = &swarmv1.Config{Id: id, Spec: &swarmv1.ConfigSpec{Data: make([]byte, 500_000)}}
		}
		tasks["a"] = swarmtest.Task("a", image, "sleep")
	})
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	r.Forget()
	r.Drop(true) // the next message has 6 MB
	r.Reaches("a", swarmv1.TaskState_RUNNING)
	if n := r.Sessions(); n != 2 {
		t.Errorf("%d sessions", n)
	}
}

// TestACompleteMessageWithoutWhatRuns: the omitted task is removed with all that it has; the named
// one runs on.
func TestACompleteMessageWithoutWhatRuns(t *testing.T) {
	r := newRig(t)
	r.join()
	keep := swarmtest.Task("keep", image, "sleep")
	r.Assign(keep)
	r.Assign(swarmtest.Task("gone", image, "sleep"))
	r.Reaches("keep", swarmv1.TaskState_RUNNING)
	r.Reaches("gone", swarmv1.TaskState_RUNNING)
	pid := r.container("keep").Main.Pid
	r.Send(&swarmv1.AssignmentsMessage{Type: swarmv1.AssignmentsMessage_COMPLETE, ResultsIn: "7", Changes: []*swarmv1.AssignmentChange{
		{Assignment: &swarmv1.Assignment{Item: &swarmv1.Assignment_Task{Task: keep}}},
	}})
	r.gone("gone")
	if c := r.container("keep"); c.Main.Pid != pid || c.State != core.ContainerRunning {
		t.Errorf("the other is %s with pid %d, was %d", c.State, c.Main.Pid, pid)
	}
	if _, err := r.As(core.OwnerSwarm).SandboxByKey(t.Context(), "gone"); !errdefs.IsNotFound(err) {
		t.Errorf("what was not named: %v", err)
	}
}

// TestMessagesThatMeanNothing: empty and repeated items are passed over; the others of the same
// message are done.
func TestMessagesThatMeanNothing(t *testing.T) {
	r := newRig(t)
	r.join()
	update := func(a *swarmv1.Assignment) *swarmv1.AssignmentChange { return &swarmv1.AssignmentChange{Assignment: a} }
	task := func(t *swarmv1.Task) *swarmv1.AssignmentChange {
		return update(&swarmv1.Assignment{Item: &swarmv1.Assignment_Task{Task: t}})
	}
	remove := func(id string) *swarmv1.AssignmentChange {
		return &swarmv1.AssignmentChange{Action: swarmv1.AssignmentChange_REMOVE, Assignment: &swarmv1.Assignment{Item: &swarmv1.Assignment_Task{Task: &swarmv1.Task{Id: id}}}}
	}
	good := swarmtest.Task("good", image, "sleep")
	r.Send(&swarmv1.AssignmentsMessage{Type: swarmv1.AssignmentsMessage_COMPLETE, ResultsIn: "7", Changes: []*swarmv1.AssignmentChange{
		{},
		update(nil), update(&swarmv1.Assignment{}), task(nil), task(&swarmv1.Task{}), task(good), task(proto.CloneOf(good)), remove("unknown"),
		update(&swarmv1.Assignment{Item: &swarmv1.Assignment_Volume{}}), update(&swarmv1.Assignment{Item: &swarmv1.Assignment_Secret{}}),
		update(&swarmv1.Assignment{Item: &swarmv1.Assignment_Config{}}), task(&swarmv1.Task{Id: strings.Repeat("a", 5000), DesiredState: swarmv1.TaskState_RUNNING}),
	}})
	r.Reaches("good", swarmv1.TaskState_RUNNING)
	r.Reaches(strings.Repeat("a", 5000), swarmv1.TaskState_REJECTED)
	r.Send(&swarmv1.AssignmentsMessage{AppliesTo: "7", ResultsIn: "8", Type: swarmv1.AssignmentsMessage_INCREMENTAL, Changes: []*swarmv1.AssignmentChange{remove("good"), remove("good"), remove("unknown")}})
	r.gone("good")
	r.Send(&swarmv1.AssignmentsMessage{AppliesTo: "8", ResultsIn: "9", Type: swarmv1.AssignmentsMessage_INCREMENTAL, Changes: []*swarmv1.AssignmentChange{remove("good"), task(swarmtest.Task("next", image, "well"))}})
	r.Reaches("next", swarmv1.TaskState_COMPLETE)
	if n := r.Sessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

// TestAManagerWithoutVolumes does not know the call that tells of them; the node continues.
func TestAManagerWithoutVolumes(t *testing.T) {
	r, _ := withDriver(t)
	asked := make(chan struct{})
	tell := sync.OnceFunc(func() { close(asked) })
	r.Hook(func(call string) error {
		if call != "UpdateVolumeStatus" {
			return nil
		}
		tell()
		return status.Error(codes.Unimplemented, "unknown method")
	})
	r.giveSecret()
	r.Publish(clusterVolume("v"))
	r.Unpublish("v")
	<-asked
	r.Assign(swarmtest.Task("a", image, "well"))
	r.Reaches("a", swarmv1.TaskState_COMPLETE)
	if n := r.Sessions(); n != 1 {
		t.Errorf("%d sessions", n)
	}
}

package session

import (
	"context"
	"strconv"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/inventory"
)

func aborted(err error) bool { return errdefs.IsAborted(err) }

// pause is how long changes are gathered after a message. The first change after a pause is
// sent at once.
const pause = 100 * time.Millisecond

// large is the size of messages that some workers do not read any more, in bytes.
const large = 4 << 20

// Assignments sends all assignments of a node, and then their changes.
func (d *Dispatcher) Assignments(req *swarmv1.AssignmentsRequest, stream grpc.ServerStreamingServer[swarmv1.AssignmentsMessage]) error {
	var had inventory.Assignments
	n := 0
	return d.follow(stream.Context(), req.GetSessionId(), func(node string, now inventory.Assignments) error {
		msg := &swarmv1.AssignmentsMessage{Type: swarmv1.AssignmentsMessage_INCREMENTAL, AppliesTo: strconv.Itoa(n), ResultsIn: strconv.Itoa(n + 1), Changes: changes(had, now)}
		if n == 0 {
			msg.Type, msg.AppliesTo = swarmv1.AssignmentsMessage_COMPLETE, ""
		} else if len(msg.GetChanges()) == 0 {
			return nil
		}
		if size := proto.Size(msg); size > large {
			d.o.Log.Warn("a node's assignments are larger than some workers read", "node", node, "bytes", size, "changes", len(msg.GetChanges()))
		}
		if err := stream.Send(msg); err != nil {
			return err
		}
		had, n = now, n+1
		return nil
	})
}

// Tasks is for workers that do not know Assignments: the full list of tasks, again with each
// change.
func (d *Dispatcher) Tasks(req *swarmv1.TasksRequest, stream grpc.ServerStreamingServer[swarmv1.TasksMessage]) error {
	var had map[string]inventory.Task
	return d.follow(stream.Context(), req.GetSessionId(), func(_ string, now inventory.Assignments) error {
		same := had != nil && len(had) == len(now.Tasks)
		msg := &swarmv1.TasksMessage{}
		for id, t := range now.Tasks {
			same = same && had[id].Rev == t.Rev
			msg.Tasks = append(msg.Tasks, t.Message())
		}
		if same {
			return nil
		}
		had = now.Tasks
		return stream.Send(msg)
	})
}

// follow calls send with a node's assignments, and again whenever they have changed, as long as
// the session and the stream last.
func (d *Dispatcher) follow(ctx context.Context, id string, send func(node string, now inventory.Assignments) error) error {
	f := &following{d: d, send: send}
	if err := aside(func() error { return f.begin(ctx, id) }); err != nil {
		return err
	}
	defer f.s.streams.Add(-1)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		// The timer runs out when the last message is a pause ago.
		select {
		case <-timer.C:
		case <-f.s.ctx.Done():
			return d.ended(f.s, f.caller)
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
		if err := d.sending(f.s, f.caller, f.step); err != nil {
			return err
		}
		timer.Reset(pause)
		select {
		case <-f.changed:
		case <-f.s.ctx.Done():
			return d.ended(f.s, f.caller)
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// following is a stream of a node's assignments.
type following struct {
	d       *Dispatcher
	node    string
	caller  ca.Caller
	s       *session
	send    func(node string, now inventory.Assignments) error
	changed <-chan struct{}
}

// maxStreams is how many such streams one session may have: each may hold a message that its
// peer does not read.
const maxStreams = 8

func (f *following) begin(ctx context.Context, id string) (err error) {
	if f.node, f.s, err = f.d.check(ctx, id); err != nil {
		return err
	}
	if f.caller, err = f.d.o.CA.Authorize(ctx, roles...); err != nil {
		return err
	}
	if f.s.streams.Add(1) > maxStreams {
		f.s.streams.Add(-1)
		return status.Errorf(codes.ResourceExhausted, "a session may have at most %d streams of assignments", maxStreams)
	}
	return nil
}

// step sends the present changes.
func (f *following) step() error {
	now, changed := f.d.o.Inventory.Assigned(f.node)
	if err := f.d.live(f.s, f.caller); err != nil {
		return err
	}
	f.changed = changed
	return f.send(f.node, now)
}

// changes returns the changes from a node's former assignments to the present ones: secrets and
// configs are added before tasks, and removed after them.
func changes(had, now inventory.Assignments) (list []*swarmv1.AssignmentChange) {
	add := func(action swarmv1.AssignmentChange_AssignmentAction, a *swarmv1.Assignment) {
		list = append(list, &swarmv1.AssignmentChange{Assignment: a, Action: action})
	}
	for id, s := range now.Secrets {
		if had.Secrets[id] == nil {
			add(swarmv1.AssignmentChange_UPDATE, &swarmv1.Assignment{Item: &swarmv1.Assignment_Secret{Secret: s}})
		}
	}
	for id, c := range now.Configs {
		if had.Configs[id] == nil {
			add(swarmv1.AssignmentChange_UPDATE, &swarmv1.Assignment{Item: &swarmv1.Assignment_Config{Config: c}})
		}
	}
	for id, t := range now.Tasks {
		if before, ok := had.Tasks[id]; !ok || before.Rev != t.Rev {
			add(swarmv1.AssignmentChange_UPDATE, &swarmv1.Assignment{Item: &swarmv1.Assignment_Task{Task: t.Message()}})
		}
	}
	for id := range had.Tasks {
		if _, ok := now.Tasks[id]; !ok {
			add(swarmv1.AssignmentChange_REMOVE, &swarmv1.Assignment{Item: &swarmv1.Assignment_Task{Task: &swarmv1.Task{Id: id}}})
		}
	}
	for id := range had.Secrets {
		if now.Secrets[id] == nil {
			add(swarmv1.AssignmentChange_REMOVE, &swarmv1.Assignment{Item: &swarmv1.Assignment_Secret{Secret: &swarmv1.Secret{Id: id}}})
		}
	}
	for id := range had.Configs {
		if now.Configs[id] == nil {
			add(swarmv1.AssignmentChange_REMOVE, &swarmv1.Assignment{Item: &swarmv1.Assignment_Config{Config: &swarmv1.Config{Id: id}}})
		}
	}
	return list
}

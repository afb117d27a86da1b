package inventory

import (
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/store"
)

// status is the hub's record of a task's status: the node's report, and the time since when the task runs, which
// the hub adds and sends to no node.
//
// Its record is the node's message, and after it, as another field of the same record, the time. A TaskStatus has no
// field of that number: a reader of the record as a TaskStatus sees the status alone.
type status struct {
	*swarmv1.TaskStatus
	running time.Time // zero is never
}

// runningAt is the number of the field with the time, a Timestamp.
const runningAt protowire.Number = 1000

// put returns the unconditional write of a status.
func (s *status) put(task string) store.Write {
	w := Put(Statuses, task, s.TaskStatus, store.Any)
	if w.Err != nil || s.running.IsZero() {
		return w
	}
	at, err := proto.Marshal(timestamppb.New(s.running))
	w.Value, w.Err = protowire.AppendBytes(protowire.AppendTag(w.Value, runningAt, protowire.BytesType), at), err
	return w
}

// statusOf splits a record; the time is in the unknown fields of the TaskStatus.
func statusOf(r Record[*swarmv1.TaskStatus]) (Record[*swarmv1.TaskStatus], time.Time) {
	if r.M == nil {
		return r, time.Time{}
	}
	var running time.Time
	for rest := r.M.ProtoReflect().GetUnknown(); len(rest) > 0; {
		number, kind, n := protowire.ConsumeTag(rest)
		size := protowire.ConsumeFieldValue(number, kind, rest[max(n, 0):])
		if n < 0 || size < 0 {
			break // it was parsed before
		}
		at := new(timestamppb.Timestamp)
		if data, n := protowire.ConsumeBytes(rest[n:]); number == runningAt && kind == protowire.BytesType && n > 0 && proto.Unmarshal(data, at) == nil {
			running = at.AsTime()
		}
		rest = rest[n+size:]
	}
	r.M.ProtoReflect().SetUnknown(nil)
	return r, running
}

package view

import (
	"testing"

	mesosv1 "github.com/longshore/longshore/api/mesos/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/sandbox"
)

func TestWaitResult(t *testing.T) {
	quota := &core.StopRequest{Owner: core.OwnerMesos, Call: sandbox.QuotaRequest(3<<20, 2<<20)}
	for name, c := range map[string]struct {
		of     core.Autopsy
		status int32
		state  mesosv1.TaskState
		reason mesosv1.TaskStatus_Reason
		limit  string
		amount float64
	}{
		"by itself":           {of: core.Autopsy{Exit: core.Exit{Code: 3}}, status: 3 << 8},
		"by a signal":         {of: core.Autopsy{Exit: core.Exit{Signal: 15}}, status: 15},
		"nobody knows":        {of: core.Autopsy{Exit: core.Exit{Lost: true}}, state: mesosv1.TaskState_TASK_LOST},
		"out of memory":       {of: core.Autopsy{Exit: core.Exit{Signal: 9}, OOM: &core.OOM{}, Limit: 32 << 20}, status: 9, state: mesosv1.TaskState_TASK_FAILED, reason: mesosv1.TaskStatus_REASON_CONTAINER_LIMITATION_MEMORY, limit: "mem", amount: 32},
		"a child without any": {of: core.Autopsy{OOM: &core.OOM{}}},
		"out of disk":         {of: core.Autopsy{Exit: core.Exit{Signal: 9}, StopRequest: quota}, status: 9, state: mesosv1.TaskState_TASK_FAILED, reason: mesosv1.TaskStatus_REASON_CONTAINER_LIMITATION_DISK, limit: "disk", amount: 2},
		"before the quota":    {of: core.Autopsy{Exit: core.Exit{Code: 1}, StopRequest: quota}, status: 1 << 8},
	} {
		r := WaitResult(c.of, 2<<20)
		if r.GetExitStatus() != c.status || (r.State != nil) != (c.state != 0) || r.State != nil && *r.State != c.state || (r.Reason != nil) != (c.reason != 0) || r.Reason != nil && *r.Reason != c.reason {
			t.Errorf("%s: %v", name, r)
		}
		var limit string
		var amount float64
		for _, l := range r.GetLimitation().GetResources() {
			limit, amount = l.GetName(), l.GetScalar().GetValue()
		}
		if limit != c.limit || amount != c.amount {
			t.Errorf("%s: limit %s %g, want %s %g", name, limit, amount, c.limit, c.amount)
		}
	}
}

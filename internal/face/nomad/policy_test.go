package nomad_test

import (
	"testing"

	nomaddriver "github.com/longshore/longshore/api/nomad/driver"
)

// TestPoliciesAreAskedAboutExecs: about those of both kinds.
func TestPoliciesAreAskedAboutExecs(t *testing.T) {
	r := newRig(t, nil)
	task := r.task("aaaaaaaa", nil)
	r.run(task)
	for _, err := range r.RefusesExecs(func() error {
		_, err := r.Driver.ExecTask(t.Context(), &nomaddriver.ExecTaskRequest{TaskId: task.GetId(), Command: []string{"both"}})
		return err
	}) {
		wantError(t, err, "policy: not here")
	}
	for _, err := range r.RefusesExecs(func() error {
		s, err := r.Driver.ExecTaskStreaming(t.Context())
		if err != nil {
			return err
		}
		err = s.Send(&nomaddriver.ExecTaskStreamingRequest{Setup: &nomaddriver.ExecTaskStreamingRequest_Setup{TaskId: task.GetId(), Command: []string{"both"}}})
		if err != nil {
			return err
		}
		_, err = readSession(t, s)
		return err
	}) {
		wantError(t, err, "policy: not here")
	}
}

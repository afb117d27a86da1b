package fleet

import (
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// spec is one of a service with an image and so many replicas.
func spec(image string, replicas uint64) *swarmv1.ServiceSpec {
	return &swarmv1.ServiceSpec{
		Annotations: &swarmv1.Annotations{Name: "web"}, Mode: &swarmv1.ServiceSpec_Replicated{Replicated: &swarmv1.ReplicatedService{Replicas: replicas}},
		Task: &swarmv1.TaskSpec{Runtime: &swarmv1.TaskSpec_Container{Container: &swarmv1.ContainerSpec{Image: image}}},
	}
}

// TestWhatAServiceRemembers: the spec before, and versions that are never given twice.
func TestWhatAServiceRemembers(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	s := &swarmv1.Service{Id: "web", Spec: spec("1", 1), SpecVersion: &swarmv1.Version{Index: 1}}
	is := func(when, image string, replicas, version uint64, before string, state swarmv1.UpdateStatus_UpdateState) {
		t.Helper()
		if got := s.GetSpec(); !proto.Equal(got, spec(image, replicas)) || s.GetSpecVersion().GetIndex() != version || s.GetUpdateStatus().GetState() != state {
			t.Errorf("%s: %v", when, s)
		}
		if got := s.GetPreviousSpec().GetTask().GetContainer().GetImage(); got != before {
			t.Errorf("%s: before that %q, want %q", when, got, before)
		}
	}
	does := func(fn func(*swarmv1.Service, time.Time) (*swarmv1.Service, error)) {
		t.Helper()
		next, err := fn(s, now)
		if err != nil {
			t.Fatal(err)
		}
		s = next
	}
	for name, fn := range steps {
		if _, err := fn(s, now); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("%s of a new service: %v", name, err)
		}
	}
	s = Replace(s, spec("2", 1), now)
	is("updated", "2", 1, 2, "1", swarmv1.UpdateStatus_UNKNOWN)
	s.UpdateStatus = &swarmv1.UpdateStatus{State: swarmv1.UpdateStatus_UPDATING}
	does(Pause)
	s = Replace(s, spec("2", 3), now)
	is("scaled while it is paused", "2", 3, 2, "1", swarmv1.UpdateStatus_PAUSED)
	does(Resume)
	is("resumed", "2", 3, 2, "1", swarmv1.UpdateStatus_UPDATING)
	does(Rollback)
	is("rolled back", "1", 1, 1, "2", swarmv1.UpdateStatus_ROLLBACK_STARTED)
	does(Pause)
	does(Resume)
	is("paused and resumed", "1", 1, 1, "2", swarmv1.UpdateStatus_ROLLBACK_STARTED)
	does(Rollback)
	is("rolled back again", "2", 3, 2, "1", swarmv1.UpdateStatus_ROLLBACK_STARTED)
	does(Rollback)
	s.UpdateStatus.State = swarmv1.UpdateStatus_ROLLBACK_COMPLETED
	s = Replace(s, spec("1", 2), now)
	is("scaled", "1", 2, 1, "1", swarmv1.UpdateStatus_UNKNOWN)
	s = Replace(s, spec("3", 2), now)
	is("updated again", "3", 2, 3, "1", swarmv1.UpdateStatus_UNKNOWN)
}

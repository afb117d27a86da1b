package fleet

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/invalid"
)

// Replace is a service with another spec. It remembers the spec before, for a rollback, and begins
// an update when tasks are to be replaced.
func Replace(s *swarmv1.Service, spec *swarmv1.ServiceSpec, now time.Time) *swarmv1.Service {
	next := proto.CloneOf(s)
	next.Meta = meta(s, now)
	next.Spec = proto.CloneOf(spec)
	same := sameTasks(s.GetSpec(), spec)
	if same && underWay(s) {
		return next // a rollback still leads to the version before the update
	}
	next.PreviousSpec, next.PreviousSpecVersion, next.UpdateStatus = s.GetSpec(), s.GetSpecVersion(), nil
	if !same {
		next.Meta.Version.Index++
		next.SpecVersion = &swarmv1.Version{Index: next.GetMeta().GetVersion().GetIndex()}
	}
	return next
}

// meta is that of a service that is changed. Its version is the highest that its spec has had,
// which no later spec has.
func meta(s *swarmv1.Service, now time.Time) *swarmv1.Meta {
	highest := max(s.GetMeta().GetVersion().GetIndex(), s.GetSpecVersion().GetIndex(), s.GetPreviousSpecVersion().GetIndex())
	return &swarmv1.Meta{Version: &swarmv1.Version{Index: highest}, CreatedAt: s.GetMeta().GetCreatedAt(), UpdatedAt: timestamppb.New(now)}
}

// sameTasks reports whether the tasks of two specs are the same, however many there are.
// Credentials for registries are for future tasks only.
func sameTasks(a, b *swarmv1.ServiceSpec) bool {
	x, y := proto.CloneOf(a.GetTask()), proto.CloneOf(b.GetTask())
	for _, t := range []*swarmv1.TaskSpec{x, y} {
		if c := t.GetContainer(); c != nil {
			c.PullOptions = nil
		}
	}
	return proto.Equal(x, y) && proto.Equal(a.GetEndpoint(), b.GetEndpoint())
}

// underWay reports whether an update or a rollback has begun and is not completed.
func underWay(s *swarmv1.Service) bool {
	switch s.GetUpdateStatus().GetState() {
	case swarmv1.UpdateStatus_UPDATING, swarmv1.UpdateStatus_PAUSED, swarmv1.UpdateStatus_ROLLBACK_STARTED, swarmv1.UpdateStatus_ROLLBACK_PAUSED:
		return true
	case swarmv1.UpdateStatus_UNKNOWN, swarmv1.UpdateStatus_COMPLETED, swarmv1.UpdateStatus_ROLLBACK_COMPLETED:
	}
	return false
}

// Rollback is a service with the spec that it had before, as an operator asked for. FailedPrecondition
// when there was none. A rollback of a rollback leads to where it began.
func Rollback(s *swarmv1.Service, now time.Time) (*swarmv1.Service, error) {
	if s.GetPreviousSpec() == nil {
		return nil, fmt.Errorf("service %s does not have a previous spec: %w", s.GetSpec().GetAnnotations().GetName(), errdefs.ErrFailedPrecondition)
	}
	next := proto.CloneOf(s)
	next.Meta = meta(s, now)
	next.Spec, next.SpecVersion, next.PreviousSpec, next.PreviousSpecVersion = next.GetPreviousSpec(), next.GetPreviousSpecVersion(), next.GetSpec(), next.GetSpecVersion()
	next.UpdateStatus = &swarmv1.UpdateStatus{State: swarmv1.UpdateStatus_ROLLBACK_STARTED, StartedAt: timestamppb.New(now), Message: "manually requested rollback"}
	return next, nil
}

// Pause returns a service with its update or rollback paused. FailedPrecondition if none is running.
func Pause(s *swarmv1.Service, now time.Time) (*swarmv1.Service, error) {
	return step(s, now, "paused by the operator", map[swarmv1.UpdateStatus_UpdateState]swarmv1.UpdateStatus_UpdateState{
		swarmv1.UpdateStatus_UPDATING: swarmv1.UpdateStatus_PAUSED, swarmv1.UpdateStatus_ROLLBACK_STARTED: swarmv1.UpdateStatus_ROLLBACK_PAUSED,
	})
}

// Resume returns a service with its paused update or rollback resumed; earlier failures no longer
// count. FailedPrecondition if none is paused.
func Resume(s *swarmv1.Service, now time.Time) (*swarmv1.Service, error) {
	return step(s, now, "resumed by the operator", map[swarmv1.UpdateStatus_UpdateState]swarmv1.UpdateStatus_UpdateState{
		swarmv1.UpdateStatus_PAUSED: swarmv1.UpdateStatus_UPDATING, swarmv1.UpdateStatus_ROLLBACK_PAUSED: swarmv1.UpdateStatus_ROLLBACK_STARTED,
	})
}

func step(s *swarmv1.Service, now time.Time, message string, to map[swarmv1.UpdateStatus_UpdateState]swarmv1.UpdateStatus_UpdateState) (*swarmv1.Service, error) {
	state, ok := to[s.GetUpdateStatus().GetState()]
	if !ok {
		return nil, fmt.Errorf("service %s has no update that can be %s: %w", s.GetSpec().GetAnnotations().GetName(), message, errdefs.ErrFailedPrecondition)
	}
	next := proto.CloneOf(s)
	next.Meta = meta(s, now)
	next.UpdateStatus = &swarmv1.UpdateStatus{State: state, StartedAt: timestamppb.New(now), Message: message}
	return next, nil
}

// The changes of a service that operators name.
var steps = map[string]func(*swarmv1.Service, time.Time) (*swarmv1.Service, error){"rollback": Rollback, "pause": Pause, "resume": Resume}

// Step does one step with the update of a service, which its id or its name names: rollback, pause
// or resume. NotFound when there is no such service.
func Step(ctx context.Context, r Records, service, what string) error {
	fn, ok := steps[what]
	if !ok {
		return invalid.Errorf("%.40q is none of rollback, pause and resume", what)
	}
	return change(ctx, r, func() (store.Write, error) {
		s, err := find(r, service)
		if err != nil {
			return store.Write{}, err
		}
		next, err := fn(s.M, time.Now())
		if err != nil {
			return store.Write{}, err
		}
		// Secrets and configs of the former spec may have been removed since.
		return inventory.Put(inventory.Services, next.GetId(), next, s.Rev), checkWhole(r, next.GetSpec())
	})
}

// find is a service by its id or its name.
func find(r Records, service string) (inventory.Record[*swarmv1.Service], error) {
	all := r.Services()
	if s, ok := all[service]; ok {
		return s, nil
	}
	for _, s := range all {
		if s.M.GetSpec().GetAnnotations().GetName() == service {
			return s, nil
		}
	}
	return inventory.Record[*swarmv1.Service]{}, fmt.Errorf("there is no service %.80q: %w", service, errdefs.ErrNotFound)
}

// Progress tells how far the update of a service is, in a word or two; "" when there was none.
func Progress(s *swarmv1.UpdateStatus) string {
	return map[swarmv1.UpdateStatus_UpdateState]string{
		swarmv1.UpdateStatus_UPDATING: "updating", swarmv1.UpdateStatus_PAUSED: "paused", swarmv1.UpdateStatus_COMPLETED: "completed",
		swarmv1.UpdateStatus_ROLLBACK_STARTED: "rolling back", swarmv1.UpdateStatus_ROLLBACK_PAUSED: "rollback paused", swarmv1.UpdateStatus_ROLLBACK_COMPLETED: "rolled back",
	}[s.GetState()]
}

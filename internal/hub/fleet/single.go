package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/invalid"
)

// Records are the records for changes of single objects: an inventory.
type Records interface {
	Services() map[string]inventory.Record[*swarmv1.Service]
	Secrets() map[string]inventory.Record[*swarmv1.Secret]
	Configs() map[string]inventory.Record[*swarmv1.Config]
	Tasks() map[string]inventory.Task
	Turn() store.Write
	Next() <-chan struct{}
	Commit(ctx context.Context, writes ...store.Write) (int64, error)
}

// History is how many tasks that have ended are kept of each place.
const History = history

// ErrSequence is the error of an update of something that was changed since it was read.
var ErrSequence = errdefs.ErrAborted.WithMessage("update out of sequence")

// change makes a change from the records as they are, again when another change was faster.
func change(ctx context.Context, r Records, fn func() (store.Write, error)) error {
	for {
		next, turn := r.Next(), r.Turn()
		w, err := fn()
		if err != nil {
			return err
		}
		if _, err := r.Commit(ctx, turn, w); !errdefs.IsAborted(err) {
			return err
		}
		select { // the records do not have the other change yet
		case <-next:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Create stores a service and returns its id. AlreadyExists when there is one of its name.
func Create(ctx context.Context, r Records, spec *swarmv1.ServiceSpec) (id string, err error) {
	if err := checkName("service", spec.GetAnnotations().GetName()); err != nil {
		return "", err
	}
	normalize(spec)
	id = ca.NewID()
	return id, change(ctx, r, func() (store.Write, error) {
		if err := checkWhole(r, spec); err != nil {
			return store.Write{}, err
		}
		for _, s := range r.Services() {
			if s.M.GetSpec().GetAnnotations().GetName() == spec.GetAnnotations().GetName() {
				return store.Write{}, errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("name conflicts with an existing object: there is a service %s", spec.GetAnnotations().GetName()))
			}
		}
		now := timestamppb.Now()
		s := &swarmv1.Service{Id: id, Meta: &swarmv1.Meta{CreatedAt: now, UpdatedAt: now}, Spec: spec, SpecVersion: &swarmv1.Version{Index: 1}}
		return inventory.Put(inventory.Services, id, s, store.Absent), nil
	})
}

// checkName refuses names that are not valid.
func checkName(kind, name string) error {
	if !thingName.MatchString(name) {
		return invalid.Errorf("the name of the %s %.80q: letters, digits, '.', '-' and '_', at most 127", kind, name)
	}
	return nil
}

// checkWhole checks a service, the secrets and configs that it needs included.
func checkWhole(r Records, spec *swarmv1.ServiceSpec) error {
	name := spec.GetAnnotations().GetName()
	if n := proto.Size(spec); n > maxSpec {
		return invalid.Errorf("service %s: it has %d bytes, at most %d", name, n, maxSpec)
	}
	if err := check(spec); err != nil {
		return fmt.Errorf("service %s: %w", name, err)
	}
	secrets, configs := r.Secrets(), r.Configs()
	for _, ref := range spec.GetTask().GetContainer().GetSecrets() {
		if s := secrets[ref.GetSecretId()]; s.M == nil {
			return invalid.Errorf("service %s: there is no secret %.80q with the id %.40q", name, ref.GetSecretName(), ref.GetSecretId())
		}
	}
	for _, ref := range spec.GetTask().GetContainer().GetConfigs() {
		if c := configs[ref.GetConfigId()]; c.M == nil {
			return invalid.Errorf("service %s: there is no config %.80q with the id %.40q", name, ref.GetConfigName(), ref.GetConfigId())
		}
	}
	return nil
}

// Update changes a service that was read at a revision. fn returns the new spec. Name and mode must
// stay.
func Update(ctx context.Context, r Records, id string, rev int64, fn func(*swarmv1.Service) *swarmv1.ServiceSpec) error {
	return update(ctx, r, id, rev, func(s *swarmv1.Service) (*swarmv1.Service, error) {
		spec := fn(s)
		normalize(spec)
		if spec.GetAnnotations().GetName() != s.GetSpec().GetAnnotations().GetName() {
			return nil, invalid.Errorf("service %s: renaming services is not supported", s.GetSpec().GetAnnotations().GetName())
		}
		if (spec.GetGlobal() == nil) != (s.GetSpec().GetGlobal() == nil) {
			return nil, invalid.Errorf("service %s: service mode change is not allowed", s.GetSpec().GetAnnotations().GetName())
		}
		if err := checkWhole(r, spec); err != nil {
			return nil, err
		}
		return Replace(s, spec, time.Now()), nil
	})
}

// Undo gives a service that was read at a revision the spec that it had before.
func Undo(ctx context.Context, r Records, id string, rev int64) error {
	return update(ctx, r, id, rev, func(s *swarmv1.Service) (*swarmv1.Service, error) {
		if before := s.GetPreviousSpec(); before != nil {
			if err := checkWhole(r, before); err != nil {
				return nil, err
			}
		}
		return Rollback(s, time.Now())
	})
}

func update(ctx context.Context, r Records, id string, rev int64, fn func(*swarmv1.Service) (*swarmv1.Service, error)) error {
	return change(ctx, r, func() (store.Write, error) {
		s := r.Services()[id]
		switch {
		case s.M == nil:
			return store.Write{}, gone("service", id)
		case s.Rev != rev:
			return store.Write{}, ErrSequence
		}
		next, err := fn(s.M)
		if err != nil {
			return store.Write{}, err
		}
		return inventory.Put(inventory.Services, id, next, rev), nil
	})
}

func gone(kind, id string) error {
	return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("%s %s not found", kind, id))
}

// Remove removes a service, and with it its tasks.
func Remove(ctx context.Context, r Records, id string) error {
	return change(ctx, r, func() (store.Write, error) {
		s := r.Services()[id]
		if s.M == nil {
			return store.Write{}, gone("service", id)
		}
		return inventory.Delete(inventory.Services, id, s.Rev), nil
	})
}

// adopt marks objects that were created singly for the stack as the declaration's own, so that they
// are removed when unused.
func (a *application) adopt(label map[string]string) {
	adopted := func(at *swarmv1.Annotations, external map[string]External) bool {
		for _, e := range external {
			if e.Name == at.GetName() {
				return false
			}
		}
		return at.GetLabels()[Stack] == a.d.Name && at.GetLabels()[Declared] == ""
	}
	secrets := a.b.Secrets()
	for _, id := range slices.Sorted(maps.Keys(secrets)) {
		if s := secrets[id]; adopted(s.M.GetSpec().GetAnnotations(), a.d.ExternalSecrets) {
			m := proto.CloneOf(s.M)
			m.Spec.Annotations.Labels = label
			a.writes = append(a.writes, inventory.Put(inventory.Secrets, id, m, s.Rev))
		}
	}
	configs := a.b.Configs()
	for _, id := range slices.Sorted(maps.Keys(configs)) {
		if c := configs[id]; adopted(c.M.GetSpec().GetAnnotations(), a.d.ExternalConfigs) {
			m := proto.CloneOf(c.M)
			m.Spec.Annotations.Labels = label
			a.writes = append(a.writes, inventory.Put(inventory.Configs, id, m, c.Rev))
		}
	}
}

// The limits of a node's labels.
const (
	maxLabels = 100
	maxLabel  = 256
)

// CheckLabels refuses labels that a node cannot have.
func CheckLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return invalid.Errorf("a node has at most %d labels", maxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > maxLabel || len(v) > maxLabel {
			return invalid.Errorf("the label %.80q: a name and a value of at most %d bytes", k, maxLabel)
		}
	}
	return nil
}

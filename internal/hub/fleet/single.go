package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/board"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/invalid"
)

// Records are what single things are changed in: a board.
type Records interface {
	Services() map[string]board.Record[*swarmv1.Service]
	Secrets() map[string]board.Record[*swarmv1.Secret]
	Configs() map[string]board.Record[*swarmv1.Config]
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
		return board.Put(board.Services, id, s, store.Absent), nil
	})
}

// checkName refuses what can be no thing's name.
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

// Update changes a service that was read at a revision. fn makes what it is to be. A name and a
// mode stay.
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
		return board.Put(board.Services, id, next, rev), nil
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
		return board.Delete(board.Services, id, s.Rev), nil
	})
}

// adopt makes what was created for the stack by itself the declaration's own: it goes when nothing
// needs it any more.
func (a *application) adopt(label map[string]string) {
	adopted := func(at *swarmv1.Annotations) bool {
		return at.GetLabels()[Stack] == a.d.Name && at.GetLabels()[Declared] == ""
	}
	secrets := a.b.Secrets()
	for _, id := range slices.Sorted(maps.Keys(secrets)) {
		if s := secrets[id]; adopted(s.M.GetSpec().GetAnnotations()) {
			m := proto.CloneOf(s.M)
			m.Spec.Annotations.Labels = label
			a.writes = append(a.writes, board.Put(board.Secrets, id, m, s.Rev))
		}
	}
	configs := a.b.Configs()
	for _, id := range slices.Sorted(maps.Keys(configs)) {
		if c := configs[id]; adopted(c.M.GetSpec().GetAnnotations()) {
			m := proto.CloneOf(c.M)
			m.Spec.Annotations.Labels = label
			a.writes = append(a.writes, board.Put(board.Configs, id, m, c.Rev))
		}
	}
}

// Kind is a kind of things that tasks read as files.
type Kind string

// The kinds, as they are named to users.
const (
	SecretKind Kind = "secret"
	ConfigKind Kind = "config"
)

// thing is what a secret and a config have in common.
type thing struct {
	rev   int64
	id    string
	at    *swarmv1.Annotations
	data  []byte
	users func(*swarmv1.ContainerSpec) bool
}

// things are all of a kind, by id.
func things(r Records, k Kind) map[string]thing {
	all := map[string]thing{}
	if k == SecretKind {
		for id, s := range r.Secrets() {
			all[id] = thing{s.Rev, id, s.M.GetSpec().GetAnnotations(), s.M.GetSpec().GetData(), func(c *swarmv1.ContainerSpec) bool {
				return slices.ContainsFunc(c.GetSecrets(), func(ref *swarmv1.SecretReference) bool { return ref.GetSecretId() == id })
			}}
		}
		return all
	}
	for id, c := range r.Configs() {
		all[id] = thing{c.Rev, id, c.M.GetSpec().GetAnnotations(), c.M.GetSpec().GetData(), func(c *swarmv1.ContainerSpec) bool {
			return slices.ContainsFunc(c.GetConfigs(), func(ref *swarmv1.ConfigReference) bool { return ref.GetConfigId() == id })
		}}
	}
	return all
}

// File is what a secret or config is made with.
type File struct {
	Annotations *swarmv1.Annotations
	Data        []byte
	Templating  *swarmv1.Driver
}

// put is the write of a secret or config.
func put(k Kind, id string, meta *swarmv1.Meta, f File, condition int64) store.Write {
	if k == SecretKind {
		return board.Put(board.Secrets, id, &swarmv1.Secret{Id: id, Meta: meta, Spec: &swarmv1.SecretSpec{Annotations: f.Annotations, Data: f.Data, Templating: f.Templating}}, condition)
	}
	return board.Put(board.Configs, id, &swarmv1.Config{Id: id, Meta: meta, Spec: &swarmv1.ConfigSpec{Annotations: f.Annotations, Data: f.Data, Templating: f.Templating}}, condition)
}

// CreateFile stores a secret or config, which stays until it is removed, and returns its id.
// AlreadyExists when there is one of its name.
func CreateFile(ctx context.Context, r Records, k Kind, f File) (id string, err error) {
	name := f.Annotations.GetName()
	if err := checkName(string(k), name); err != nil {
		return "", err
	}
	if len(f.Data) == 0 || len(f.Data) > maxData {
		return "", invalid.Errorf("the %s %s has %d bytes, it must have from 1 to %d", k, name, len(f.Data), maxData)
	}
	if n := proto.Size(f.Annotations); n > maxSpec {
		return "", invalid.Errorf("the labels of the %s %s have %d bytes, at most %d", k, name, n, maxSpec)
	}
	id = ca.NewID()
	return id, change(ctx, r, func() (store.Write, error) {
		for _, t := range things(r, k) {
			if t.at.GetName() == name {
				return store.Write{}, errdefs.ErrAlreadyExists.WithMessage(fmt.Sprintf("name conflicts with an existing object: there is a %s %s", k, name))
			}
		}
		now := timestamppb.Now()
		return put(k, id, &swarmv1.Meta{CreatedAt: now, UpdatedAt: now}, f, store.Absent), nil
	})
}

// LabelFile changes the labels of a secret or config that was read at a revision: nothing else of
// it can be changed. Data that is given must be the data that it has.
func LabelFile(ctx context.Context, r Records, k Kind, id string, rev int64, f File) error {
	return change(ctx, r, func() (store.Write, error) {
		t, ok := things(r, k)[id]
		switch {
		case !ok:
			return store.Write{}, gone(string(k), id)
		case t.rev != rev:
			return store.Write{}, ErrSequence
		case f.Annotations.GetName() != t.at.GetName() || len(f.Data) > 0 && string(f.Data) != string(t.data) || proto.Size(f.Annotations) > maxSpec:
			return store.Write{}, invalid.Errorf("only updates to Labels are allowed")
		}
		if k == SecretKind {
			m := proto.CloneOf(r.Secrets()[id].M)
			m.Meta.UpdatedAt, m.Spec.Annotations.Labels = timestamppb.Now(), f.Annotations.GetLabels()
			return board.Put(board.Secrets, id, m, rev), nil
		}
		m := proto.CloneOf(r.Configs()[id].M)
		m.Meta.UpdatedAt, m.Spec.Annotations.Labels = timestamppb.Now(), f.Annotations.GetLabels()
		return board.Put(board.Configs, id, m, rev), nil
	})
}

// RemoveFile removes a secret or config. InvalidArgument while a service needs it.
func RemoveFile(ctx context.Context, r Records, k Kind, id string) error {
	return change(ctx, r, func() (store.Write, error) {
		t, ok := things(r, k)[id]
		if !ok {
			return store.Write{}, gone(string(k), id)
		}
		var users []string
		for _, s := range r.Services() {
			if t.users(s.M.GetSpec().GetTask().GetContainer()) {
				users = append(users, s.M.GetSpec().GetAnnotations().GetName())
			}
		}
		if len(users) > 0 {
			slices.Sort(users)
			return store.Write{}, invalid.Errorf("%s '%s' is in use by the following services: %s", k, t.at.GetName(), strings.Join(users[:min(len(users), 10)], ", "))
		}
		if k == SecretKind {
			return board.Delete(board.Secrets, id, t.rev), nil
		}
		return board.Delete(board.Configs, id, t.rev), nil
	})
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

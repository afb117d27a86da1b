package fleet

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/invalid"
)

// Kind is a kind of things that tasks read as files.
type Kind string

// The kinds, as they are named to users.
const (
	SecretKind Kind = "secret"
	ConfigKind Kind = "config"
)

// thing has the common fields of secrets and configs.
type thing struct {
	rev  int64
	meta *swarmv1.Meta
	at   *swarmv1.Annotations
	data []byte
}

// things are all of a kind, by id.
func things(r Records, k Kind) map[string]thing {
	all := map[string]thing{}
	if k == SecretKind {
		for id, s := range r.Secrets() {
			all[id] = thing{s.Rev, s.M.GetMeta(), s.M.GetSpec().GetAnnotations(), s.M.GetSpec().GetData()}
		}
		return all
	}
	for id, c := range r.Configs() {
		all[id] = thing{c.Rev, c.M.GetMeta(), c.M.GetSpec().GetAnnotations(), c.M.GetSpec().GetData()}
	}
	return all
}

// references returns the ids of a container's secrets or configs.
func (k Kind) references(c *swarmv1.ContainerSpec) (ids []string) {
	if k == SecretKind {
		for _, r := range c.GetSecrets() {
			ids = append(ids, r.GetSecretId())
		}
		return ids
	}
	for _, r := range c.GetConfigs() {
		ids = append(ids, r.GetConfigId())
	}
	return ids
}

// Users are the names of the services that need secrets or configs, by the ids of those, in the order of the names. A
// service needs those of its declaration, those of its tasks that should run, and, until its update is completed, those
// of its former declaration, because the update may roll back by itself. A task of a removed service needs none.
func Users(r Records, k Kind) map[string][]string {
	users := map[string][]string{}
	add := func(c *swarmv1.ContainerSpec, name string) {
		for _, id := range k.references(c) {
			if !slices.Contains(users[id], name) {
				users[id] = append(users[id], name)
			}
		}
	}
	services := r.Services()
	for _, s := range services {
		name := s.M.GetSpec().GetAnnotations().GetName()
		add(s.M.GetSpec().GetTask().GetContainer(), name)
		if underWay(s.M) {
			add(s.M.GetPreviousSpec().GetTask().GetContainer(), name)
		}
	}
	for _, t := range r.Tasks() {
		if s := services[t.M.GetServiceId()]; s.M != nil && !t.Ended() && t.M.GetDesiredState() <= swarmv1.TaskState_RUNNING {
			add(t.M.GetSpec().GetContainer(), s.M.GetSpec().GetAnnotations().GetName())
		}
	}
	for _, names := range users {
		slices.Sort(names)
	}
	return users
}

// named is the newest secret or config of a name, as declarations that change one make another.
func named(r Records, k Kind, name string) (id string, ok bool) {
	all := things(r, k)
	for _, other := range slices.Sorted(maps.Keys(all)) {
		if t := all[other]; t.at.GetName() == name && (!ok || t.meta.GetCreatedAt().AsTime().After(all[id].meta.GetCreatedAt().AsTime())) {
			id, ok = other, true
		}
	}
	return id, ok
}

// File has the parameters of a new secret or config.
type File struct {
	Annotations *swarmv1.Annotations
	Data        []byte
	Templating  *swarmv1.Driver
}

// put is the write of a secret or config.
func put(k Kind, id string, meta *swarmv1.Meta, f File, condition int64) store.Write {
	if k == SecretKind {
		return inventory.Put(inventory.Secrets, id, &swarmv1.Secret{Id: id, Meta: meta, Spec: &swarmv1.SecretSpec{Annotations: f.Annotations, Data: f.Data, Templating: f.Templating}}, condition)
	}
	return inventory.Put(inventory.Configs, id, &swarmv1.Config{Id: id, Meta: meta, Spec: &swarmv1.ConfigSpec{Annotations: f.Annotations, Data: f.Data, Templating: f.Templating}}, condition)
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
// it can be changed. Data in the request must be equal to its data.
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
			return inventory.Put(inventory.Secrets, id, m, rev), nil
		}
		m := proto.CloneOf(r.Configs()[id].M)
		m.Meta.UpdatedAt, m.Spec.Annotations.Labels = timestamppb.Now(), f.Annotations.GetLabels()
		return inventory.Put(inventory.Configs, id, m, rev), nil
	})
}

// RemoveFile removes a secret or config. InvalidArgument while a service needs it.
func RemoveFile(ctx context.Context, r Records, k Kind, id string) error {
	return change(ctx, r, func() (store.Write, error) {
		t, ok := things(r, k)[id]
		if !ok {
			return store.Write{}, gone(string(k), id)
		}
		if users := Users(r, k)[id]; len(users) > 0 {
			return store.Write{}, invalid.Errorf("%s '%s' is in use by the following services: %s", k, t.at.GetName(), strings.Join(users[:min(len(users), 10)], ", "))
		}
		if k == SecretKind {
			return inventory.Delete(inventory.Secrets, id, t.rev), nil
		}
		return inventory.Delete(inventory.Configs, id, t.rev), nil
	})
}

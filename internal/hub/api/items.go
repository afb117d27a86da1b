package api

import (
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/timestamppb"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/board"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/invalid"
)

// item is a secret or a config.
type item struct {
	hubv1.Item
	rev int64
}

// kind says how secrets and configs are told apart.
type kind struct {
	name   string
	record string // board.Secrets or board.Configs
	items  func(b *board.Board) []item
	refs   func(c *swarmv1.ContainerSpec) []string // the ids that a container needs
	make   func(id string, at *swarmv1.Annotations, meta *swarmv1.Meta, data []byte) store.Write
}

func secrets() kind {
	return kind{
		name: "secret", record: board.Secrets,
		items: func(b *board.Board) (list []item) {
			for id, s := range b.Secrets() {
				list = append(list, item{itemOf(id, s.M.GetSpec().GetAnnotations(), s.M.GetMeta()), s.Rev}) // never its data
			}
			return list
		},
		refs: func(c *swarmv1.ContainerSpec) (ids []string) {
			for _, r := range c.GetSecrets() {
				ids = append(ids, r.GetSecretId())
			}
			return ids
		},
		make: func(id string, at *swarmv1.Annotations, meta *swarmv1.Meta, data []byte) store.Write {
			return board.Put(board.Secrets, id, &swarmv1.Secret{Id: id, Meta: meta, Spec: &swarmv1.SecretSpec{Annotations: at, Data: data}}, store.Absent)
		},
	}
}

func configs() kind {
	return kind{
		name: "config", record: board.Configs,
		items: func(b *board.Board) (list []item) {
			for id, c := range b.Configs() {
				i := item{itemOf(id, c.M.GetSpec().GetAnnotations(), c.M.GetMeta()), c.Rev}
				i.Data = c.M.GetSpec().GetData()
				list = append(list, i)
			}
			return list
		},
		refs: func(c *swarmv1.ContainerSpec) (ids []string) {
			for _, r := range c.GetConfigs() {
				ids = append(ids, r.GetConfigId())
			}
			return ids
		},
		make: func(id string, at *swarmv1.Annotations, meta *swarmv1.Meta, data []byte) store.Write {
			return board.Put(board.Configs, id, &swarmv1.Config{Id: id, Meta: meta, Spec: &swarmv1.ConfigSpec{Annotations: at, Data: data}}, store.Absent)
		},
	}
}

func itemOf(id string, at *swarmv1.Annotations, meta *swarmv1.Meta) hubv1.Item {
	return hubv1.Item{ID: id, Name: at.GetName(), Stack: at.GetLabels()[fleet.Stack], Created: meta.GetCreatedAt().AsTime()}
}

// uses are the names of the services that need things of a kind, by the ids of the things; those
// of tasks count too, that run on after their service has changed.
func (s Server) uses(k kind) map[string][]string {
	uses := map[string][]string{}
	add := func(ids []string, name string) {
		for _, id := range ids {
			if !slices.Contains(uses[id], name) {
				uses[id] = append(uses[id], name)
			}
		}
	}
	for _, r := range s.Board.Services() {
		name := r.M.GetSpec().GetAnnotations().GetName()
		add(k.refs(r.M.GetSpec().GetTask().GetContainer()), name)
		add(k.refs(r.M.GetPreviousSpec().GetTask().GetContainer()), name) // for a rollback
	}
	for _, t := range s.Board.Tasks() {
		add(k.refs(t.M.GetSpec().GetContainer()), t.M.GetServiceAnnotations().GetName())
	}
	return uses
}

// list answers with all things of a kind, without what is in them.
func (s Server) list(w http.ResponseWriter, k kind) {
	uses := s.uses(k)
	list := []hubv1.Item{}
	for _, i := range k.items(s.Board) {
		i.UsedBy, i.Data = uses[i.ID], nil
		list = append(list, i.Item)
	}
	reply(w, sorted(list, func(i hubv1.Item) string { return i.Name + " " + i.ID }), nil)
}

// find is a thing by its id or name.
func (s Server) find(k kind, id string) (item, error) {
	for _, i := range k.items(s.Board) {
		if i.ID == id || i.Name == id {
			i.UsedBy = s.uses(k)[i.ID]
			return i, nil
		}
	}
	return item{}, fmt.Errorf("there is no %s %.100s: %w", k.name, id, errdefs.ErrNotFound)
}

// maxItem is the size of the largest secret or config, in bytes, as Docker has it.
const maxItem = 500 << 10

var itemName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$`)

// create makes a thing that belongs to no stack.
func (s Server) create(w http.ResponseWriter, r *http.Request, k kind) {
	turn := s.Board.Turn()
	var n hubv1.NewItem
	if err := decode(r.Body, &n); err != nil {
		reply(w, nil, err)
		return
	}
	switch _, err := s.find(k, n.Name); {
	case !itemName.MatchString(n.Name):
		reply(w, nil, invalid.Errorf("the name of the %s %.80q: letters, digits, '.', '-' and '_', at most 64", k.name, n.Name))
		return
	case len(n.Data) == 0 || len(n.Data) > maxItem:
		reply(w, nil, invalid.Errorf("the %s has %d bytes; 1 to %d are possible", k.name, len(n.Data), maxItem))
		return
	case err == nil:
		reply(w, nil, fmt.Errorf("there is a %s %s: %w", k.name, n.Name, errdefs.ErrAlreadyExists))
		return
	}
	id, now := ca.NewID(), timestamppb.New(time.Now())
	at := &swarmv1.Annotations{Name: n.Name}
	_, err := s.Board.Commit(does(r, "created the %s %s", k.name, n.Name), turn, k.make(id, at, &swarmv1.Meta{CreatedAt: now, UpdatedAt: now}, n.Data))
	reply(w, itemOf(id, at, &swarmv1.Meta{CreatedAt: now}), err)
}

// remove removes a thing that nothing uses.
func (s Server) remove(w http.ResponseWriter, r *http.Request, k kind, id string) {
	turn := s.Board.Turn()
	i, err := s.find(k, id)
	switch {
	case err != nil:
	case len(i.UsedBy) > 0:
		err = fmt.Errorf("the %s %s is used by %s: %w", k.name, i.Name, i.UsedBy[0], errdefs.ErrFailedPrecondition)
	default:
		_, err = s.Board.Commit(does(r, "removed the %s %s", k.name, i.Name), turn, board.Delete(k.record, i.ID, i.rev))
	}
	done(w, err)
}

func (s Server) get(w http.ResponseWriter, k kind, id string) {
	i, err := s.find(k, id)
	reply(w, i.Item, err)
}

// ListSecrets implements hubv1.ServerInterface.
func (s Server) ListSecrets(w http.ResponseWriter, _ *http.Request) { s.list(w, secrets()) }

// CreateSecret implements hubv1.ServerInterface.
func (s Server) CreateSecret(w http.ResponseWriter, r *http.Request) { s.create(w, r, secrets()) }

// GetSecret implements hubv1.ServerInterface.
func (s Server) GetSecret(w http.ResponseWriter, _ *http.Request, id string) {
	s.get(w, secrets(), id)
}

// RemoveSecret implements hubv1.ServerInterface.
func (s Server) RemoveSecret(w http.ResponseWriter, r *http.Request, id string) {
	s.remove(w, r, secrets(), id)
}

// ListConfigs implements hubv1.ServerInterface.
func (s Server) ListConfigs(w http.ResponseWriter, _ *http.Request) { s.list(w, configs()) }

// CreateConfig implements hubv1.ServerInterface.
func (s Server) CreateConfig(w http.ResponseWriter, r *http.Request) { s.create(w, r, configs()) }

// GetConfig implements hubv1.ServerInterface.
func (s Server) GetConfig(w http.ResponseWriter, _ *http.Request, id string) {
	s.get(w, configs(), id)
}

// RemoveConfig implements hubv1.ServerInterface.
func (s Server) RemoveConfig(w http.ResponseWriter, r *http.Request, id string) {
	s.remove(w, r, configs(), id)
}

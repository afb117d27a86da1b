package api

import (
	"fmt"
	"net/http"

	"github.com/containerd/errdefs"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/fleet"
)

// items are all of a kind, with the data of configs, never with that of secrets.
func (s Server) items(k fleet.Kind) (list []hubv1.Item) {
	uses := fleet.Users(s.Inventory, k)
	if k == fleet.SecretKind {
		for id, r := range s.Inventory.Secrets() {
			list = append(list, itemOf(id, r.M.GetSpec().GetAnnotations(), r.M.GetMeta()))
		}
	} else {
		for id, r := range s.Inventory.Configs() {
			i := itemOf(id, r.M.GetSpec().GetAnnotations(), r.M.GetMeta())
			i.Data = r.M.GetSpec().GetData()
			list = append(list, i)
		}
	}
	for i := range list {
		list[i].UsedBy = uses[list[i].ID]
	}
	return sorted(list, func(i hubv1.Item) string { return i.Name + " " + i.ID })
}

func itemOf(id string, at *swarmv1.Annotations, meta *swarmv1.Meta) hubv1.Item {
	return hubv1.Item{ID: id, Name: at.GetName(), Stack: at.GetLabels()[fleet.Stack], Created: meta.GetCreatedAt().AsTime()}
}

// list answers with all objects of a kind, without their content.
func (s Server) list(w http.ResponseWriter, k fleet.Kind) {
	list := []hubv1.Item{}
	for _, i := range s.items(k) {
		i.Data = nil
		list = append(list, i)
	}
	reply(w, list, nil)
}

// find is a thing by its id, or by its name: then the newest one, as a declaration that changes one makes another.
func (s Server) find(k fleet.Kind, id string) (found hubv1.Item, err error) {
	for _, i := range s.items(k) {
		if i.ID == id {
			return i, nil
		}
		if i.Name == id && (found.ID == "" || i.Created.After(found.Created)) {
			found = i
		}
	}
	if found.ID == "" {
		err = fmt.Errorf("there is no %s %.100s: %w", k, id, errdefs.ErrNotFound)
	}
	return found, err
}

// create makes a thing that belongs to no stack.
func (s Server) create(w http.ResponseWriter, r *http.Request, k fleet.Kind) {
	var n hubv1.NewItem
	if err := decode(r.Body, &n); err != nil {
		reply(w, nil, err)
		return
	}
	id, err := fleet.CreateFile(does(r, "created the %s %s", k, n.Name), s.Inventory, k, fleet.File{Annotations: &swarmv1.Annotations{Name: n.Name}, Data: n.Data})
	if err != nil {
		reply(w, nil, err)
		return
	}
	i, err := s.find(k, id)
	i.Data = nil
	reply(w, i, err)
}

// remove removes a thing that nothing uses.
func (s Server) remove(w http.ResponseWriter, r *http.Request, k fleet.Kind, id string) {
	i, err := s.find(k, id)
	if err == nil {
		err = fleet.RemoveFile(does(r, "removed the %s %s", k, i.Name), s.Inventory, k, i.ID)
	}
	done(w, err)
}

func (s Server) get(w http.ResponseWriter, k fleet.Kind, id string) {
	i, err := s.find(k, id)
	reply(w, i, err)
}

// ListSecrets implements hubv1.ServerInterface.
func (s Server) ListSecrets(w http.ResponseWriter, _ *http.Request) { s.list(w, fleet.SecretKind) }

// CreateSecret implements hubv1.ServerInterface.
func (s Server) CreateSecret(w http.ResponseWriter, r *http.Request) {
	s.create(w, r, fleet.SecretKind)
}

// GetSecret implements hubv1.ServerInterface.
func (s Server) GetSecret(w http.ResponseWriter, _ *http.Request, id string) {
	s.get(w, fleet.SecretKind, id)
}

// RemoveSecret implements hubv1.ServerInterface.
func (s Server) RemoveSecret(w http.ResponseWriter, r *http.Request, id string) {
	s.remove(w, r, fleet.SecretKind, id)
}

// ListConfigs implements hubv1.ServerInterface.
func (s Server) ListConfigs(w http.ResponseWriter, _ *http.Request) { s.list(w, fleet.ConfigKind) }

// CreateConfig implements hubv1.ServerInterface.
func (s Server) CreateConfig(w http.ResponseWriter, r *http.Request) {
	s.create(w, r, fleet.ConfigKind)
}

// GetConfig implements hubv1.ServerInterface.
func (s Server) GetConfig(w http.ResponseWriter, _ *http.Request, id string) {
	s.get(w, fleet.ConfigKind, id)
}

// RemoveConfig implements hubv1.ServerInterface.
func (s Server) RemoveConfig(w http.ResponseWriter, r *http.Request, id string) {
	s.remove(w, r, fleet.ConfigKind, id)
}

package engineapi

import (
	"net/http"
	"slices"
	"strings"

	"github.com/moby/moby/api/types/common"
	"github.com/moby/moby/api/types/swarm"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/hub/engineapi/translate"
	"github.com/longshore/longshore/internal/hub/engineapi/view"
	"github.com/longshore/longshore/internal/hub/fleet"
)

// found is a secret or config and how it is shown.
type found = named[any]

// everyFile are all secrets or all configs. The values of secrets are not shown.
func (s Server) everyFile(k fleet.Kind) (list []found, labels map[string]map[string]string) {
	labels = map[string]map[string]string{}
	add := func(id string, at *swarmv1.Annotations, v any, rev int64) {
		list = append(list, found{id: id, name: at.GetName(), v: v, rev: rev})
		labels[id] = at.GetLabels()
	}
	if k == fleet.SecretKind {
		for id, r := range s.Records.Secrets() {
			add(id, r.M.GetSpec().GetAnnotations(), view.Secret(r.M, r.Rev), r.Rev)
		}
	} else {
		for id, r := range s.Records.Configs() {
			add(id, r.M.GetSpec().GetAnnotations(), view.Config(r.M, r.Rev), r.Rev)
		}
	}
	slices.SortFunc(list, func(a, b found) int { return strings.Compare(a.id, b.id) })
	return list, labels
}

// files serves secrets and configs.
func (s Server) files(m *routes) {
	s.filesOf(m, "/secrets", fleet.SecretKind, translate.Secret)
	s.filesOf(m, "/configs", fleet.ConfigKind, translate.Config)
}

func (s Server) filesOf(m *routes, path string, k fleet.Kind, read func([]byte) (translate.Data, error)) {
	one := func(r *http.Request) (found, error) {
		all, _ := s.everyFile(k)
		return find(string(k), r.PathValue("id"), all)
	}
	received := func(r *http.Request) (fleet.File, error) {
		data, err := body(r)
		if err != nil {
			return fleet.File{}, err
		}
		d, err := read(data)
		return fleet.File{Annotations: d.Annotations, Data: d.Data, Templating: d.Templating}, err
	}
	m.handle("GET "+path, func(r *http.Request) (answer, error) {
		f, err := dockerhttp.ParseFilters(r.URL.Query().Get("filters"), "id", "label", "name", "names")
		if err != nil {
			return answer{}, err
		}
		list := []any{}
		all, labels := s.everyFile(k)
		for _, o := range all {
			if f.Prefix("id", o.id) && f.Prefix("name", o.name) && f.Exact("names", o.name) && f.All("label", labels[o.id]) {
				list = append(list, o.v)
			}
		}
		return ok(list)
	})
	m.handle("GET "+path+"/{id}", func(r *http.Request) (answer, error) {
		o, err := one(r)
		if err != nil {
			return answer{}, err
		}
		return ok(o.v)
	})
	m.handle("POST "+path+"/create", func(r *http.Request) (answer, error) {
		f, err := received(r)
		if err != nil {
			return answer{}, err
		}
		id, err := fleet.CreateFile(r.Context(), s.Records, k, f)
		if err != nil {
			return answer{}, err
		}
		return answer{http.StatusCreated, created(k, id)}, nil
	})
	m.handle("POST "+path+"/{id}/update", func(r *http.Request) (answer, error) {
		f, err := received(r)
		if err != nil {
			return answer{}, err
		}
		rev, err := sequence(r)
		if err != nil {
			return answer{}, err
		}
		o, err := one(r)
		if err != nil {
			return answer{}, err
		}
		return answer{http.StatusOK, nil}, fleet.LabelFile(r.Context(), s.Records, k, o.id, rev, f)
	})
	m.handle("DELETE "+path+"/{id}", func(r *http.Request) (answer, error) {
		o, err := one(r)
		if err != nil {
			return answer{}, err
		}
		return answer{http.StatusNoContent, nil}, fleet.RemoveFile(r.Context(), s.Records, k, o.id)
	})
}

// created is the answer with the id of a new object.
func created(k fleet.Kind, id string) any {
	if k == fleet.SecretKind {
		return swarm.SecretCreateResponse{ID: id}
	}
	return common.IDResponse{ID: id}
}

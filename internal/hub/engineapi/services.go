package engineapi

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/moby/api/types/swarm"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/engineapi/translate"
	"github.com/longshore/longshore/internal/hub/engineapi/view"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/invalid"
)

// body is a request's body.
func body(r *http.Request) ([]byte, error) {
	data, err := io.ReadAll(r.Body)
	var large *http.MaxBytesError
	if err != nil && !errors.As(err, &large) {
		return nil, invalid.Errorf("the request cannot be read: %w", err)
	}
	return data, err
}

// services serves services.
func (s Server) services(m *routes) {
	m.handle("GET /services", s.listServices)
	m.handle("POST /services/create", s.createService)
	m.handle("GET /services/{id}", func(r *http.Request) (answer, error) {
		o, err := s.service(r.PathValue("id"))
		if err != nil {
			return answer{}, err
		}
		return ok(view.Service(o.v, o.rev))
	})
	m.handle("POST /services/{id}/update", s.updateService)
	m.handle("DELETE /services/{id}", func(r *http.Request) (answer, error) {
		o, err := s.service(r.PathValue("id"))
		if err != nil {
			return answer{}, err
		}
		return answer{http.StatusOK, nil}, fleet.Remove(r.Context(), s.Records, o.id)
	})
	m.stream("GET /services/{id}/logs", func(w http.ResponseWriter, r *http.Request) {
		o, err := s.service(r.PathValue("id"))
		if err != nil {
			refuse(w, err)
			return
		}
		s.logs(w, r, &swarmv1.LogSelector{ServiceIds: []string{o.id}}, o.v.GetSpec().GetTask().GetContainer().GetTty())
	})
}

// everyService are all services.
func (s Server) everyService() (list []named[*swarmv1.Service]) {
	for id, r := range s.Records.Services() {
		list = append(list, named[*swarmv1.Service]{id: id, name: r.M.GetSpec().GetAnnotations().GetName(), v: r.M, rev: r.Rev})
	}
	return list
}

func (s Server) service(ref string) (named[*swarmv1.Service], error) {
	return find("service", ref, s.everyService())
}

func (s Server) listServices(r *http.Request) (answer, error) {
	f, err := dockerhttp.ParseFilters(r.URL.Query().Get("filters"), "id", "label", "mode", "name", "runtime")
	if err != nil {
		return answer{}, err
	}
	list := []swarm.Service{}
	for _, o := range s.everyService() {
		mode := "replicated"
		if o.v.GetSpec().GetGlobal() != nil {
			mode = "global"
		}
		if f.Prefix("id", o.id) && f.Prefix("name", o.name) && f.All("label", o.v.GetSpec().GetAnnotations().GetLabels()) && f.Exact("mode", mode) && f.Exact("runtime", "container") {
			list = append(list, view.Service(o.v, o.rev))
		}
	}
	slices.SortFunc(list, func(a, b swarm.Service) int { return strings.Compare(a.ID, b.ID) })
	if boolean(r, "status") {
		s.count(list)
	}
	return ok(list)
}

// count tells how many tasks of services run, and how many should.
func (s Server) count(list []swarm.Service) {
	at := map[string]*swarm.ServiceStatus{}
	for i := range list {
		v := &list[i]
		v.ServiceStatus = &swarm.ServiceStatus{}
		if v.Spec.Mode.Replicated != nil {
			v.ServiceStatus.DesiredTasks = *v.Spec.Mode.Replicated.Replicas
		}
		at[v.ID] = v.ServiceStatus
	}
	services := s.Records.Services()
	for _, t := range s.Records.Tasks() {
		c := at[t.M.GetServiceId()]
		if c == nil {
			continue
		}
		if t.State() == swarmv1.TaskState_RUNNING {
			c.RunningTasks++
		}
		if services[t.M.GetServiceId()].M.GetSpec().GetGlobal() != nil && !t.Ended() && t.M.GetDesiredState() <= swarmv1.TaskState_RUNNING {
			c.DesiredTasks++
		}
	}
}

// received reads a request's service, and its credentials for registries.
func received(r *http.Request) (*swarmv1.ServiceSpec, error) {
	data, err := body(r)
	if err != nil {
		return nil, err
	}
	spec, err := translate.Service(data)
	if err != nil {
		return nil, err
	}
	auth, err := translate.Auth(r.Header.Get("X-Registry-Auth"))
	if err != nil {
		return nil, err
	}
	if auth != "" {
		spec.GetTask().GetContainer().PullOptions = &swarmv1.ContainerSpec_PullOptions{RegistryAuth: auth}
	}
	aliases(spec)
	return spec, nil
}

// aliases leaves out the name that docker's command line gives each service of a stack on its
// network: on a network that each node has, nobody is found by it.
func aliases(spec *swarmv1.ServiceSpec) {
	at := spec.GetAnnotations()
	name := strings.TrimPrefix(at.GetName(), at.GetLabels()[fleet.Stack]+"_")
	for _, n := range spec.GetTask().GetNetworks() {
		if slices.Contains(own, n.GetTarget()) {
			n.Aliases = slices.DeleteFunc(n.GetAliases(), func(a string) bool { return a == name })
		}
	}
}

func (s Server) createService(r *http.Request) (answer, error) {
	spec, err := received(r)
	if err != nil {
		return answer{}, err
	}
	if at := spec.GetAnnotations(); at.GetName() == "" {
		at.Name = nameFor(spec.GetTask().GetContainer().GetImage())
	}
	id, err := fleet.Create(r.Context(), s.Records, spec)
	if err != nil {
		return answer{}, err
	}
	return answer{http.StatusCreated, swarm.ServiceCreateResponse{ID: id}}, nil
}

// nameFor makes a name for a service without one: that of its image, and some letters.
func nameFor(image string) string {
	image, _, _ = strings.Cut(image[strings.LastIndexByte(image, '/')+1:], "@")
	image, _, _ = strings.Cut(image, ":")
	return strings.TrimLeft(fmt.Sprintf("%.63s-%.8s", image, ca.NewID()), "._-")
}

func (s Server) updateService(r *http.Request) (answer, error) {
	rev, err := sequence(r)
	if err != nil {
		return answer{}, err
	}
	o, err := s.service(r.PathValue("id"))
	if err != nil {
		return answer{}, err
	}
	done := answer{http.StatusOK, swarm.ServiceUpdateResponse{}}
	q := r.URL.Query()
	switch how := q.Get("rollback"); how {
	case "", "none":
	case "previous":
		return done, fleet.Undo(r.Context(), s.Records, o.id, rev)
	default:
		return answer{}, invalid.Errorf("unrecognized rollback option %.40q", how)
	}
	from := q.Get("registryAuthFrom")
	if from != "" && from != string(swarm.RegistryAuthFromSpec) && from != string(swarm.RegistryAuthFromPreviousSpec) {
		return answer{}, invalid.Errorf("unsupported registryAuthFrom value %.40q", from)
	}
	spec, err := received(r)
	if err != nil {
		return answer{}, err
	}
	return done, fleet.Update(r.Context(), s.Records, o.id, rev, func(is *swarmv1.Service) *swarmv1.ServiceSpec {
		if c := spec.GetTask().GetContainer(); c.GetPullOptions() == nil {
			c.PullOptions = is.GetSpec().GetTask().GetContainer().GetPullOptions()
			if from == string(swarm.RegistryAuthFromPreviousSpec) {
				c.PullOptions = is.GetPreviousSpec().GetTask().GetContainer().GetPullOptions()
			}
		}
		return spec
	})
}

// tasks serves tasks.
func (s Server) tasks(m *routes) {
	m.handle("GET /tasks", s.listTasks)
	m.handle("GET /tasks/{id}", func(r *http.Request) (answer, error) {
		t, err := s.task(r.PathValue("id"))
		if err != nil {
			return answer{}, err
		}
		return ok(view.Task(t.v.M, t.v.Status.M, t.v.Desired(), t.rev))
	})
	m.stream("GET /tasks/{id}/logs", func(w http.ResponseWriter, r *http.Request) {
		t, err := s.task(r.PathValue("id"))
		if err != nil {
			refuse(w, err)
			return
		}
		s.logs(w, r, &swarmv1.LogSelector{TaskIds: []string{t.id}}, t.v.M.GetSpec().GetContainer().GetTty())
	})
}

// task is one task. Tasks have no names of their own.
func (s Server) task(ref string) (named[inventory.Task], error) {
	if t, ok := s.Records.Task(ref); ok {
		return named[inventory.Task]{id: ref, v: t, rev: max(t.Rev, t.Status.Rev)}, nil
	}
	var list []named[inventory.Task]
	for id, t := range s.allTasks() {
		list = append(list, named[inventory.Task]{id: id, v: t, rev: max(t.Rev, t.Status.Rev)})
	}
	return find("task", ref, list)
}

// allTasks returns the stored tasks and the pending ones, by their IDs.
func (s Server) allTasks() map[string]inventory.Task {
	all := maps.Clone(s.Records.Tasks())
	if s.Pending != nil {
		for _, t := range s.Pending() {
			all[t.M.GetId()] = t
		}
	}
	return all
}

// taskName is a task's name as docker's command line shows it: SERVICE.SLOT.ID, or SERVICE.NODE.ID where there is one on each node.
func taskName(t *swarmv1.Task) string {
	place := t.GetNodeId()
	if t.GetSlot() > 0 {
		place = strconv.FormatUint(t.GetSlot(), 10)
	}
	return t.GetServiceAnnotations().GetName() + "." + place + "." + t.GetId()
}

func (s Server) listTasks(r *http.Request) (answer, error) {
	f, err := dockerhttp.ParseFilters(r.URL.Query().Get("filters"), "_up-to-date", "desired-state", "id", "label", "name", "node", "runtime", "service")
	if err != nil {
		return answer{}, err
	}
	services, nodes := s.Records.Services(), map[string]bool{}
	wanted := map[string]bool{}
	for _, ref := range f.Values("service") {
		if o, err := s.service(ref); err == nil {
			wanted[o.id] = true
		}
	}
	for _, ref := range f.Values("node") {
		if n, err := s.node(ref); err == nil {
			nodes[n.id] = true
		}
	}
	for _, state := range f.Values("desired-state") {
		if _, ok := swarmv1.TaskState_value[strings.ToUpper(state)]; !ok {
			return answer{}, invalid.Errorf("invalid filter 'desired-state=%.40s'", state)
		}
	}
	list := []swarm.Task{}
	for id, t := range s.allTasks() {
		service := services[t.M.GetServiceId()].M
		switch at := t.M.GetServiceAnnotations(); {
		case f.Has("service") && !wanted[t.M.GetServiceId()], f.Has("node") && !nodes[t.M.GetNodeId()], !f.Prefix("id", id), !f.Prefix("name", taskName(t.M)):
		case !f.All("label", at.GetLabels()), !f.Exact("runtime", "container"), !f.Exact("desired-state", view.State(t.Desired())):
		case f.Exact("_up-to-date", "true", "1") && f.Has("_up-to-date") && t.M.GetSpecVersion().GetIndex() != service.GetSpecVersion().GetIndex():
		default:
			list = append(list, view.Task(t.M, t.Status.M, t.Desired(), max(t.Rev, t.Status.Rev)))
		}
	}
	slices.SortFunc(list, func(a, b swarm.Task) int { return strings.Compare(a.ID, b.ID) })
	return ok(list)
}

package api

import (
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/hub/inventory"
)

// ApplyStack implements hubv1.ServerInterface.
func (s Server) ApplyStack(w http.ResponseWriter, r *http.Request, p hubv1.ApplyStackParams) {
	var d hubv1.Declaration
	if err := decode(r.Body, &d); err != nil {
		reply(w, nil, err)
		return
	}
	s.apply(w, r, fleet.Declaration{
		Name: d.Name, Services: d.Services, Secrets: d.Secrets, Configs: d.Configs, ExternalSecrets: externals(d.ExternalSecrets), ExternalConfigs: externals(d.ExternalConfigs),
	}, p.Dry != "")
}

func externals(all map[string]hubv1.External) map[string]fleet.External {
	named := make(map[string]fleet.External, len(all))
	for name, e := range all {
		named[name] = fleet.External{Name: e.Name, At: e.At}
	}
	return named
}

// RemoveStack implements hubv1.ServerInterface.
func (s Server) RemoveStack(w http.ResponseWriter, r *http.Request, id string) {
	for _, v := range s.services() {
		if v.Stack == id {
			s.apply(w, r, fleet.Declaration{Name: id}, false)
			return
		}
	}
	reply(w, nil, fmt.Errorf("there is no stack %.100s: %w", id, errdefs.ErrNotFound))
}

func (s Server) apply(w http.ResponseWriter, r *http.Request, d fleet.Declaration, dry bool) {
	diff, err := fleet.Apply(does(r, "applied the stack %s", d.Name), s.Inventory, d, dry)
	list := []hubv1.Difference{}
	for _, c := range diff {
		list = append(list, hubv1.Difference{Change: c.Change, Kind: c.Kind, Name: c.Name})
	}
	reply(w, list, err)
}

// ListServices implements hubv1.ServerInterface.
func (s Server) ListServices(w http.ResponseWriter, _ *http.Request) { reply(w, s.services(), nil) }

// GetService implements hubv1.ServerInterface.
func (s Server) GetService(w http.ResponseWriter, _ *http.Request, id string) {
	for of, r := range s.Inventory.Services() {
		if of == id || r.M.GetSpec().GetAnnotations().GetName() == id {
			show(w, r.M, nil)
			return
		}
	}
	reply(w, nil, fmt.Errorf("there is no service %.100s: %w", id, errdefs.ErrNotFound))
}

// StepService implements hubv1.ServerInterface.
func (s Server) StepService(w http.ResponseWriter, r *http.Request, id string) {
	var u hubv1.UpdateStep
	if err := decode(r.Body, &u); err != nil {
		reply(w, nil, err)
		return
	}
	done(w, fleet.Step(does(r, "service %s: %s", id, u.Step), s.Inventory, id, u.Step))
}

// ListTasks implements hubv1.ServerInterface.
func (s Server) ListTasks(w http.ResponseWriter, _ *http.Request) { reply(w, s.tasks(), nil) }

// GetTask implements hubv1.ServerInterface.
func (s Server) GetTask(w http.ResponseWriter, _ *http.Request, id string) {
	t, ok := s.Inventory.Task(id)
	for _, p := range s.pending() {
		if p.M.GetId() == id {
			t, ok = p, true
		}
	}
	if !ok {
		reply(w, nil, fmt.Errorf("there is no task %.100s: %w", id, errdefs.ErrNotFound))
		return
	}
	m := t.Message()
	m.DesiredState = t.Desired()
	show(w, m, nil)
}

func sorted[T any](list []T, by func(T) string) []T {
	slices.SortFunc(list, func(a, b T) int { return cmp.Compare(by(a), by(b)) })
	return list
}

// pending returns the tasks that no node takes.
func (s Server) pending() []inventory.Task {
	if s.Pending == nil {
		return nil
	}
	return s.Pending()
}

func (s Server) services() []hubv1.Service {
	missing := map[string]string{}
	for _, t := range s.pending() {
		if id := t.M.GetServiceId(); missing[id] == "" {
			missing[id] = t.Status.M.GetErr()
		}
	}
	running := map[string]int{}
	places := map[string]uint64{} // of global services: the number of tasks that should run
	for _, t := range s.Inventory.Tasks() {
		if t.State() == swarmv1.TaskState_RUNNING {
			running[t.M.GetServiceId()]++
		}
		if !t.Ended() && t.M.GetDesiredState() <= swarmv1.TaskState_RUNNING {
			places[t.M.GetServiceId()]++
		}
	}
	list := []hubv1.Service{}
	for id, r := range s.Inventory.Services() {
		spec := r.M.GetSpec()
		v := hubv1.Service{
			ID: id, Name: spec.GetAnnotations().GetName(), Stack: spec.GetAnnotations().GetLabels()[fleet.Stack], Mode: "replicated", Wanted: spec.GetReplicated().GetReplicas(),
			Running: running[id], Version: r.M.GetSpecVersion().GetIndex(), Image: spec.GetTask().GetContainer().GetImage(),
			Update: fleet.Progress(r.M.GetUpdateStatus()), UpdateMessage: r.M.GetUpdateStatus().GetMessage(), Pending: missing[id],
		}
		if spec.GetGlobal() != nil {
			v.Mode, v.Wanted = "global", places[id]
		}
		list = append(list, v)
	}
	return sorted(list, func(v hubv1.Service) string { return v.Name })
}

func (s Server) tasks() []hubv1.Task {
	names := map[string]string{}
	for id, r := range s.Inventory.Services() {
		names[id] = r.M.GetSpec().GetAnnotations().GetName()
	}
	hosts := map[string]string{}
	for _, n := range s.Inventory.Nodes() {
		hosts[n.GetId()] = n.GetDescription().GetHostname()
	}
	list := []hubv1.Task{}
	all := s.Inventory.Tasks()
	for _, t := range s.pending() {
		all[t.M.GetId()] = t
	}
	for id, t := range all {
		changed := t.Status.M.GetTimestamp()
		if changed == nil {
			changed = t.M.GetMeta().GetCreatedAt()
		}
		name := names[t.M.GetServiceId()]
		if name == "" {
			name = t.M.GetServiceAnnotations().GetName()
		}
		list = append(list, hubv1.Task{
			ID: id, Service: name, Slot: t.M.GetSlot(), Node: t.M.GetNodeId(), Hostname: hosts[t.M.GetNodeId()],
			Desired: strings.ToLower(t.Desired().String()), State: strings.ToLower(t.State().String()), Message: t.Status.M.GetMessage(), Error: t.Status.M.GetErr(),
			Exit: t.Status.M.GetContainer().GetExitCode(), Version: t.M.GetSpecVersion().GetIndex(), Changed: changed.AsTime(),
		})
	}
	return sorted(list, func(t hubv1.Task) string { return fmt.Sprintf("%s %05d %s %s", t.Service, t.Slot, t.Node, t.ID) })
}

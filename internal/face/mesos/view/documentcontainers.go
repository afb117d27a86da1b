package view

import (
	"encoding/json"
	"net/http"

	"google.golang.org/protobuf/proto"

	mesosagent "github.com/longshore/longshore/api/mesos/v1/agent"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/face/mesos/api"
)

// containerObject is a container in the documents about containers. A standalone
// container is shown as an executor, because without a master nothing else is.
type containerObject struct {
	Container  string          `json:"container_id,omitempty"`
	Framework  string          `json:"framework_id"`
	ID         string          `json:"executor_id"`
	Name       string          `json:"executor_name"`
	Source     string          `json:"source"`
	Status     json.RawMessage `json:"status,omitempty"`
	Statistics json.RawMessage `json:"statistics,omitempty"`
}

// containerObjects are all standalone containers.
func containerObjects(h Documents, r *http.Request) ([]containerObject, error) {
	resp, err := h.Do(r.Context(), &mesosagent.Call{
		Type: mesosagent.Call_GET_CONTAINERS.Enum(), GetContainers: &mesosagent.Call_GetContainers{ShowStandalone: proto.Bool(true)},
	})
	if err != nil {
		return nil, err
	}
	all := []containerObject{}
	for _, c := range resp.GetGetContainers().GetContainers() {
		e := containerObject{Container: c.GetContainerId().GetValue(), Framework: c.GetFrameworkId().GetValue(), ID: c.GetExecutorId().GetValue(), Name: c.GetExecutorName()}
		if c.FrameworkId == nil {
			e.Framework, e.ID, e.Name = string(core.OwnerMesos), e.Container, e.Container
		}
		e.Source = e.ID
		if c.ContainerStatus != nil {
			if e.Status, err = api.MarshalJSON(c.GetContainerStatus()); err != nil {
				return nil, err
			}
		}
		if c.ResourceStatistics != nil {
			if e.Statistics, err = api.MarshalJSON(c.GetResourceStatistics()); err != nil {
				return nil, err
			}
		}
		all = append(all, e)
	}
	return all, nil
}

// containersDocument lists containers, optionally by container id, by framework id, or
// by framework and executor id.
func containersDocument(h Documents, r *http.Request) (any, error) {
	q := r.URL.Query()
	container, framework, id := q.Get("container_id"), q.Get("framework_id"), q.Get("executor_id")
	if container != "" && (framework != "" || id != "") || id != "" && framework == "" {
		return nil, badRequest("Supported query parameters are container_id only, framework_id only, or executor_id and framework_id only")
	}
	list, err := containerObjects(h, r)
	if err != nil {
		return nil, err
	}
	all := []containerObject{}
	for _, e := range list {
		if (container == "" || container == e.Container) && (framework == "" || framework == e.Framework) && (id == "" || id == e.ID) {
			all = append(all, e)
		}
	}
	return all, nil
}

// statisticsDocument lists the containers that have statistics: readers rely on the
// field.
func statisticsDocument(h Documents, r *http.Request) (any, error) {
	list, err := containerObjects(h, r)
	if err != nil {
		return nil, err
	}
	all := []containerObject{}
	for _, e := range list {
		if e.Statistics != nil {
			e.Container, e.Status = "", nil
			all = append(all, e)
		}
	}
	return all, nil
}

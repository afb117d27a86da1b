package system

import (
	"fmt"
	"net/http"
	"strings"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/dockerhttp"
)

// The refusals of requests for objects of a Swarm, in dockerd's words, which clients compare.
const (
	noManager = `This node is not a swarm manager. Use "docker swarm init" or "docker swarm join" to connect this node to swarm and try again.`
	worker    = "This node is not a swarm manager. Worker nodes can't be used to view or modify cluster state. Please run this command on a manager node " +
		"or promote the current node to a manager."
)

// managers has the requests that only managers of a Swarm serve.
func managers() []string {
	list := strings.Fields(`GET/swarm GET/swarm/unlockkey POST/swarm/update POST/swarm/unlock GET/nodes GET/nodes/{id} DELETE/nodes/{id} POST/nodes/{id}/update
		GET/services POST/services/create GET/services/{id} DELETE/services/{id} POST/services/{id}/update GET/services/{id}/logs
		GET/tasks GET/tasks/{id} GET/tasks/{id}/logs`)
	for _, kind := range []string{"secrets", "configs"} {
		for _, one := range strings.Fields("GET/X POST/X/create GET/X/{id} DELETE/X/{id} POST/X/{id}/update") {
			list = append(list, strings.ReplaceAll(one, "X", kind))
		}
	}
	return list
}

// refusals adds handlers that refuse plugins and objects of a Swarm.
func (s *Server) refusals(m *dockerhttp.Mux) {
	handle := func(request string, h dockerhttp.Handler) {
		method, path, _ := strings.Cut(request, "/")
		m.Handle(method, "/"+path, h)
	}
	for _, request := range managers() {
		handle(request, s.needsManager)
	}
	for _, request := range []string{"POST/swarm/init", "POST/swarm/join", "POST/swarm/leave"} {
		handle(request, s.membership)
	}
	m.Handle("GET", "/plugins", noPlugins)
	m.Handle("GET", "/plugins/privileges", noPlugins)
	for _, request := range []string{
		"GET/plugins/{name...}/json", "DELETE/plugins/{name...}", "POST/plugins/{name...}/enable", "POST/plugins/{name...}/disable",
		"POST/plugins/{name...}/upgrade", "POST/plugins/{name...}/push", "POST/plugins/{name...}/set",
	} {
		handle(request, func(_ http.ResponseWriter, r *dockerhttp.Request) error {
			return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("plugin %q not found", r.Vars["name"]))
		})
	}
	for _, request := range []string{"POST/plugins/pull", "POST/plugins/create"} {
		handle(request, func(http.ResponseWriter, *dockerhttp.Request) error {
			return errdefs.ErrNotImplemented.WithMessage("Longshore has no plugins: volumes have the driver local, networks are those of docker network create")
		})
	}
}

func noPlugins(w http.ResponseWriter, _ *dockerhttp.Request) error {
	return dockerhttp.Reply(w, http.StatusOK, []struct{}{})
}

func (s *Server) needsManager(http.ResponseWriter, *dockerhttp.Request) error {
	if s.swarm().LocalNodeState == active {
		return errdefs.ErrUnavailable.WithMessage(worker)
	}
	return errdefs.ErrUnavailable.WithMessage(noManager)
}

// membership refuses to change the membership of a Swarm, which is an administrator's decision about the node.
func (s *Server) membership(_ http.ResponseWriter, r *dockerhttp.Request) error {
	if err := r.Decode(&struct{}{}); err != nil {
		return err
	}
	state := s.swarm().LocalNodeState
	switch {
	case strings.HasSuffix(r.Path, "/init"):
		return errdefs.ErrNotImplemented.WithMessage("this node can only be a worker: use docker swarm init on another node, and longshore swarm join here")
	case strings.HasSuffix(r.Path, "/join"):
		return errdefs.ErrNotImplemented.WithMessage("this API does not join a Swarm: use longshore swarm join")
	case state != active:
		return errdefs.ErrUnavailable.WithMessage("This node is not part of a swarm")
	}
	return errdefs.ErrNotImplemented.WithMessage("this API does not leave a Swarm: use longshore swarm leave")
}

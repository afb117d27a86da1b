package networks

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/face/docker/view"
)

// remove answers DELETE /networks/{id}.
func (s *Server) remove(w http.ResponseWriter, r *dockerhttp.Request) error {
	n, err := s.Find(r.Context(), r.Vars["id"])
	if err != nil {
		return err
	}
	if Predefined(n.Name) {
		return errdefs.ErrPermissionDenied.WithMessage(n.Name + " is a pre-defined network and cannot be removed")
	}
	members, err := s.members(r.Context())
	if err != nil {
		return err
	}
	if on := active(members, n); len(on) > 0 {
		return inUse(n, on)
	}
	switch err := s.undefine(r.Context(), members, n); {
	case errdefs.IsFailedPrecondition(err): // a container of another owner is on it, or one that starts
		return inUse(n, nil)
	case errdefs.IsNotFound(err):
		return errdefs.ErrNotFound.WithMessage("network " + r.Vars["id"] + " not found")
	case err != nil:
		return err
	}
	s.event("destroy", n, "")
	return dockerhttp.Reply(w, http.StatusNoContent, nil)
}

// undefine removes a network, also one that containers have just left by their end.
func (s *Server) undefine(ctx context.Context, members []member, n Network) error {
	err := s.Networks.Undefine(ctx, n.Core)
	if !errdefs.IsFailedPrecondition(err) {
		return err
	}
	if err := s.leave(ctx, members, n); err != nil {
		return err
	}
	return s.Networks.Undefine(ctx, n.Core)
}

// leave stops the sandboxes of ended containers on a network. The agent does that soon after each end, and they have their
// addresses until then.
func (s *Server) leave(ctx context.Context, members []member, n Network) error {
	request := core.StopRequest{Owner: core.OwnerDocker, Call: "docker network rm", At: time.Now()}
	for _, m := range members {
		if !m.own || !m.on(n) || m.running() {
			continue
		}
		err := s.Engine.StopSandbox(ctx, m.sandbox.ID, engine.StopOptions{IfEnded: true, Request: request})
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// inUse is the error of a removal while containers are on a network.
func inUse(n Network, on []member) error {
	var list []string
	for _, m := range on {
		list = append(list, fmt.Sprintf("name:%q id:%q", string(m.container.Key), view.EndpointID(m.container.ID, n.Name)[:12]))
	}
	slices.Sort(list)
	return errdefs.ErrPermissionDenied.WithMessage(fmt.Sprintf("error while removing network: network %s has active endpoints (%s)", n.Name, strings.Join(list, ", ")))
}

// prune answers POST /networks/prune. It keeps networks of running containers, as dockerd, and those that other owners' containers name.
func (s *Server) prune(w http.ResponseWriter, r *dockerhttp.Request) error {
	f, err := r.Filters("label", "label!", "until")
	if err != nil {
		return err
	}
	before, err := until(f, time.Now())
	if err != nil {
		return err
	}
	if !s.pruning.CompareAndSwap(false, true) {
		return errdefs.ErrFailedPrecondition.WithMessage("a prune operation is already running")
	}
	defer s.pruning.Store(false)
	all, err := s.All(r.Context())
	if err != nil {
		return err
	}
	members, err := s.members(r.Context())
	if err != nil {
		return err
	}
	var gone []string
	for _, n := range all {
		used := slices.ContainsFunc(members, func(m member) bool { return m.on(n) && (m.running() || !m.own) })
		if Predefined(n.Name) || used || !f.Labels(n.Definition.Labels) || !before.IsZero() && n.Definition.Created.After(before) {
			continue
		}
		switch err := s.undefine(r.Context(), members, n); {
		case err == nil:
			gone = append(gone, n.Name)
			s.event("destroy", n, "")
		case !errdefs.IsFailedPrecondition(err) && !errdefs.IsNotFound(err): // in use by now, or removed
			return err
		}
	}
	s.Publish("network", "prune", "", map[string]string{"reclaimed": "0"})
	return dockerhttp.Reply(w, http.StatusOK, struct{ NetworksDeleted []string }{gone})
}

package api

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	hubv1 "github.com/longshore/longshore/api/hub/v1"
	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/invalid"
)

// ListNodes implements hubv1.ServerInterface.
func (s Server) ListNodes(w http.ResponseWriter, _ *http.Request) { reply(w, s.nodes(), nil) }

func (s Server) nodes() []hubv1.Node {
	list := []hubv1.Node{}
	for _, n := range s.Inventory.Nodes() {
		state := "never seen"
		if n.GetStatus() != nil {
			state = strings.ToLower(n.GetStatus().GetState().String())
		}
		clone, _ := s.Inventory.Clone(n.GetId())
		list = append(list, hubv1.Node{
			Clones: clone.Addresses, Banned: clone.Banned,
			ID: n.GetId(), Hostname: n.GetDescription().GetHostname(), State: state, Message: n.GetStatus().GetMessage(), Address: n.GetStatus().GetAddr(),
			Availability: strings.ToLower(n.GetSpec().GetAvailability().String()), Membership: strings.ToLower(n.GetSpec().GetMembership().String()),
			Certificate: strings.ToLower(n.GetCertificate().GetStatus().GetState().String()), Engine: n.GetDescription().GetEngine().GetEngineVersion(),
			Labels: n.GetSpec().GetAnnotations().GetLabels(), Joined: n.GetMeta().GetCreatedAt().AsTime(),
		})
	}
	return list
}

// GetNode implements hubv1.ServerInterface.
func (s Server) GetNode(w http.ResponseWriter, _ *http.Request, id string) {
	n, _, _ := s.Inventory.Node(id)
	if n == nil {
		reply(w, nil, fmt.Errorf("there is no node %.100s: %w", id, errdefs.ErrNotFound))
		return
	}
	show(w, n, nil)
}

// RemoveNode implements hubv1.ServerInterface.
func (s Server) RemoveNode(w http.ResponseWriter, r *http.Request, id string) {
	done(w, s.CA.Remove(does(r, "removed node %s", id), id))
}

// AcceptNode implements hubv1.ServerInterface.
func (s Server) AcceptNode(w http.ResponseWriter, r *http.Request, id string) {
	done(w, s.CA.Accept(does(r, "let node %s in", id), id))
}

// ReauthoriseNode implements hubv1.ServerInterface.
func (s Server) ReauthoriseNode(w http.ResponseWriter, r *http.Request, id string) {
	var a hubv1.Reauthorisation
	if err := decode(r.Body, &a); err != nil {
		reply(w, nil, err)
		return
	}
	done(w, s.CA.Reauthorise(does(r, "admitted node %s again, from %s", id, a.From), id, a.From))
}

// RenewNode implements hubv1.ServerInterface.
func (s Server) RenewNode(w http.ResponseWriter, r *http.Request, id string) {
	done(w, s.CA.Rotate(does(r, "made node %s renew its certificate", id), id))
}

// The limits of a node's labels.
const (
	maxLabels = 100
	maxLabel  = 256
)

// ChangeNode implements hubv1.ServerInterface.
func (s Server) ChangeNode(w http.ResponseWriter, r *http.Request, id string) {
	var c hubv1.NodeChange
	if err := decode(r.Body, &c); err != nil {
		reply(w, nil, err)
		return
	}
	labels := slices.Sorted(maps.Keys(c.Labels))
	done(w, s.CA.Change(does(r, "changed node %s: availability %q, labels %q", id, c.Availability, labels), id, func(n *swarmv1.Node) error { return change(n, c) }))
}

// change changes a node.
func change(n *swarmv1.Node, c hubv1.NodeChange) error {
	if c.Availability != "" {
		availability, ok := swarmv1.NodeSpec_Availability_value[strings.ToUpper(c.Availability)]
		if !ok {
			return invalid.Errorf("the availability %.40q is none of active, pause and drain", c.Availability)
		}
		n.Spec.Availability = swarmv1.NodeSpec_Availability(availability)
	}
	at := n.GetSpec().GetAnnotations()
	if at.Labels == nil {
		at.Labels = map[string]string{}
	}
	for k, v := range c.Labels {
		switch {
		case k == "" || len(k) > maxLabel || v != nil && len(*v) > maxLabel:
			return invalid.Errorf("the label %.80q: a name and a value of at most %d bytes", k, maxLabel)
		case v == nil:
			delete(at.GetLabels(), k)
		default:
			at.Labels[k] = *v
		}
	}
	if len(at.GetLabels()) > maxLabels {
		return invalid.Errorf("a node has at most %d labels", maxLabels)
	}
	return nil
}

package control

import (
	"context"
	"fmt"
	"time"

	"github.com/containerd/errdefs"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/control/view"
)

// Membership joins and leaves a Swarm, and reports the node's membership.
type Membership interface {
	// Join makes the node a worker. It does not store the token.
	Join(ctx context.Context, r JoinRequest) (SwarmStatus, error)
	// Leave ends the membership and removes the Swarm's tasks.
	Leave(ctx context.Context) error
	Status() SwarmStatus
}

// JoinRequest has the parameters of Join.
type JoinRequest struct {
	Addr         string // host:port of a manager
	Token        string
	Availability string // active, pause or drain; "" is active
}

// SwarmStatus describes a membership. Node is "" without one.
type SwarmStatus struct {
	Node, Cluster   string
	Session         string // up or down
	Manager         string // the session's
	Managers        []string
	Error           string // the reason why there is no session
	Tasks           int
	CertificateEnds time.Time
	Overlays        SwarmOverlays
}

// SwarmOverlays are the networks over several nodes that the node is on.
type SwarmOverlays struct {
	Unable   string // the reason why the node cannot be on any
	Gossip   string // the state of the connection to the other nodes
	Members  []string
	Networks []SwarmOverlay
	Taken    []string // published ports that another program on this node uses
}

// SwarmOverlay is a network over several nodes.
type SwarmOverlay struct {
	ID, Name     string
	Tasks, Peers int
	Announced    bool // to the other nodes
	Error        string
}

// swarmServer serves the Swarm service.
type swarmServer struct {
	longshorev1.UnimplementedSwarmServer
	srv *Server
}

var _ longshorev1.SwarmServer = (*swarmServer)(nil)

func (s *swarmServer) member() (Membership, error) {
	if s.srv.o.Swarm == nil {
		return nil, fmt.Errorf("the swarm face is disabled: set enabled = true in [face.swarm] and restart the agent: %w", errdefs.ErrFailedPrecondition)
	}
	return s.srv.o.Swarm, nil
}

// joinTimeout bounds a join, because its client gets no message meanwhile.
const joinTimeout = time.Minute

// Join makes the node a member.
func (s *swarmServer) Join(ctx context.Context, req *longshorev1.SwarmJoinRequest) (*longshorev1.SwarmJoinResponse, error) {
	m, err := s.member()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, joinTimeout)
	defer cancel()
	st, err := m.Join(ctx, JoinRequest{Addr: req.GetAddress(), Token: req.GetToken(), Availability: req.GetAvailability()})
	if err != nil {
		return nil, err
	}
	return &longshorev1.SwarmJoinResponse{Status: toSwarmStatus(st)}, nil
}

// Leave ends the membership.
func (s *swarmServer) Leave(ctx context.Context, _ *longshorev1.SwarmLeaveRequest) (*longshorev1.SwarmLeaveResponse, error) {
	m, err := s.member()
	if err != nil {
		return nil, err
	}
	return &longshorev1.SwarmLeaveResponse{}, m.Leave(ctx)
}

// Status returns the membership.
func (s *swarmServer) Status(context.Context, *longshorev1.SwarmStatusRequest) (*longshorev1.SwarmStatusResponse, error) {
	m, err := s.member()
	if err != nil {
		return nil, err
	}
	return &longshorev1.SwarmStatusResponse{Status: toSwarmStatus(m.Status())}, nil
}

func toSwarmStatus(s SwarmStatus) *longshorev1.SwarmStatus {
	out := &longshorev1.SwarmStatus{
		Node: s.Node, Cluster: s.Cluster, Session: s.Session, Manager: s.Manager, Managers: s.Managers, Error: s.Error, Tasks: uint32(s.Tasks),
	}
	o := s.Overlays
	out.Overlays = &longshorev1.SwarmOverlays{Unable: o.Unable, Gossip: o.Gossip, Members: o.Members, TakenPorts: o.Taken}
	for _, n := range o.Networks {
		out.Overlays.Networks = append(out.Overlays.Networks, &longshorev1.SwarmOverlay{
			Id: n.ID, Name: n.Name, Tasks: uint32(n.Tasks), Peers: uint32(n.Peers), Announced: n.Announced, Error: n.Error,
		})
	}
	if !s.CertificateEnds.IsZero() {
		out.CertificateEnds = view.Time(s.CertificateEnds)
	}
	return out
}

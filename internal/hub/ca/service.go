package ca

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
)

// Service answers nodes that join or renew their certificate.
type Service struct {
	swarmv1.UnimplementedCAServer
	swarmv1.UnimplementedNodeCAServer

	Authority *Authority
	Inventory *inventory.Inventory
	// Approve has nodes that join wait until an operator accepts them.
	Approve bool
	// RenewGrace is how long after its time is over a certificate may still be renewed.
	RenewGrace time.Duration
	// BanClones refuses nodes after their certificate was in use at two places.
	BanClones bool
	Log       *slog.Logger

	joins    joins
	renewals renewers
}

// GetRootCACertificate answers everyone: a join token says whether it is true.
func (s *Service) GetRootCACertificate(context.Context, *swarmv1.GetRootCACertificateRequest) (*swarmv1.GetRootCACertificateResponse, error) {
	return &swarmv1.GetRootCACertificateResponse{Certificate: s.Authority.Roots()}, nil
}

// GetUnlockKey is for managers, which a hub has none of besides itself.
func (s *Service) GetUnlockKey(ctx context.Context, _ *swarmv1.GetUnlockKeyRequest) (*swarmv1.GetUnlockKeyResponse, error) {
	if _, err := s.Authorize(ctx, RoleManager); err != nil {
		return nil, err
	}
	return nil, status.Error(codes.Unimplemented, "a hub has no unlock key")
}

// IssueNodeCertificate makes a node, by a token, or renews the certificate of the one that calls.
func (s *Service) IssueNodeCertificate(ctx context.Context, req *swarmv1.IssueNodeCertificateRequest) (*swarmv1.IssueNodeCertificateResponse, error) {
	if len(req.GetCsr()) == 0 {
		return nil, status.Error(codes.InvalidArgument, "InvalidArgument")
	}
	if callerOf(ctx) != nil && req.GetToken() == "" {
		return s.renew(ctx, req)
	}
	if !s.Authority.admits(req.GetToken()) {
		return nil, status.Error(codes.InvalidArgument, "A valid join token is necessary to join this cluster")
	}
	if _, err := parseCSR(req.GetCsr()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if _, ok := swarmv1.NodeSpec_Availability_name[int32(req.GetAvailability())]; !ok {
		return nil, status.Error(codes.InvalidArgument, "unknown availability")
	}
	if err := s.bounded(ctx); err != nil {
		return nil, err
	}
	id, now := NewID(), timestamppb.Now()
	n := &swarmv1.Node{
		Id: id, Meta: &swarmv1.Meta{CreatedAt: now, UpdatedAt: now}, Role: swarmv1.NodeRole_WORKER,
		Spec:        &swarmv1.NodeSpec{Annotations: &swarmv1.Annotations{}, DesiredRole: swarmv1.NodeRole_WORKER, Membership: swarmv1.NodeSpec_ACCEPTED, Availability: req.GetAvailability()},
		Certificate: &swarmv1.Certificate{Role: swarmv1.NodeRole_WORKER, Csr: req.GetCsr(), Cn: id, Status: &swarmv1.IssuanceStatus{State: swarmv1.IssuanceStatus_PENDING}},
	}
	if s.Approve {
		n.Spec.Membership = swarmv1.NodeSpec_PENDING
	} else if err := s.sign(n); err != nil {
		return nil, s.failed(ctx, "issue a certificate", id, err)
	}
	joined := events.Event{Kind: "join", Who: "node " + id, What: "joins, its membership is " + strings.ToLower(n.GetSpec().GetMembership().String())}
	if _, err := s.Inventory.Commit(ctx, inventory.Put(inventory.Nodes, id, n, store.Absent), joined.Write()); err != nil {
		return nil, s.failed(ctx, "store a node", id, err)
	}
	s.Log.InfoContext(ctx, "a node joins", "node", id, "membership", n.GetSpec().GetMembership().String())
	return &swarmv1.IssueNodeCertificateResponse{NodeId: id, NodeMembership: n.GetSpec().GetMembership()}, nil
}

// sign issues the certificate that a node asks for.
func (s *Service) sign(n *swarmv1.Node) error {
	key, err := parseCSR(n.GetCertificate().GetCsr())
	if err != nil {
		return err
	}
	chain, err := s.Authority.issue(n.GetId(), RoleWorker, key)
	if err != nil {
		return err
	}
	n.Certificate.Certificate = encodeChain(chain)
	n.Certificate.Status = &swarmv1.IssuanceStatus{State: swarmv1.IssuanceStatus_ISSUED}
	return nil
}

// renew gives the node that calls another certificate.
func (s *Service) renew(ctx context.Context, req *swarmv1.IssueNodeCertificateRequest) (*swarmv1.IssueNodeCertificateResponse, error) {
	caller, err := s.known(ctx, RoleWorker)
	if err != nil {
		return nil, err
	}
	if _, err := parseCSR(req.GetCsr()); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	if err := s.renewing(ctx, caller.Node); err != nil {
		return nil, err
	}
	var membership swarmv1.NodeSpec_Membership
	renews := events.Event{Kind: "certificate", Who: "node " + caller.Node, What: "has renewed its certificate, from " + caller.Addr}
	err = s.Change(events.By(ctx, renews), caller.Node, func(n *swarmv1.Node) error {
		n.Certificate = &swarmv1.Certificate{Role: swarmv1.NodeRole_WORKER, Csr: req.GetCsr(), Cn: n.GetId()}
		membership = n.GetSpec().GetMembership()
		return s.sign(n)
	})
	if errdefs.IsNotFound(err) {
		return nil, status.Errorf(codes.NotFound, "node %s not found when attempting to renew certificate", caller.Node)
	}
	if err != nil {
		return nil, s.failed(ctx, "renew a certificate", caller.Node, err)
	}
	s.Log.InfoContext(ctx, "a node has renewed its certificate", "node", caller.Node, "from", caller.Addr, "expired", caller.Expired)
	return &swarmv1.IssueNodeCertificateResponse{NodeId: caller.Node, NodeMembership: membership}, nil
}

// failed logs an error of the hub's own, and hides it from the node.
func (s *Service) failed(ctx context.Context, what, node string, err error) error {
	if ctx.Err() != nil {
		return status.FromContextError(ctx.Err()).Err()
	}
	s.Log.ErrorContext(ctx, "could not serve a node", "operation", what, "node", node, "error", err)
	return status.Error(codes.Aborted, "the hub could not "+what)
}

// NodeCertificateStatus waits until a certificate has been issued or refused.
func (s *Service) NodeCertificateStatus(ctx context.Context, req *swarmv1.NodeCertificateStatusRequest) (*swarmv1.NodeCertificateStatusResponse, error) {
	if req.GetNodeId() == "" {
		return nil, status.Error(codes.InvalidArgument, "InvalidArgument")
	}
	done, ok := s.joins.wait(ctx)
	if !ok {
		return nil, status.Errorf(codes.Unavailable, "%d calls of this connection already wait for certificates", maxWaits)
	}
	defer done()
	for {
		if n, _, _ := s.Inventory.Node(req.GetNodeId()); n == nil { // before anything is kept for the id
			return nil, status.Error(codes.NotFound, "NotFound")
		}
		changed := s.Inventory.NodeChanged(req.GetNodeId())
		n, _, _ := s.Inventory.Node(req.GetNodeId())
		if n == nil {
			return nil, status.Error(codes.NotFound, "NotFound")
		}
		switch c := n.GetCertificate(); c.GetStatus().GetState() {
		case swarmv1.IssuanceStatus_ISSUED, swarmv1.IssuanceStatus_FAILED, swarmv1.IssuanceStatus_ROTATE:
			return &swarmv1.NodeCertificateStatusResponse{Status: c.GetStatus(), Certificate: c}, nil
		default:
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, status.FromContextError(ctx.Err()).Err()
		}
	}
}

// Change changes the record of a node. NotFound if there is no such node; it retries after a
// concurrent change.
func (s *Service) Change(ctx context.Context, id string, fn func(n *swarmv1.Node) error) error {
	for {
		n, rev, _ := s.Inventory.Node(id)
		if n == nil {
			return notFound(id)
		}
		n = proto.CloneOf(n)
		n.Meta.Version, n.Description, n.Status = nil, nil, nil // the session's
		n.Meta.UpdatedAt = timestamppb.Now()
		if err := fn(n); err != nil {
			return err
		}
		changed := s.Inventory.NodeChanged(id)
		_, err := s.Inventory.Commit(ctx, inventory.Put(inventory.Nodes, id, n, rev))
		if !errdefs.IsAborted(err) {
			return err
		}
		if _, now, _ := s.Inventory.Node(id); now != rev {
			continue
		}
		select { // the inventory does not have the other change yet
		case <-changed:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func notFound(id string) error {
	return fmt.Errorf("there is no node %s: %w", id, errdefs.ErrNotFound)
}

// Accept gives a node that waits for it its certificate.
func (s *Service) Accept(ctx context.Context, id string) error {
	return s.Change(ctx, id, func(n *swarmv1.Node) error {
		n.Spec.Membership = swarmv1.NodeSpec_ACCEPTED
		if n.GetCertificate().GetStatus().GetState() != swarmv1.IssuanceStatus_PENDING {
			return nil
		}
		return s.sign(n)
	})
}

// Rotate has a node renew its certificate.
func (s *Service) Rotate(ctx context.Context, id string) error {
	return s.Change(ctx, id, func(n *swarmv1.Node) error {
		n.Certificate.Status = &swarmv1.IssuanceStatus{State: swarmv1.IssuanceStatus_ROTATE}
		return nil
	})
}

// Remove removes a node, with its tasks, and revokes its certificates.
func (s *Service) Remove(ctx context.Context, id string) error {
	n, rev, _ := s.Inventory.Node(id)
	if n == nil {
		return notFound(id)
	}
	expiry := timestamppb.New(time.Now().Add(s.Authority.life + s.RenewGrace))
	_, err := s.Inventory.Commit(ctx,
		inventory.Delete(inventory.Nodes, id, rev), inventory.Delete(inventory.Seen, id, store.Any), inventory.Delete(inventory.Clones, id, store.Any),
		inventory.Put(inventory.Revoked, id, &swarmv1.BlacklistedCertificate{Expiry: expiry}, store.Any),
	)
	return err
}

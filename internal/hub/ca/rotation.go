package ca

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"time"

	"github.com/containerd/errdefs"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/events"
)

// The rate of requests to nodes to renew their certificates in a rotation: at most so many per
// time, as SwarmKit does.
const (
	renewals     = 30
	renewalsTime = 3 * time.Second
	look         = 250 * time.Millisecond // the shortest time between two scans of the nodes
	renewing     = time.Minute            // how long a node has to use its new certificate
)

// Run performs requested rotations of the root, until ctx ends: it asks the nodes to renew their
// certificates, and drops the old root once all of them have.
func (s *Service) Run(ctx context.Context) error {
	batches := &pace{}
	for {
		changed := s.Authority.Changed()
		if !s.Authority.Rotating() {
			select {
			case <-changed:
				continue
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		next := s.Inventory.Next()
		if err := s.exchange(ctx, batches); err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			s.Log.ErrorContext(ctx, "could not continue the root rotation; will try again", "error", err)
		}
		if err := pause(ctx, renewalsTime, next, changed); err != nil {
			return err
		}
	}
}

// pause waits for a moment in any case, and then for a change, or the end of some time.
func pause(ctx context.Context, long time.Duration, next, changed <-chan struct{}) error {
	moment, end := time.NewTimer(look), time.NewTimer(long)
	defer moment.Stop()
	defer end.Stop()
	select {
	case <-moment.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	select {
	case <-next:
	case <-changed:
	case <-end.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// pace counts the nodes that were asked to renew their certificate since a time.
type pace struct {
	since time.Time
	n     int
}

// more reports whether one more may be asked.
func (p *pace) more(now time.Time) bool {
	if now.Sub(p.since) >= renewalsTime {
		p.since, p.n = now, 0
	}
	p.n++
	return p.n <= renewals
}

// exchange continues a rotation of the root.
func (s *Service) exchange(ctx context.Context, batches *pace) error {
	missing := s.Missing()
	if len(missing) == 0 {
		err := s.Authority.FinishRotation(events.By(ctx, events.Event{Kind: "root", Who: "hub", What: "all nodes have certificates of the new root; the old one is no longer trusted"}))
		if err == nil {
			s.Log.InfoContext(ctx, "all nodes have certificates of the new root; the old one is no longer trusted")
		}
		if errdefs.IsAborted(err) || errdefs.IsFailedPrecondition(err) { // another hub was first
			return nil
		}
		return err
	}
	by := s.Authority.trust.Load()
	for _, n := range missing {
		if n.GetStatus().GetState() != swarmv1.NodeStatus_READY || !by.stale(n.GetCertificate(), time.Now()) {
			continue
		}
		if !batches.more(time.Now()) {
			return nil
		}
		err := s.Change(ctx, n.GetId(), func(n *swarmv1.Node) error {
			if by.stale(n.GetCertificate(), time.Now()) {
				n.Certificate.Status = &swarmv1.IssuanceStatus{State: swarmv1.IssuanceStatus_ROTATE}
			}
			return nil
		})
		if err != nil && !errdefs.IsNotFound(err) {
			return err
		}
	}
	return nil
}

// stale reports whether a node is to renew its certificate: it was not asked to, and did not get
// one of the new root just now.
func (t *trust) stale(c *swarmv1.Certificate, now time.Time) bool {
	if c.GetStatus().GetState() != swarmv1.IssuanceStatus_ISSUED {
		return false
	}
	block, _ := pem.Decode(c.GetCertificate())
	if block == nil {
		return false
	}
	leaf, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return false
	}
	return leaf.CheckSignatureFrom(t.issuer) != nil || now.Sub(leaf.NotBefore.Add(backdate)) > renewing
}

// Missing are the nodes that have not said yet that their certificate is of the issuer of now.
func (s *Service) Missing() (list []*swarmv1.Node) {
	by := s.Authority.trust.Load()
	for _, n := range s.Inventory.Nodes() {
		if !by.has(n.GetDescription().GetTlsInfo()) {
			list = append(list, n)
		}
	}
	return list
}

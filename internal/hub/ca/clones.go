package ca

import (
	"context"
	"slices"
	"time"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/invalid"
)

// Cloned handles a node's certificate that is in use at two addresses, which take its session from
// each other. By policy the node is refused from then on.
func (s *Service) Cloned(ctx context.Context, node string, addresses ...string) error {
	slices.Sort(addresses)
	for {
		c, rev := s.Inventory.Clone(node)
		if c.Banned || slices.Equal(c.Addresses, addresses) && time.Since(c.Seen) < cloneAgain && !s.BanClones {
			return nil
		}
		c.Addresses, c.Seen, c.Banned = addresses, time.Now().UTC(), s.BanClones
		text := "its certificate is in use at " + addresses[0] + " and " + addresses[1]
		if c.Banned {
			text += "; it is refused from now on"
		}
		changed := s.Inventory.NodeChanged(node)
		_, err := s.Inventory.Commit(ctx, c.Put(node, rev), events.Event{Kind: "clone", Who: "node " + node, What: text}.Write())
		if err == nil {
			s.Log.WarnContext(ctx, "the certificate of a node is in use at two addresses", "node", node, "addresses", addresses, "banned", c.Banned)
		}
		if !errdefs.IsAborted(err) {
			return err
		}
		select { // another hub has told it; its record comes
		case <-changed:
		case <-time.After(look):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// cloneAgain is the interval of repeated reports of clones.
const cloneAgain = time.Hour

// Reauthorise admits a node again after its certificate was in use at two places: from one address,
// with its present certificate until it has renewed it, which the hub requests at once. All earlier
// certificates are then revoked. FailedPrecondition when the node has no clones.
func (s *Service) Reauthorise(ctx context.Context, node, from string) error {
	c, rev := s.Inventory.Clone(node)
	if n, _, _ := s.Inventory.Node(node); n == nil {
		return notFound(node)
	}
	if rev < 0 {
		return invalid.Errorf("node %s has no clones", node)
	}
	if from == "" {
		return invalid.Errorf("name the address to admit the node from: its certificate was used at %v", c.Addresses)
	}
	// Certificates have the second of their issue. Others may have been issued in this one.
	c.Since = time.Now().UTC().Truncate(time.Second).Add(time.Second)
	timer := time.NewTimer(time.Until(c.Since))
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	c.Banned, c.From = false, from
	if _, err := s.Inventory.Commit(ctx, c.Put(node, rev)); err != nil {
		return err
	}
	return s.Rotate(ctx, node)
}

// renewed handles a node's session with a new certificate: earlier ones, if they were still
// accepted from one address, are now refused.
func (s *Service) renewed(ctx context.Context, c Caller) {
	clone, rev := s.Inventory.Clone(c.Node)
	if rev < 0 || clone.From == "" || clone.Since.IsZero() || c.Issued.Before(clone.Since) {
		return
	}
	clone.From = ""
	if _, err := s.Inventory.Commit(ctx, clone.Put(c.Node, rev)); err != nil && !errdefs.IsAborted(err) {
		s.Log.WarnContext(ctx, "could not store that a node has renewed its certificate; will try again with its next session", "node", c.Node, "error", err)
	}
}

// Session handles the begin of a node's session.
func (s *Service) Session(ctx context.Context, c Caller) { s.renewed(ctx, c) }

// admits reports whether a caller is not kept out as a clone.
func (s *Service) admits(c Caller) error {
	clone, rev := s.Inventory.Clone(c.Node)
	switch {
	case rev < 0 || clone.Admits(c.Issued, c.Addr):
		return nil
	case clone.Banned:
		return denied("node %s is banned: its certificate is in use at two places", c.Node)
	default:
		return denied("node %s needs a newer certificate: this one was in use at two places", c.Node)
	}
}

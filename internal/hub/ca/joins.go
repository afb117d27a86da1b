package ca

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/weaken"
)

// The bounds for holders of a join token, and for strangers. A source is an address, or for IPv6 a
// network of 64 bits, because its owner has all its addresses.
const (
	sourceBurst = 100         // nodes of one source that may join at once
	sourceEvery = time.Second // and one more in so much time
	totalBurst  = 1000        // nodes that may join at once
	totalEvery  = time.Second / 10
	// maxNeverReady is how many nodes there may be that have never had a session.
	maxNeverReady = 1000
	// maxWaits is how many calls of one connection without a certificate may wait for one.
	maxWaits = 4
	// maxBuckets bounds how many sources, or nodes that renew, are remembered; when there are more the
	// oldest is forgotten.
	maxBuckets = 10_000

	renewBurst = 30               // renewals of one node that may come at once
	renewEvery = 10 * time.Second // and one more in so much time
)

// bucket is a token bucket, which is full at the beginning.
type bucket struct {
	full time.Time // when it is full again
}

// take reports whether one more is within the rate.
func (b *bucket) take(now time.Time, burst int, every time.Duration) bool {
	from := b.full
	if from.Before(now) {
		from = now
	}
	if from.Add(every).Sub(now) > time.Duration(burst)*every {
		return false
	}
	b.full = from.Add(every)
	return true
}

// rates are buckets by source or node.
type rates map[string]*bucket

// of returns the bucket of a key.
func (r rates) of(key string, now time.Time) *bucket {
	b := r[key]
	if b == nil {
		r.forget(now)
		b = &bucket{}
		r[key] = b
	}
	return b
}

// forget makes room for a key: full buckets need not be kept.
func (r rates) forget(now time.Time) {
	if len(r) < maxBuckets {
		return
	}
	var oldest string
	for key, b := range r {
		if !b.full.After(now) {
			delete(r, key)
		} else if oldest == "" || b.full.Before(r[oldest].full) {
			oldest = key
		}
	}
	if len(r) >= maxBuckets {
		delete(r, oldest)
	}
}

// due reports whether an event of a refusal is due: one in a minute, as an event is a record too.
func due(warned *time.Time, now time.Time) bool {
	if now.Sub(*warned) < time.Minute {
		return false
	}
	*warned = now
	return true
}

// joins bounds how many nodes join.
type joins struct {
	refused, dropped atomic.Uint64

	mu      sync.Mutex // guards total, sources, waits, warned
	total   bucket
	sources rates
	waits   map[string]int // by the address of a connection
	warned  time.Time      // the last event that joins are refused
}

// renewers bounds how often a node renews its certificate: each renewal is a signature, a record and an
// event.
type renewers struct {
	refused atomic.Uint64

	mu     sync.Mutex // guards nodes, warned
	nodes  rates
	warned time.Time // the last event that renewals are refused
}

// admit reports whether a node may renew its certificate once more, and whether an event that it may
// not is due.
func (r *renewers) admit(node string, now time.Time) (ok, tell bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.nodes == nil {
		r.nodes = rates{}
	}
	if r.nodes.of(node, now).take(now, renewBurst, renewEvery) {
		return true, false
	}
	r.refused.Add(1)
	return false, due(&r.warned, now)
}

// sourceOf is from where a call comes; "" for one of this process.
func sourceOf(ctx context.Context) string {
	p, ok := peer.FromContext(ctx)
	if !ok || p.Addr == nil {
		return ""
	}
	text, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return p.Addr.String()
	}
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return text
	}
	if addr = addr.Unmap().WithZone(""); addr.Is6() && !addr.IsLoopback() {
		if network, err := addr.Prefix(64); err == nil {
			return network.String()
		}
	}
	return addr.String()
}

// admit reports whether one more node of a source may join, and whether an event that it may not is
// due.
func (j *joins) admit(source string, now time.Time) (ok, tell bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.sources == nil {
		j.sources = rates{}
	}
	if j.sources.of(source, now).take(now, sourceBurst, sourceEvery) && j.total.take(now, totalBurst, totalEvery) {
		return true, false
	}
	j.refused.Add(1)
	return false, due(&j.warned, now)
}

// wait counts a call that waits for a certificate, until done. False when the connection has too
// many.
func (j *joins) wait(ctx context.Context) (done func(), ok bool) {
	p, has := peer.FromContext(ctx)
	if !has || p.Addr == nil || callerOf(ctx) != nil {
		return func() {}, true
	}
	at := p.Addr.String()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.waits == nil {
		j.waits = map[string]int{}
	}
	if j.waits[at] >= maxWaits {
		return nil, false
	}
	j.waits[at]++
	return func() {
		j.mu.Lock()
		defer j.mu.Unlock()
		if j.waits[at]--; j.waits[at] == 0 {
			delete(j.waits, at)
		}
	}, true
}

// JoinsRefused is how many nodes this hub has not let join because too many did, and NodesDropped
// how many it has dropped that had never been ready.
func (s *Service) JoinsRefused() uint64 { return s.joins.refused.Load() }

// NodesDropped is described at JoinsRefused.
func (s *Service) NodesDropped() uint64 { return s.joins.dropped.Load() }

// RenewalsRefused counts the renewals that this hub has refused because their node made too many.
func (s *Service) RenewalsRefused() uint64 { return s.renewals.refused.Load() }

// NeverReady are the nodes that have never had a session, the oldest first.
func (s *Service) NeverReady() (list []*swarmv1.Node) {
	for _, n := range s.Inventory.Nodes() {
		if n.GetDescription() == nil && n.GetStatus() == nil {
			list = append(list, n)
		}
	}
	slices.SortStableFunc(list, func(a, b *swarmv1.Node) int {
		return a.GetMeta().GetCreatedAt().AsTime().Compare(b.GetMeta().GetCreatedAt().AsTime())
	})
	return list
}

// bounded returns an error when no more nodes may join from where a call comes, and drops the
// oldest of those that have never been ready when there are too many.
func (s *Service) bounded(ctx context.Context) error {
	source := sourceOf(ctx)
	if source == "" || weaken.Off(weaken.HubJoins) {
		return nil
	}
	ok, tell := s.joins.admit(source, time.Now())
	if !ok {
		if tell {
			s.report(ctx, events.Event{Kind: "join", Who: "source " + source, What: "exceeds the rate limit of joins: some nodes were refused; reported once a minute"})
		}
		return status.Error(codes.ResourceExhausted, "too many nodes join at once; try again later")
	}
	waiting := s.NeverReady()
	for _, n := range waiting[:max(0, len(waiting)-maxNeverReady+1)] {
		if err := s.drop(ctx, n.GetId()); err != nil {
			return s.failed(ctx, "drop a node that was never ready", n.GetId(), err)
		}
	}
	return nil
}

// report logs and stores that something is refused.
func (s *Service) report(ctx context.Context, e events.Event) {
	s.Log.WarnContext(ctx, "a client makes too many requests", "who", e.Who, "event", e.What)
	if _, err := s.Inventory.Commit(ctx, e.Write()); err != nil {
		s.Log.WarnContext(ctx, "could not store an event", "event", e.What, "error", err)
	}
}

// renewing returns an error when a node renews its certificate more often than it may.
func (s *Service) renewing(ctx context.Context, node string) error {
	ok, tell := s.renewals.admit(node, time.Now())
	if ok {
		return nil
	}
	if tell {
		s.report(ctx, events.Event{Kind: "certificate", Who: "node " + node, What: "exceeds the rate limit of renewals: its request was refused; reported once a minute"})
	}
	return status.Errorf(codes.ResourceExhausted, "node %s renews its certificate too often; try again later", node)
}

// drop removes a node that has never been ready. Its certificate is of no use without its record,
// so that nothing is kept of it.
func (s *Service) drop(ctx context.Context, id string) error {
	n, rev, seen := s.Inventory.Node(id)
	if n == nil || seen != 0 {
		return nil
	}
	dropped := events.Event{Kind: "node", Who: "hub", What: fmt.Sprintf("dropped node %s, the oldest of %d that have never been ready", id, maxNeverReady)}
	_, err := s.Inventory.Commit(ctx, inventory.Delete(inventory.Nodes, id, rev), inventory.Delete(inventory.Clones, id, store.Any), dropped.Write())
	if errdefs.IsAborted(err) { // it has changed meanwhile
		return nil
	}
	if err == nil {
		s.joins.dropped.Add(1)
	}
	return err
}

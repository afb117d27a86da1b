package session

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/peers"
)

// Broker passes the output of tasks from their nodes to subscribers.
type Broker struct {
	swarmv1.UnimplementedLogBrokerServer
	ca        *ca.Service
	inventory *inventory.Inventory
	// others are the other hubs, nil when nobody asks them; here says which nodes are in touch with this one.
	others *peers.Peers
	here   func(node string) bool

	mu      sync.Mutex // guards subs, changed
	subs    map[string]*Subscription
	changed chan struct{} // closed when a subscription begins or ends
}

// NewBroker is one without subscriptions.
func NewBroker(service *ca.Service, b *inventory.Inventory) *Broker {
	return &Broker{ca: service, inventory: b, subs: map[string]*Subscription{}, changed: make(chan struct{})}
}

// Subscription is output that someone asks for.
type Subscription struct {
	// Messages are the nodes' messages. Done is closed when all of them have sent everything,
	// unless the subscription follows.
	Messages <-chan *swarmv1.LogMessage
	Done     <-chan struct{}

	b    *Broker
	msg  *swarmv1.SubscriptionMessage
	out  chan *swarmv1.LogMessage
	ctx  context.Context
	end  context.CancelFunc
	away []string // the nodes that are not in touch with this hub
	done chan struct{}
	// asking are the questions to other hubs that are under way.
	asking sync.WaitGroup

	mu      sync.Mutex // guards pending, missing, closed
	pending map[string]bool
	missing map[string]bool
	closed  bool
}

// Subscribe asks the nodes for the output of the tasks of a selector, until Close. here says
// which nodes are in touch with this hub: those that are with none can send nothing.
func (b *Broker) Subscribe(selector *swarmv1.LogSelector, o *swarmv1.LogSubscriptionOptions, here func(node string) bool) *Subscription {
	s := b.subscribe(selector, o, here)
	s.startAll(s.away)
	return s
}

// subscribe makes a subscription of this hub's nodes; start begins it.
func (b *Broker) subscribe(selector *swarmv1.LogSelector, o *swarmv1.LogSubscriptionOptions, here func(node string) bool) *Subscription {
	s := &Subscription{
		b: b, msg: &swarmv1.SubscriptionMessage{Id: ca.NewID(), Selector: selector, Options: o}, out: make(chan *swarmv1.LogMessage),
		done: make(chan struct{}), pending: map[string]bool{}, missing: map[string]bool{},
	}
	s.Messages, s.Done = s.out, s.done
	s.ctx, s.end = context.WithCancel(context.Background())
	for _, t := range b.inventory.Tasks() {
		if !s.wants(t) {
			continue
		}
		if node := t.M.GetNodeId(); here(node) {
			s.pending[node] = true
		} else {
			s.away = append(s.away, node)
		}
	}
	return s
}

// start has the nodes know of it.
func (s *Subscription) start() {
	s.finished("", false)
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	s.b.subs[s.msg.GetId()] = s
	s.b.wakeLocked()
}

// Close ends it.
func (s *Subscription) Close() {
	s.end()
	s.asking.Wait()
	s.b.mu.Lock()
	defer s.b.mu.Unlock()
	delete(s.b.subs, s.msg.GetId())
	s.b.wakeLocked()
}

// Missing returns the nodes with incomplete output, because they had no session.
func (s *Subscription) Missing() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.missing))
}

func (b *Broker) wakeLocked() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// wants reports whether a task's output is subscribed.
func (s *Subscription) wants(t inventory.Task) bool {
	sel := s.msg.GetSelector()
	return slices.Contains(sel.GetTaskIds(), t.M.GetId()) || slices.Contains(sel.GetServiceIds(), t.M.GetServiceId()) || slices.Contains(sel.GetNodeIds(), t.M.GetNodeId())
}

// finished notes that a node has sent everything, or that it will send no more.
func (s *Subscription) finished(node string, incomplete bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pending[node] && incomplete {
		s.missing[node] = true
	}
	delete(s.pending, node)
	if len(s.pending) == 0 && !s.closed && !s.msg.GetOptions().GetFollow() {
		s.closed = true
		close(s.done)
	}
}

// concerning returns the open subscriptions of a node, and channels; one is closed when they
// change. Without subscriptions, changes of the node's tasks do not matter.
func (b *Broker) concerning(node string) (all map[string]*Subscription, subs, tasks <-chan struct{}) {
	b.mu.Lock()
	all, subs = maps.Clone(b.subs), b.changed
	b.mu.Unlock()
	if len(all) == 0 {
		return nil, subs, nil
	}
	assigned, tasks := b.inventory.Assigned(node)
	maps.DeleteFunc(all, func(_ string, s *Subscription) bool {
		for _, t := range assigned.Tasks {
			if s.wants(t) {
				return false
			}
		}
		return true
	})
	return all, subs, tasks
}

// ListenSubscriptions sends a node its subscriptions.
func (b *Broker) ListenSubscriptions(_ *swarmv1.ListenSubscriptionsRequest, stream grpc.ServerStreamingServer[swarmv1.SubscriptionMessage]) error {
	ctx := stream.Context()
	l := &listening{b: b, stream: stream, sent: map[string]*Subscription{}}
	defer l.end()
	for {
		if err := aside(l.step); err != nil {
			return err
		}
		select {
		case <-l.subs:
		case <-l.tasks:
		case <-l.self:
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
}

// listening is a stream of a node's subscriptions.
type listening struct {
	b      *Broker
	stream grpc.ServerStreamingServer[swarmv1.SubscriptionMessage]
	sent   map[string]*Subscription
	node   string
	// Closed at changes.
	subs, tasks, self <-chan struct{}
}

// end marks the node's output as ended.
func (l *listening) end() {
	for _, s := range l.sent {
		s.finished(l.node, true)
	}
}

// step sends the present changes.
func (l *listening) step() error {
	caller, err := l.b.ca.Authorize(l.stream.Context(), roles...)
	if err != nil {
		return err
	}
	l.node, l.self = caller.Node, l.b.inventory.NodeChanged(caller.Node)
	if err := l.b.ca.Allowed(caller); err != nil { // it may have been removed before that
		return err
	}
	var now map[string]*Subscription
	now, l.subs, l.tasks = l.b.concerning(caller.Node)
	for id, s := range now {
		if l.sent[id] == nil {
			l.sent[id] = s
			if err := l.stream.Send(s.msg); err != nil {
				return err
			}
		}
	}
	for id := range l.sent {
		if now[id] == nil {
			delete(l.sent, id)
			if err := l.stream.Send(&swarmv1.SubscriptionMessage{Id: id, Close: true}); err != nil {
				return err
			}
		}
	}
	return nil
}

// PublishLogs takes output for one subscription.
func (b *Broker) PublishLogs(stream grpc.ClientStreamingServer[swarmv1.PublishLogsMessage, swarmv1.PublishLogsResponse]) error {
	ctx := stream.Context()
	caller, err := b.ca.Authorize(ctx, roles...)
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	defer close(ended)
	go b.cut(caller, ended)
	var s *Subscription
	incomplete := true
	defer func() {
		if s != nil {
			s.finished(caller.Node, incomplete)
		}
	}()
	for {
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&swarmv1.PublishLogsResponse{})
		}
		if err != nil {
			return err
		}
		if err := b.ca.Allowed(caller); err != nil {
			return err
		}
		if s == nil {
			if s, err = b.find(msg.GetSubscriptionId()); err != nil {
				return err
			}
		} else if msg.GetSubscriptionId() != s.msg.GetId() {
			return status.Error(codes.InvalidArgument, "different subscription IDs in the same session")
		}
		if err := s.take(ctx, caller.Node, msg.GetMessages()); err != nil {
			return err
		}
		if msg.GetClose() {
			incomplete = false
			return stream.SendAndClose(&swarmv1.PublishLogsResponse{})
		}
	}
}

// cut closes the connection of a node that is let in no more while a stream of its output is open:
// nothing else would end a stream that waits for its client.
func (b *Broker) cut(caller ca.Caller, ended <-chan struct{}) {
	for {
		changed := b.inventory.NodeChanged(caller.Node)
		if b.ca.Allowed(caller) != nil {
			caller.Cut()
			return
		}
		select {
		case <-changed:
		case <-ended:
			return
		}
	}
}

// find is a subscription by its id.
func (b *Broker) find(id string) (*Subscription, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.subs[id]
	switch {
	case id == "":
		return nil, status.Error(codes.InvalidArgument, "missing subscription ID")
	case s == nil:
		return nil, status.Error(codes.NotFound, "unknown subscription ID")
	}
	return s, nil
}

// take passes a node's messages on. One of a task that is not the node's, or that nobody asked
// for, is refused.
func (s *Subscription) take(ctx context.Context, node string, messages []*swarmv1.LogMessage) error {
	for _, m := range messages {
		if m.GetContext().GetNodeId() != node {
			return status.Error(codes.PermissionDenied, "invalid NodeID")
		}
		t, ok := s.b.inventory.Task(m.GetContext().GetTaskId())
		if !ok {
			continue // it was removed meanwhile
		}
		if t.M.GetNodeId() != node || !s.wants(t) {
			return status.Error(codes.PermissionDenied, "output of a task that was not asked for")
		}
		select {
		case s.out <- m:
		case <-s.ctx.Done():
			return status.Error(codes.NotFound, "unknown subscription ID")
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		}
	}
	return nil
}

// Allocator answers nodes' requests for attachments to networks of the Swarm. A hub has none.
type Allocator struct {
	swarmv1.UnimplementedResourceAllocatorServer
	CA *ca.Service
}

// AttachNetwork answers that there is no such network.
func (a Allocator) AttachNetwork(ctx context.Context, req *swarmv1.AttachNetworkRequest) (*swarmv1.AttachNetworkResponse, error) {
	if _, err := a.CA.Authorize(ctx, roles...); err != nil {
		return nil, err
	}
	target := req.GetConfig().GetTarget()
	if target == "" {
		return nil, status.Error(codes.InvalidArgument, "missing network target")
	}
	return nil, status.Errorf(codes.NotFound, "network %.100q not found", target)
}

// DetachNetwork answers that there is no such attachment.
func (a Allocator) DetachNetwork(ctx context.Context, req *swarmv1.DetachNetworkRequest) (*swarmv1.DetachNetworkResponse, error) {
	if _, err := a.CA.Authorize(ctx, roles...); err != nil {
		return nil, err
	}
	if req.GetAttachmentId() == "" {
		return nil, status.Error(codes.InvalidArgument, "missing attachment ID")
	}
	return nil, status.Errorf(codes.NotFound, "attachment %.100q not found", req.GetAttachmentId())
}

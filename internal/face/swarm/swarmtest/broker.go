package swarmtest

import (
	"errors"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
)

// broker has the manager's subscriptions to the output of tasks.
type broker struct {
	mu      sync.Mutex // guards subs, changed, paused
	subs    map[string]*subscribed
	changed chan struct{}
	paused  chan struct{} // closed when messages are taken again; nil while they are
}

type subscribed struct {
	m         *swarmv1.SubscriptionMessage
	got       []*swarmv1.LogMessage
	published int // calls
	closed    int // of them, by the node
	gone      bool
}

// Subscribe asks for output, by the id of the message.
func (m *Manager) Subscribe(msg *swarmv1.SubscriptionMessage) {
	m.broker.mu.Lock()
	defer m.broker.mu.Unlock()
	m.broker.subs[msg.GetId()] = &subscribed{m: msg}
	m.broker.wake()
}

// Unsubscribe asks no more.
func (m *Manager) Unsubscribe(id string) {
	m.broker.mu.Lock()
	defer m.broker.mu.Unlock()
	m.broker.subs[id].gone = true
	m.broker.wake()
}

// HoldOutput makes the manager take no output until the function is called.
func (m *Manager) HoldOutput() (release func()) {
	m.broker.mu.Lock()
	defer m.broker.mu.Unlock()
	paused := make(chan struct{})
	m.broker.paused = paused
	return sync.OnceFunc(func() {
		m.broker.mu.Lock()
		defer m.broker.mu.Unlock()
		m.broker.paused = nil
		close(paused)
	})
}

// Output returns the published output of a subscription.
func (m *Manager) Output(id string) []*swarmv1.LogMessage {
	m.broker.mu.Lock()
	defer m.broker.mu.Unlock()
	return slices.Clone(m.broker.subs[id].got)
}

// Published counts the streams of a subscription, and those that the node has closed.
func (m *Manager) Published(id string) (streams, closed int) {
	m.broker.mu.Lock()
	defer m.broker.mu.Unlock()
	return m.broker.subs[id].published, m.broker.subs[id].closed
}

// Text is the text of messages.
func Text(list []*swarmv1.LogMessage) string {
	var b strings.Builder
	for _, l := range list {
		b.Write(l.GetData())
	}
	return b.String()
}

// wake wakes the waiting goroutines. Preconditions: mu is held.
func (b *broker) wake() {
	close(b.changed)
	b.changed = make(chan struct{})
}

type logBroker struct {
	swarmv1.UnimplementedLogBrokerServer
	m *Manager
}

func (l logBroker) ListenSubscriptions(_ *swarmv1.ListenSubscriptionsRequest, stream grpc.ServerStreamingServer[swarmv1.SubscriptionMessage]) error {
	if err := l.m.ask("ListenSubscriptions"); err != nil {
		return err
	}
	if _, err := caller(stream.Context()); err != nil {
		return err
	}
	l.m.mu.Lock()
	kick := l.m.kick
	l.m.mu.Unlock()
	b := &l.m.broker
	sent := map[string]bool{}
	for {
		var next []*swarmv1.SubscriptionMessage
		b.mu.Lock()
		for _, id := range slices.Sorted(maps.Keys(b.subs)) {
			switch s := b.subs[id]; {
			case !s.gone && !sent[id]:
				next = append(next, s.m)
				sent[id] = true
			case s.gone && sent[id]:
				next = append(next, &swarmv1.SubscriptionMessage{Id: id, Close: true})
				sent[id] = false
			}
		}
		changed := b.changed
		b.mu.Unlock()
		for _, m := range next {
			if err := stream.Send(m); err != nil {
				return err
			}
		}
		select {
		case <-changed:
		case <-kick:
			return status.Error(codes.Aborted, "node must disconnect")
		case <-stream.Context().Done():
			return nil
		}
	}
}

func (l logBroker) PublishLogs(stream grpc.ClientStreamingServer[swarmv1.PublishLogsMessage, swarmv1.PublishLogsResponse]) error {
	if err := l.m.ask("PublishLogs"); err != nil {
		return err
	}
	node, err := caller(stream.Context())
	if err != nil {
		return err
	}
	b := &l.m.broker
	var of *subscribed
	for {
		b.mu.Lock()
		paused := b.paused
		b.mu.Unlock()
		if paused != nil {
			select {
			case <-paused:
			case <-stream.Context().Done():
				return stream.Context().Err()
			}
		}
		msg, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return stream.SendAndClose(&swarmv1.PublishLogsResponse{})
		}
		if err != nil {
			return err
		}
		if last, err := l.take(&of, msg, node); last || err != nil {
			return err
		}
	}
}

// take takes one message of a stream; last says that it was the last.
func (l logBroker) take(of **subscribed, msg *swarmv1.PublishLogsMessage, node string) (last bool, err error) {
	b := &l.m.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.subs[msg.GetSubscriptionId()]
	switch {
	case msg.GetSubscriptionId() == "":
		return true, status.Error(codes.InvalidArgument, "missing subscription ID")
	case s == nil || s.gone && !msg.GetClose():
		return true, status.Error(codes.NotFound, "unknown subscription ID")
	case *of == nil:
		s.published++
	case *of != s:
		return true, status.Error(codes.InvalidArgument, "different subscription IDs in the same session")
	}
	*of = s
	if msg.GetClose() {
		s.closed++
	}
	for _, m := range msg.GetMessages() {
		if m.GetContext().GetNodeId() != node {
			return true, status.Error(codes.PermissionDenied, "invalid NodeID")
		}
	}
	s.got = append(s.got, msg.GetMessages()...)
	b.wake()
	return msg.GetClose(), nil
}

// UntilPublished is Until for conditions on the output.
func (m *Manager) UntilPublished(what string, ok func() bool) {
	m.tb.Helper()
	m.until(what, ok, func() <-chan struct{} {
		m.broker.mu.Lock()
		defer m.broker.mu.Unlock()
		return m.broker.changed
	})
}

package session

import (
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/timestamppb"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/peers"
)

// A hub asks the others for the output of tasks on their nodes, at their addresses for nodes, with a
// certificate that only hubs have. The last message of an answer names the missing nodes.
const (
	relayService = "longshore.hub.v1.Relay"
	relayMethod  = "Subscribe"
	missingKey   = "missing"
)

// Relay lets the broker ask other hubs, and answer them. here reports whether a node has its session with this
// one.
func (b *Broker) Relay(others *peers.Peers, here func(node string) bool) {
	b.others, b.here = others, here
}

// RelayService is the service for other hubs.
func RelayService() *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: relayService, HandlerType: (*any)(nil),
		Streams: []grpc.StreamDesc{{StreamName: relayMethod, ServerStreams: true, Handler: func(srv any, stream grpc.ServerStream) error {
			return srv.(*Broker).relayed(stream)
		}}},
	}
}

// relayed answers another hub with the output of those nodes that are in touch with this one.
func (b *Broker) relayed(stream grpc.ServerStream) error {
	caller, err := b.ca.Authorize(stream.Context(), ca.RoleManager)
	if err != nil {
		return err
	}
	asked := new(swarmv1.SubscriptionMessage)
	if err := stream.RecvMsg(asked); err != nil {
		return err
	}
	s := b.subscribe(asked.GetSelector(), asked.GetOptions(), b.here)
	defer s.Close()
	s.start()
	for {
		select {
		case m := <-s.Messages:
			if err := b.ca.Allowed(caller); err != nil {
				return err
			}
			if err := stream.SendMsg(&swarmv1.PublishLogsMessage{Messages: []*swarmv1.LogMessage{m}}); err != nil {
				return err
			}
		case <-s.Done:
			stream.SetTrailer(metadata.Pairs(missingKey, strings.Join(s.Missing(), " ")))
			return nil
		case <-stream.Context().Done():
			return context.Cause(stream.Context())
		}
	}
}

// pendingHub is the name under which a subscription waits for a hub.
func pendingHub(id string) string { return "hub " + id }

// follow asks hubs that come later, because the tasks' nodes may move to them.
func (s *Subscription) follow() {
	asked := map[string]bool{}
	for first := true; ; first = false {
		hubs, changed := s.b.others.List()
		for _, h := range hubs {
			if h.ID != s.b.others.Self() && !asked[h.ID] {
				asked[h.ID] = true
				s.asking.Go(func() { s.ask(h, !first) })
			}
		}
		select {
		case <-changed:
		case <-s.ctx.Done():
			return
		}
	}
}

// ask asks a hub, and again while it is registered if the subscription follows. later leaves out earlier output.
func (s *Subscription) ask(h peers.Peer, later bool) {
	follow := s.msg.GetOptions().GetFollow()
	for {
		missing, err := s.askOnce(h, later)
		s.mu.Lock()
		for _, node := range missing {
			s.missing[node] = true
		}
		s.mu.Unlock()
		if !follow || s.ctx.Err() != nil || !s.b.others.Alive(h.ID) {
			s.finished(pendingHub(h.ID), err != nil)
			return
		}
		later = true
		timer := time.NewTimer(time.Second)
		select {
		case <-timer.C:
		case <-s.ctx.Done():
			timer.Stop()
		}
	}
}

func (s *Subscription) askOnce(h peers.Peer, later bool) (missing []string, err error) {
	conn, err := grpc.NewClient("passthrough:///"+h.Addr, grpc.WithTransportCredentials(s.b.ca.Authority.ClientCredentials()))
	if err != nil {
		return nil, err
	}
	defer func() { _ = conn.Close() }()
	stream, err := conn.NewStream(s.ctx, &grpc.StreamDesc{ServerStreams: true}, "/"+relayService+"/"+relayMethod)
	if err != nil {
		return nil, err
	}
	ask := &swarmv1.SubscriptionMessage{Id: s.msg.GetId(), Selector: s.msg.GetSelector(), Options: s.msg.GetOptions()}
	if later {
		ask.Options = &swarmv1.LogSubscriptionOptions{Streams: s.msg.GetOptions().GetStreams(), Follow: true, Tail: s.msg.GetOptions().GetTail(), Since: timestamppb.Now()}
	}
	if err := errors.Join(stream.SendMsg(ask), stream.CloseSend()); err != nil {
		return nil, err
	}
	for {
		m := new(swarmv1.PublishLogsMessage)
		if err := stream.RecvMsg(m); errors.Is(err, io.EOF) {
			return strings.Fields(strings.Join(stream.Trailer().Get(missingKey), " ")), nil
		} else if err != nil {
			return nil, err
		}
		for _, line := range m.GetMessages() {
			select {
			case s.out <- line:
			case <-s.ctx.Done():
				return nil, context.Cause(s.ctx)
			}
		}
	}
}

// startAll begins a subscription of this hub's own: it asks the hubs that have the nodes that are not in touch with this one.
func (s *Subscription) startAll(away []string) {
	hubs := map[string]peers.Peer{}
	var missing []string
	for _, node := range slices.Sorted(slices.Values(away)) {
		run, _, _ := s.b.inventory.Holder(node)
		if h, ok := s.b.peer(run); ok {
			hubs[run] = h
		} else {
			missing = append(missing, node)
		}
	}
	follow := s.msg.GetOptions().GetFollow()
	s.mu.Lock()
	for _, node := range missing {
		s.missing[node] = true
	}
	for id := range hubs {
		s.pending[pendingHub(id)] = true
	}
	s.mu.Unlock()
	switch {
	case s.b.others == nil:
	case follow:
		s.asking.Go(s.follow)
	default:
		for _, h := range hubs {
			s.asking.Go(func() { s.ask(h, false) })
		}
	}
	s.start()
}

// peer returns another registered hub.
func (b *Broker) peer(run string) (peers.Peer, bool) {
	if b.others == nil || run == b.others.Self() {
		return peers.Peer{}, false
	}
	return b.others.Get(run)
}

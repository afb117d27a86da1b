// Package hub assembles the hub: the store, the authority, the inventory, and the services for nodes.
//
// It knows no engine and runs nothing itself. Start at Open and Hub.Serve.
package hub

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/connlimit"
	"github.com/longshore/longshore/internal/enums"
	"github.com/longshore/longshore/internal/hub/api"
	"github.com/longshore/longshore/internal/hub/ca"
	"github.com/longshore/longshore/internal/hub/engineapi"
	"github.com/longshore/longshore/internal/hub/events"
	"github.com/longshore/longshore/internal/hub/fleet"
	"github.com/longshore/longshore/internal/hub/inventory"
	"github.com/longshore/longshore/internal/hub/peers"
	"github.com/longshore/longshore/internal/hub/session"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/trail"
)

// Options are the parameters of Open.
type Options struct {
	Store store.Options
	// Advertise is the hub's address for nodes, host:port.
	Advertise string
	// Approve has nodes that join wait until an operator accepts them.
	Approve bool
	// BanClones refuses nodes after their certificate was in use at two places.
	BanClones bool
	// CertificateLife is how long the certificates of nodes are valid; RenewGrace is how long
	// after that a node may still renew its certificate.
	CertificateLife, RenewGrace time.Duration
	// Heartbeat is how often nodes say that they are alive; a node is Down after Grace times that.
	Heartbeat time.Duration
	Grace     int
	// Lease is how long this hub counts as there, where there are several, after it was last heard of; 0 is
	// peers.DefaultTTL.
	Lease time.Duration
	// MoveAfter is how long a node is Down before its replicas are started elsewhere; 0 is
	// DefaultMoveAfter.
	MoveAfter time.Duration
	// Hold leaves all tasks as they are: none is started, moved or ended.
	Hold bool
	// Version is the program's.
	Version string
	Log     *slog.Logger
}

// DefaultMoveAfter is the default of Options.MoveAfter.
const DefaultMoveAfter = time.Minute

// Limits of the listener for nodes.
const (
	maxConnections     = 20_000
	maxUnauthenticated = 512
	maxStreams         = 256      // of one connection
	window             = 64 << 10 // bytes that a stream may be ahead of its reader
	maxHeaders         = 64 << 10
)

// Limits of the listener for operators.
const (
	maxOperators = 1000
	maxStrangers = 64
)

// Hub is an open hub.
type Hub struct {
	CA         *ca.Service
	Inventory  *inventory.Inventory
	Dispatcher *session.Dispatcher
	Broker     *session.Broker
	Keys       *session.Keys
	Peers      *peers.Peers
	// Trail gets a line for each request of an operator that changes something; nil is none. It is set before Serve.
	Trail *trail.Log

	o      Options
	store  *store.Store
	limits *connlimit.Table
	// commits and rounds are the durations of transactions and of rounds of scheduling.
	commits, rounds prometheus.Histogram
}

// Open opens the store, and initializes that of a new hub. Close ends it.
func Open(ctx context.Context, o Options) (h *Hub, err error) {
	if host, port, err := net.SplitHostPort(o.Advertise); err != nil || host == "" || port == "" || port == "0" {
		return nil, invalid.Errorf("the address that nodes reach the hub by must be HOST:PORT, not %q", o.Advertise)
	}
	if o.MoveAfter == 0 {
		o.MoveAfter = DefaultMoveAfter
	}
	if o.RenewGrace < 0 || o.Heartbeat < 0 || o.Grace < 0 || o.MoveAfter < 0 {
		return nil, invalid.Errorf("times cannot be negative")
	}
	o.Store.Log = o.Log
	commits := histogram("longshore_hub_store_transaction_duration_seconds", "Duration of the store's transactions.")
	o.Store.Observe = func(took time.Duration) { commits.Observe(took.Seconds()) }
	s, err := store.Open(ctx, o.Store)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.Close())
		}
	}()
	authority, err := ca.Open(ctx, s, o.CertificateLife)
	if err != nil {
		return nil, err
	}
	keys, err := session.OpenKeys(ctx, s)
	if err != nil {
		return nil, err
	}
	b := inventory.New(s, authority.Hub, o.Log)
	if err := b.Load(ctx); err != nil {
		return nil, err
	}
	others, err := peers.Join(ctx, peers.Options{Store: s, Inventory: b, Advertise: o.Advertise, TTL: o.Lease, Log: o.Log})
	if err != nil {
		return nil, err
	}
	service := &ca.Service{Authority: authority, Inventory: b, Approve: o.Approve, RenewGrace: o.RenewGrace, BanClones: o.BanClones, Log: o.Log}
	h = &Hub{
		CA: service, Inventory: b, Keys: keys, Peers: others, Broker: session.NewBroker(service, b), o: o, store: s, limits: connlimit.NewTable(o.Log), commits: commits, rounds: histogram("longshore_hub_plan_duration_seconds", "Duration of a round of scheduling."),
		Dispatcher: session.New(session.Options{CA: service, Inventory: b, Keys: keys, Peers: others, Period: o.Heartbeat, Grace: o.Grace, Log: o.Log}),
	}
	h.Broker.Relay(others, func(node string) bool { return h.Dispatcher.Addr(node) != "" })
	return h, nil
}

// Close ends it, after Serve.
func (h *Hub) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), leaving)
	defer cancel()
	if err := h.Peers.Leave(ctx); err != nil { // then the others wait until its time is over
		h.o.Log.Warn("could not report this hub's end to the other hubs", "error", err)
	}
	return h.store.Close()
}

// leaving is how long a hub that ends tries to say so.
const leaving = 3 * time.Second

// runTerm is the work of the leading hub.
func (h *Hub) runTerm(ctx context.Context, term *peers.Term) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.Dispatcher.Look(ctx, term) })
	group.Go(func() error { return h.CA.Run(ctx) })
	group.Go(func() error { return events.Log{Store: h.store}.Trim(ctx, events.Max, h.o.Log) })
	group.Go(func() error { return h.Keys.Renew(ctx, h.o.Log) })
	if !h.o.Hold {
		group.Go(func() error {
			return fleet.Run(ctx, h.Inventory, term, h.o.MoveAfter, func(took time.Duration) { h.rounds.Observe(took.Seconds()) }, h.o.Log)
		})
	}
	return group.Wait()
}

// Listeners are where a hub serves.
type Listeners struct {
	// Nodes is where nodes are served, Operators the socket for operators.
	Nodes, Operators net.Listener
	// Remote is the listener for operators with a certificate or a token; nil is none.
	Remote net.Listener
	// Docker is where docker's command line is served; nil is nowhere.
	Docker net.Listener
}

// Close closes those that there are, when Serve is not called.
func (l Listeners) Close() {
	for _, c := range []net.Listener{l.Nodes, l.Operators, l.Remote, l.Docker} {
		if c != nil {
			_ = c.Close()
		}
	}
}

// Serve serves nodes and operators until ctx ends, or the hub cannot continue.
func (h *Hub) Serve(ctx context.Context, at Listeners) error {
	limit := h.limits.Limit(connlimit.Options{Name: "nodes", Key: "connections", Max: maxConnections, Unauthenticated: maxUnauthenticated})
	server := grpc.NewServer(
		grpc.Creds(h.CA.Credentials()), grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeaders), grpc.ConnectionTimeout(handshake),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: time.Minute, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
		// Windows that do not grow: with ca's bound of incomplete messages they bound the hub's buffers for a node.
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		// There are many connections with little traffic. TLS buffers decrypted data.
		grpc.ReadBufferSize(0), grpc.WriteBufferSize(4<<10),
		grpc.UnaryInterceptor(func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (resp any, err error) {
			defer h.call(ctx, info.FullMethod, &err)()
			if m, ok := req.(proto.Message); ok {
				if err := enums.Check(m); err != nil {
					return nil, status.Error(codes.InvalidArgument, err.Error())
				}
			}
			return next(ctx, req)
		}),
		grpc.StreamInterceptor(func(srv any, stream grpc.ServerStream, info *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
			defer h.call(stream.Context(), info.FullMethod, &err)()
			if stream = session.Checked(stream); !info.IsClientStream {
				stream = session.Shallow(stream)
			}
			return next(srv, stream)
		}),
	)
	swarmv1.RegisterCAServer(server, h.CA)
	swarmv1.RegisterNodeCAServer(server, h.CA)
	swarmv1.RegisterDispatcherServer(server, h.Dispatcher)
	swarmv1.RegisterLogBrokerServer(server, h.Broker)
	server.RegisterService(session.RelayService(), h.Broker)
	swarmv1.RegisterResourceAllocatorServer(server, session.Allocator{CA: h.CA})

	asked := ctx
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return h.store.Run(ctx) })
	group.Go(func() error { return h.Inventory.Run(ctx) })
	group.Go(func() error { return h.Keys.Run(ctx) })
	group.Go(func() error { return h.Dispatcher.Run(ctx) })
	group.Go(func() error { return h.CA.Authority.Run(ctx) })
	group.Go(func() error { return h.Peers.Run(ctx, h.Dispatcher.Drop) })
	group.Go(func() error { return h.Peers.Lead(ctx, h.runTerm) })
	operators := api.Server{Events: events.Log{Store: h.store}, Metrics: h.metrics(), CA: h.CA, Operators: ca.NewOperators(h.CA.Authority, h.o.Log), Inventory: h.Inventory, Pending: h.pending, Contact: h.Peers.LastContact, Broker: h.Broker, Dispatcher: h.Dispatcher, Trail: h.Trail, Log: h.o.Log, Backup: h.store.Backup}
	group.Go(func() error { return operators.Operators.Run(ctx) })
	group.Go(func() error { return operators.Serve(ctx, at.Operators) })
	if at.Remote != nil {
		remote := h.limits.Limit(connlimit.Options{Name: "operators", Key: "api-listen", Max: maxOperators, Unauthenticated: maxStrangers})
		group.Go(func() error { return operators.Serve(ctx, remote.Listen(at.Remote)) })
	}
	if at.Docker != nil {
		group.Go(func() error { return h.dockerAPI().Serve(ctx, at.Docker) })
	}
	group.Go(func() error {
		if err := server.Serve(limit.Listen(at.Nodes)); err != nil && ctx.Err() == nil {
			return fmt.Errorf("serve nodes: %w", err)
		}
		return nil
	})
	group.Go(func() error {
		<-ctx.Done()
		server.Stop()
		return nil
	})
	err := group.Wait()
	if asked.Err() != nil {
		return nil //nolint:nilerr // ctx has ended
	}
	return err
}

// handshake is how long a client may take until it may call.
const handshake = 20 * time.Second

// call begins a call, and returns the function that ends it: a panic is an error of this call
// alone.
func (h *Hub) call(ctx context.Context, method string, err *error) func() {
	p, _ := peer.FromContext(ctx)
	slot, _ := p.Addr.(interface {
		Begin()
		End()
	})
	if slot != nil {
		slot.Begin()
	}
	return func() {
		if slot != nil {
			slot.End()
		}
		if r := recover(); r != nil {
			h.o.Log.ErrorContext(ctx, "a call panicked; the hub keeps running", "method", method, "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
			*err = status.Error(codes.Internal, "internal error")
		}
	}
}

// pending returns the tasks that no node takes.
func (h *Hub) pending() []inventory.Task {
	return fleet.Pending(fleet.StateOf(h.Inventory, h.o.MoveAfter))
}

// hubs returns the hubs of the fleet, this one first.
func (h *Hub) hubs() (list []engineapi.Hub) {
	all, _ := h.Peers.List()
	leader := h.Peers.Leader()
	if len(all) == 0 || all[0].ID != h.Peers.Self() { // this one is not there for the others
		list = append(list, engineapi.Hub{ID: h.Peers.Self(), Address: h.o.Advertise})
	}
	for _, p := range all {
		list = append(list, engineapi.Hub{ID: p.ID, Address: p.Addr, Leads: p.ID == leader})
	}
	return list
}

// dockerAPI answers docker's command line.
func (h *Hub) dockerAPI() engineapi.Server {
	host, err := os.Hostname()
	if err != nil {
		host = h.CA.Authority.Hub
	}
	return engineapi.Server{
		Records: h.Inventory, Hubs: h.hubs, Pending: h.pending, Notice: func() string { return api.Notice(h.Peers.LastContact()) }, Trust: h.CA.Authority, Nodes: h.CA, Log: h.o.Log,
		Output: func(selector *swarmv1.LogSelector, o *swarmv1.LogSubscriptionOptions) engineapi.Output {
			sub := h.Broker.Subscribe(selector, o, func(node string) bool { return h.Dispatcher.Addr(node) != "" })
			return engineapi.Output{Messages: sub.Messages, Done: sub.Done, Missing: sub.Missing, Close: sub.Close}
		},
		Peer:  api.Peer,
		Trail: h.Trail,
		Self: engineapi.Self{
			Cluster: h.CA.Authority.Cluster, Hub: h.CA.Authority.Hub, Address: h.o.Advertise, Hostname: host, Version: h.o.Version, Heartbeat: h.o.Heartbeat,
			CertificateLife: h.o.CertificateLife, TaskHistory: fleet.History,
		},
	}
}

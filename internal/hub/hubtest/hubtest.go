// Package hubtest runs whole hubs for tests, and clients that speak to them as nodes do: over
// TLS, with certificates that the hub has issued. Start at New.
package hubtest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	swarmv1 "github.com/longshore/longshore/api/swarm/v1"
	"github.com/longshore/longshore/internal/face/swarm/identity"
	"github.com/longshore/longshore/internal/hub"
	"github.com/longshore/longshore/internal/hub/store"
	"github.com/longshore/longshore/internal/hub/store/storetest"
)

// Patience bounds a hang.
const Patience = time.Minute

// Hub is a hub of a test.
type Hub struct {
	*hub.Hub
	Addr string
	// Socket is where it serves operators.
	Socket string

	tb   testing.TB
	dir  string
	o    hub.Options
	stop func()
}

// New starts a hub on loopback, which ends with the test. change may change its options.
func New(tb testing.TB, change ...func(*hub.Options)) *Hub {
	tb.Helper()
	l, err := new(net.ListenConfig).Listen(tb.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	h := &Hub{tb: tb, Addr: l.Addr().String(), dir: storetest.Dir(tb)}
	h.Socket = h.dir + "/hub.sock"
	h.o = hub.Options{
		Store:     store.Options{Dir: h.dir, Passphrase: []byte(storetest.Passphrase), Iterations: 1, NoSync: true},
		Advertise: h.Addr, RenewGrace: time.Hour, Heartbeat: time.Minute, Log: slog.New(slog.DiscardHandler),
	}
	for _, fn := range change {
		fn(&h.o)
	}
	h.start(l)
	tb.Cleanup(func() { h.stop() })
	return h
}

func (h *Hub) start(l net.Listener) {
	h.tb.Helper()
	opened, err := hub.Open(h.tb.Context(), h.o)
	if err != nil {
		_ = l.Close()
		h.tb.Fatal(err)
	}
	h.Hub = opened
	ctx, cancel := context.WithCancelCause(context.Background())
	served := make(chan error, 1)
	operators, err := new(net.ListenConfig).Listen(h.tb.Context(), "unix", h.Socket)
	if err != nil {
		h.tb.Fatal(err)
	}
	go func() { served <- opened.Serve(ctx, l, operators) }()
	h.stop = sync.OnceFunc(func() {
		cancel(context.Canceled)
		if err := errors.Join(<-served, opened.Close()); err != nil {
			h.tb.Errorf("the hub's end: %v", err)
		}
	})
}

// Restart ends the hub and starts another one on the same store, at the same address.
func (h *Hub) Restart() {
	h.tb.Helper()
	h.stop()
	l, err := new(net.ListenConfig).Listen(h.tb.Context(), "tcp", h.Addr)
	if err != nil {
		h.tb.Fatal(err)
	}
	h.start(l)
}

// Join makes a node, by the token of workers.
func (h *Hub) Join() *Node {
	h.tb.Helper()
	token, err := identity.ParseToken(h.CA.Authority.Token())
	if err != nil {
		h.tb.Fatal(err)
	}
	ctx, cancel := context.WithTimeoutCause(h.tb.Context(), Patience, errors.New("the node was not let in"))
	defer cancel()
	id, err := identity.Join(ctx, identity.Request{Addr: h.Addr, Token: token})
	if err != nil {
		h.tb.Fatal(err)
	}
	return h.Dial(id.Credentials(), id)
}

// Node is a client of the hub: a node with an identity, or anyone else without.
type Node struct {
	*identity.Identity
	Conn       *grpc.ClientConn
	Dispatcher swarmv1.DispatcherClient
	CA         swarmv1.CAClient
	NodeCA     swarmv1.NodeCAClient
	Logs       swarmv1.LogBrokerClient
	Allocator  swarmv1.ResourceAllocatorClient
}

// Dial is a client with credentials.
func (h *Hub) Dial(creds credentials.TransportCredentials, id *identity.Identity) *Node {
	h.tb.Helper()
	conn, err := grpc.NewClient("passthrough:///"+h.Addr, grpc.WithTransportCredentials(creds))
	if err != nil {
		h.tb.Fatal(err)
	}
	h.tb.Cleanup(func() { _ = conn.Close() })
	return &Node{
		Identity: id, Conn: conn, Dispatcher: swarmv1.NewDispatcherClient(conn), CA: swarmv1.NewCAClient(conn), NodeCA: swarmv1.NewNodeCAClient(conn),
		Logs: swarmv1.NewLogBrokerClient(conn), Allocator: swarmv1.NewResourceAllocatorClient(conn),
	}
}
